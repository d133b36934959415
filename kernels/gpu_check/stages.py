"""The stages of a visit, the most important first; how one is run, here or in a process of its own."""

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

from kernels.gpu_check import correct, fast, whole
from kernels.gpu_check.correct import ROOT, Visit
from kernels.gpu_check.place import InEmulator, OnGpu
from kernels.gpu_check.record import FAIL, NOT_RUN, PASS, Failed, NotRun, Record, results

GRACE_SECONDS = 10.0  # a stage that watches the time itself ends within them
SAMPLE_SECONDS = 5.0  # between two looks at the clocks
CLOCKS = ("clocks.sm", "clocks.mem", "temperature.gpu")


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    work: Callable[[Visit], None]
    seconds: float


STAGES = [
    Stage("context", correct.context, 60),
    Stage("compile", correct.compile_ahead, 60),  # without the GPU; what the next stages need
    Stage("grid", correct.grid, 100),
    Stage("graph", correct.graph, 40),
    Stage("memcheck", correct.sanitizer("memcheck"), 60),
    Stage("racecheck", correct.sanitizer("racecheck"), 60),
    Stage("times", fast.times, 100),
    Stage("epoch", whole.epoch, 60),
    Stage("bundle", whole.bundle, 40),
]
FEW = Stage("few", correct.few, 60)  # what the sanitizer's stages run


def named(name: str) -> Stage:
    """The stage of that name; KeyError where there is none."""
    return {stage.name: stage for stage in [*STAGES, FEW]}[name]


def run_here(stage: Stage, record: Record, seed: int, seconds: float, architecture: str, dry: bool) -> str:
    """Do a stage's work in this process, and record how it ends."""
    start = time.monotonic()
    result, reason = PASS, ""
    try:
        place = InEmulator() if dry else OnGpu()
        stage.work(Visit(place, record, seed, start + seconds, architecture))
    except NotRun as why:
        result, reason = NOT_RUN, str(why)
    except Failed as what:
        result, reason = FAIL, str(what)
    except Exception as error:
        result, reason = FAIL, f"{error!r}\n{traceback.format_exc()}"
    record.result(result, reason, time.monotonic() - start)
    return result


def run_apart(
    stage: Stage, path: pathlib.Path, seed: int, seconds: float, architecture: str, dry: bool
) -> str:
    """Run a stage in a process of its own; one that crashes or does not end is a FAIL."""
    command = [sys.executable, "-m", "kernels.gpu_check", "--stage", stage.name, "--out", str(path)]
    command += ["--seed", str(seed), "--seconds", str(seconds), "--architecture", architecture]
    command += ["--dry-run"] if dry else []
    record, start = Record(path, stage.name), time.monotonic()
    before = results(path).get(stage.name)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        child = subprocess.Popen(command, cwd=ROOT, stderr=errors, start_new_session=True)
        try:
            code = _wait(child, record, seconds + GRACE_SECONDS)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started
                child.wait()
        if code is None:
            record.result(FAIL, f"not done within {seconds + GRACE_SECONDS:.0f} s", time.monotonic() - start)
            return FAIL
        after = results(path).get(stage.name)
        if before is None and after is not None:
            return after
        errors.seek(0)
        record.result(FAIL, f"died with status {code}\n{errors.read()[-1500:]}", time.monotonic() - start)
        return FAIL


def _wait(child: subprocess.Popen[bytes], record: Record, seconds: float) -> int | None:
    """The exit status, or None when the time is over; the clocks are recorded meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            return child.wait(min(SAMPLE_SECONDS, left))
        except subprocess.TimeoutExpired:
            if clocks := nvidia_smi(*CLOCKS):
                record.add(**clocks)
    return None


def nvidia_smi(*fields: str) -> dict[str, str]:
    """What nvidia-smi says of the first GPU; nothing where there is none."""
    values = said(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"])
    return dict(zip(fields, values.split(", "), strict=False)) if values else {}


def said(command: list[str]) -> str | None:
    """What a program prints, or None where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
