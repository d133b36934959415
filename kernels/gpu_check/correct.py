"""The stages that ask whether the kernel is right on a device."""

import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from subprocess import PIPE, STDOUT

import torch
from torch import Tensor

from kernels import attention, cases, compile, formula, gpu, launch, launches, rounding
from kernels.cases import Case
from kernels.gpu_check.place import Place, move, refusal
from kernels.gpu_check.record import Failed, NotRun, Record
from kernels.launch import Variant

# Few pairs of head sizes, for each is a compilation.
HEAD_SIZES = [(8, 8), (16, 16), (64, 64), (64, 32), (8, 128), (128, 128), (32, 16)]
ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Visit:
    """What a stage works with."""

    place: Place
    record: Record
    seed: int
    deadline: float  # by time.monotonic()
    architecture: str

    def time_left(self) -> bool:
        return time.monotonic() < self.deadline


# ---- context and autograd


def context(visit: Visit) -> None:
    """Forward and backward through the operator: in the main thread, in autograd's own, in a fresh one."""
    place = visit.place
    g = torch.Generator().manual_seed(visit.seed)
    n = 12 if place.dry else 100
    q, k, v, out_grad = (torch.randn(2, 4, n, 16, generator=g).to(place.device) for _ in range(4))
    lengths = torch.tensor([n, n // 2], device=place.device)
    before = launches()
    with place.attending():
        # The gradient is given, so that the kernel is the first that backward's thread runs (PyTorch 124565).
        got = _forward_and_backward(q, k, v, out_grad, lengths)
        in_thread: list[tuple[Tensor, ...] | BaseException] = []

        def work() -> None:
            try:
                in_thread.append(_forward_and_backward(q, k, v, out_grad, lengths))
            except BaseException as error:
                in_thread.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    place.finish()
    counts = {name: count - before.get(name, 0) for name, count in launches().items()}
    visit.record.figure("launches", **counts)
    if not all(any(word in name and counts[name] for name in counts) for word in ("forward", "backward")):
        raise Failed(f"attention.cu did not run forward and backward: {counts}")
    (again,) = in_thread
    if isinstance(again, BaseException):
        raise Failed(f"in a thread of its own: {again!r}")
    if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
        raise Failed("a second thread gets other bits")
    wanted = _by_the_formula(q, k, v, out_grad, lengths)
    errors = [_relative(a, b) for a, b in zip(got, wanted, strict=True)]
    visit.record.figure(
        "largest error / largest number", **dict(zip(("out", "dq", "dk", "dv"), errors, strict=True))
    )
    if max(errors) > 1e-5:
        raise Failed(f"out, dQ, dK, dV are off by {errors}")
    _other_devices(visit, q, k, v)


def _forward_and_backward(
    q: Tensor, k: Tensor, v: Tensor, out_grad: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, key_lengths=lengths)
    return (out.detach(), *torch.autograd.grad(out, inputs, out_grad))


def _by_the_formula(q: Tensor, k: Tensor, v: Tensor, out_grad: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    q, k, v, out_grad = (x.double().cpu() for x in (q, k, v, out_grad))
    mask = formula.additive_mask(q.shape[-2], k.shape[-2], key_lengths=lengths.cpu(), like=q)
    out, weights = formula.attention(q, k, v, mask)
    return (out, *formula.gradients(q, k, v, weights, out_grad))


def _relative(got: Tensor, wanted: Tensor) -> float:
    error: float = ((got.double().cpu() - wanted).abs().max() / wanted.abs().max()).item()
    return error


def _other_devices(visit: Visit, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Lengths and a mask that are not on the queries' device must be refused."""
    elsewhere = torch.device("meta") if visit.place.dry else torch.device("cpu")
    wrong = {
        "key_lengths": torch.tensor([1, 2]).to(elsewhere),
        "mask": torch.zeros(q.shape[2], k.shape[2]).to(elsewhere),
    }
    for name, x in wrong.items():
        try:
            attention(q, k, v, **{name: x})  # type: ignore[call-overload]
        except ValueError:
            continue
        raise Failed(f"{name} on {elsewhere} and queries on {q.device} were not refused")


# ---- compiling ahead, without CUDA


def compile_ahead(visit: Visit) -> None:
    """Fill the disk cache on all cores, by processes that start afresh, before any of them uses the GPU."""
    try:
        compile.nvrtc_version()
    except compile.CompileError as error:
        raise NotRun(str(error)) from error
    drawn = small_grid(visit.seed) if not visit.place.dry else dry_grid(visit.seed)
    wanted = list(dict.fromkeys(variant for case in drawn for variant in variants(case)))
    ready = 0
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as workers:
        jobs = [workers.submit(compile.code, variant, visit.architecture) for variant in wanted]
        for job in jobs:
            if not visit.time_left():
                job.cancel()
                continue
            job.result()
            ready += 1
    visit.record.figure("variants", compiled=ready, wanted=len(wanted), architecture=visit.architecture)
    if ready < len(wanted):
        raise NotRun(f"time for {ready} of {len(wanted)} variants; the next stages compile the others")


def variants(case: Case) -> list[Variant]:
    """What has to be compiled for a case."""
    return launch.variants(case.dtype, case.d_k, case.d_v)


def small_grid(seed: int) -> Iterator[Case]:
    """Cases of every type, mask, layout and length, for few pairs of head sizes."""
    rng = random.Random(seed)
    for case in cases.pairwise(seed):
        d_k, d_v = rng.choice(HEAD_SIZES)
        yield dataclasses.replace(case, d_k=d_k, d_v=d_v)


def dry_grid(seed: int) -> Iterator[Case]:
    """Every layout once, small."""
    types = itertools.cycle((torch.float32, torch.bfloat16))
    for layout, dtype in zip(cases.LAYOUTS, types, strict=False):
        yield Case(dtype, 8, 8, n=9, m=9, mask="full", lengths="some", layout=layout, given="wider")


# ---- the grid


def grid(visit: Visit) -> None:
    """Shapes, masks and layouts against the formula in float64; outputs are NaN until they are written."""
    drawn = list(dry_grid(visit.seed) if visit.place.dry else small_grid(visit.seed))
    count, wrong, sums = right(drawn, visit)
    visit.record.figure("cases", run=count, drawn=len(drawn), wrong=len(wrong), seed=visit.seed)
    for dtype, total in sums.items():
        visit.record.figure(launch.TYPES[dtype], share_of_rounding=total.share, relative_error=total.relative)
    if problem := far_batches_problem(visit):
        wrong.append(problem)
    if wrong:
        raise Failed("\n".join(wrong))
    if not count:
        raise NotRun("no time for a single case")


def right(drawn: list[Case], visit: Visit) -> tuple[int, list[str], dict[torch.dtype, rounding.Total]]:
    """Hold results to the formula, and each run to a second one: cases run, what is wrong, largest errors."""
    found, wrong = [], []
    for number, case in enumerate(drawn):
        if not visit.time_left():
            break
        inputs = cases.draw(case, visit.seed + number)
        moved = inputs.map(lambda _, x: move(x, visit.place.device))
        first, again = (_run(visit.place, moved, case.causal) for _ in range(2))
        errors = rounding.judge(first, inputs, case.causal)
        found.append((case, errors))
        if max(error.share for error in errors.values()) > 1:
            wrong.append(f"{case}, seed {visit.seed + number}: {errors}")
        wrong += [
            f"{case}, seed {visit.seed + number}: {name} differs between two runs"
            for name in first
            if not torch.equal(first[name], again[name])
        ]
    return len(found), wrong, rounding.totals(found)


def _run(place: Place, inputs: cases.Inputs, causal: bool) -> dict[str, Tensor]:
    with place.kernels() as device:
        return {name: x.clone() for name, x in cases.run(device, inputs, causal).items()}


def far_batches_problem(visit: Visit) -> str | None:
    """Two batch entries so far apart that an index needs more than 32 bits; None if all is right."""
    case = Case(torch.bfloat16, 8, 8, n=9, m=12, mask="full", heads=1, weights=False)
    inputs = cases.draw(case, visit.seed)
    far = 64 * 64 if visit.place.dry else 2**31 + 64
    if not visit.place.dry:
        free, _ = torch.cuda.mem_get_info()
        needed = 4 * 2 * far + 4 * far  # q, k, v and out_grad of 2 bytes, the mask of 4
        if free < 1.2 * needed:
            visit.record.figure(
                "far batches", not_run=f"{free / 1e9:.0f} GB are free, it takes {needed / 1e9:.0f}"
            )
            return None

    def spread(_: str, x: Tensor) -> Tensor:
        flat = torch.empty(far + x[0].numel(), dtype=x.dtype, device=visit.place.device)
        return flat.as_strided(x.shape, (far, *x.stride()[1:])).copy_(x)

    errors = rounding.judge(_run(visit.place, inputs.map(spread), False), inputs, False)
    share = max(error.share for error in errors.values())
    visit.record.figure("far batches", share_of_rounding=share, numbers_apart=far)
    return f"batch entries {far} numbers apart: {errors}" if share > 1 else None


# ---- CUDA graph


def graph(visit: Visit) -> None:
    """Replay a captured step on new numbers; capture a new length after warm-up; refuse one without it."""
    place = visit.place
    small = 9 if place.dry else 100
    _replayed(visit, small, 16, first_runs=3)
    if not place.dry:
        gpu.warm_up(place.device, torch.float32, 32, 32)
    _replayed(visit, small + 3, 32, first_runs=0)
    q = torch.randn(1, 1, 5, 8, device=place.device)
    message = refusal(place, lambda: attention(q, q, q))
    visit.record.figure("capture of a kernel that is not loaded", refused=message or "not part of a dry run")
    if not place.dry and (message is None or "warm_up" not in message):
        raise Failed(f"a kernel that is not loaded was not refused within a capture: {message}")


def _replayed(visit: Visit, n: int, d: int, first_runs: int) -> None:
    place = visit.place
    q, k, v = (torch.randn(2, 4, n, d, device=place.device, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([n, n // 2 + 1], device=place.device)

    def step() -> tuple[Tensor, ...]:
        out = attention(q, k, v, key_lengths=lengths)
        return (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))

    with place.attending():
        captured = place.capture(step, first_runs)
        with torch.no_grad():
            for x in (q, k, v):
                x.copy_(torch.randn_like(x))
        captured.replay()
        place.finish()
        same = [torch.equal(a, b) for a, b in zip(captured.results, step(), strict=True)]
    visit.record.figure(f"replay, n = {n}, d = {d}", same_bits=all(same))
    if not all(same):
        raise Failed(
            f"n = {n}, d = {d}: a replay differs in results {[i for i, one in enumerate(same) if not one]}"
        )


# ---- compute-sanitizer

FEW = [
    Case(n=65, m=129, mask="full", lengths="some", causal=True),
    Case(n=33, m=70, d_k=64, d_v=32, mask="rows hidden", layout="unaligned"),
    Case(torch.bfloat16, n=130, m=20, layout="packed"),
    Case(torch.float64, n=20, m=20, layout="16 bytes off"),
]


def few(visit: Visit) -> None:
    """A few small cases, for compute-sanitizer to watch."""
    drawn = [Case(n=5, m=6)] if visit.place.dry else FEW
    count, wrong, _ = right(drawn, visit)
    if wrong or count < len(drawn):
        raise Failed("\n".join(wrong) or f"time for {count} of {len(drawn)} cases")


def sanitizer(tool: str) -> Callable[[Visit], None]:
    def stage(visit: Visit) -> None:
        """Run the stage `few` under compute-sanitizer, which finds what only a device can do wrong."""
        program = shutil.which("compute-sanitizer")
        if program is None and not visit.place.dry:
            raise NotRun("compute-sanitizer is not on the PATH")
        prefix = [] if visit.place.dry else [str(program), "--tool", tool, "--error-exitcode", "9"]
        command = [*prefix, sys.executable, "-m", "kernels.gpu_check", "--stage", "few"]
        command += ["--seed", str(visit.seed), "--seconds", str(max(1.0, visit.deadline - time.monotonic()))]
        command += ["--dry-run"] if visit.place.dry else ["--architecture", visit.architecture]
        # PyTorch cuts tensors out of large blocks, where a step past the end of one goes unseen.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True
        )
        try:
            output, _ = child.communicate(timeout=max(1.0, visit.deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise NotRun(f"compute-sanitizer was not done in time: {error}") from error
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # and the program that it watches
                child.wait()
        judge_sanitizer(child.returncode, output, visit.record)

    return stage


def judge_sanitizer(code: int, output: str, record: Record) -> None:
    """What compute-sanitizer's exit status and words mean."""
    summary = [line.strip("= ") for line in output.splitlines() if "SUMMARY" in line]
    record.figure("exit status", code=code, summary="; ".join(summary) or None)
    if code == 0:
        return
    tail = output[-1500:]
    if code != 9 and "not supported" in output.lower():
        raise NotRun(f"compute-sanitizer does not support this device or driver:\n{tail}")
    raise Failed(f"exit status {code}\n{tail}")
