"""The command: all stages, each in a process of its own, or one of them in this process."""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

from kernels.compile import SOURCE
from kernels.gpu_check import stages
from kernels.gpu_check.correct import ROOT
from kernels.gpu_check.record import FAIL, NOT_RUN, PASS, Record

SECONDS = 600.0
DRY_ARCHITECTURE = "sm_90"
# What a process that has nothing else to do says of PyTorch and the device.
ASK = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found |= {"gpu": properties.name, "multiprocessors": properties.multi_processor_count,
              "memory": properties.total_memory, "architecture": f"sm_{properties.major}{properties.minor}"}
print(json.dumps(found))
"""
PACKAGES = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "onnxruntime", "onnxruntime-gpu")


def machine() -> dict[str, Any]:
    """The device, the driver, the clocks and the versions; CUDA is asked in another process."""
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        raise SystemExit(f"gpu-check needs PyTorch, which cannot be used here:\n{asked.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    found["python"] = sys.version.split()[0]
    found["commit"] = stages.said(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"])
    found["attention.cu"] = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]  # where git is not
    found |= stages.nvidia_smi(
        "driver_version", *stages.CLOCKS, "clocks.max.sm", "clocks.max.mem", "power.limit"
    )
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def visit(path: pathlib.Path, seed: int, seconds: float, dry: bool, wanted: list[stages.Stage]) -> int:
    """Run the stages; the exit status: 0 if none failed, 1 if one did, 2 without a GPU."""
    start = time.monotonic()
    found = machine()
    if found["gpu"] is None and not dry:
        print(
            "gpu-check needs an NVIDIA GPU and a PyTorch built for CUDA; this PyTorch "
            f"({found['torch']}) sees none. Without a GPU: make kernel-check, or --dry-run, which runs "
            "every stage in the emulator."
        )
        return 2
    architecture = found.get("architecture", DRY_ARCHITECTURE)
    Record(path, "run").add(seed=seed, dry_run=dry, **found)
    print(f"{found['gpu'] or 'dry run in the emulator'}, PyTorch {found['torch']}, seed {seed}", flush=True)
    ends: dict[str, str] = {}
    for stage in wanted:
        left = seconds - (time.monotonic() - start)
        if left < 10:
            ends[stage.name] = NOT_RUN
            Record(path, stage.name).result(NOT_RUN, f"the {seconds:.0f} s are over", 0)
            continue
        ends[stage.name] = stages.run_apart(stage, path, seed, min(stage.seconds, left), architecture, dry)
    print(f"\n{time.monotonic() - start:.0f} s, {path}")
    for end in (PASS, FAIL, NOT_RUN):
        print(f"{end:8} {', '.join(name for name, one in ends.items() if one == end) or 'none'}")
    return 1 if FAIL in ends.values() else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.gpu_check", description="The kernel on a GPU: is it right, and how fast."
    )
    names = [stage.name for stage in stages.STAGES]
    parser.add_argument(
        "--out", type=pathlib.Path, help="JSON lines; must not exist (default: gpu-check-<time>.jsonl)"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it (default: 600)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some of the stages")
    parser.add_argument(
        "--dry-run", action="store_true", help="without a GPU: every stage, small, in the emulator"
    )
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # what a visit starts in a process of its own
    parser.add_argument("--architecture", default=DRY_ARCHITECTURE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stage:
        noted = Record(options.out, options.stage)
        stage = stages.named(options.stage)
        result = stages.run_here(
            stage, noted, options.seed, options.seconds, options.architecture, options.dry_run
        )
        return 1 if result == FAIL else 0
    path = options.out or pathlib.Path(f"gpu-check-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")
    if path.exists():
        parser.error(f"{path} exists already: name another file, or move it away")
    wanted = [stage for stage in stages.STAGES if stage.name in options.only]
    return visit(path.resolve(), options.seed, options.seconds, options.dry_run, wanted)


if __name__ == "__main__":
    sys.exit(main())
