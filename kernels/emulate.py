"""Runs cases in the emulator, thread order by thread order, and says what is wrong with the results."""

import dataclasses
import math
import pathlib
import types

import torch
from torch import Tensor

from kernels import cases, emulator, launch, rounding
from kernels.cases import Case
from kernels.rounding import Error


@dataclasses.dataclass(frozen=True)
class Outcome:
    case: Case
    seed: int
    errors: dict[str, Error]
    problem: str | None  # a barrier, a shuffle, an access, an unwritten element, a result too far off

    @property
    def margin(self) -> float:
        """The largest error as a multiple of the rounding allowance; infinite if the emulator stopped."""
        return max((error.share for error in self.errors.values()), default=math.inf)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {error.relative:.2g}" for name, error in self.errors.items())
        return f"{self.problem or 'right'}: {self.case}, seed {self.seed}{': ' + found if found else ''}"


def results(
    case: Case,
    inputs: cases.Inputs,
    seed: int = 0,
    source: pathlib.Path = emulator.KERNEL_SOURCE,
    launcher: types.ModuleType = launch,
) -> dict[str, Tensor]:
    """The kernels' results for `inputs`, with the case's thread order and guard pages."""
    device = emulator.Emulator(case.order, seed=seed, at_end=case.at_end, source=source)
    with device:
        got = cases.run(device, inputs.map(device.place), case.causal, launcher)
        return {name: x.clone() for name, x in got.items()}


def outcome(
    case: Case,
    seed: int,
    source: pathlib.Path = emulator.KERNEL_SOURCE,
    launcher: types.ModuleType = launch,
) -> Outcome:
    """Draw inputs from the seed, emulate, and compare the results with the float64 formula."""
    inputs = cases.draw(case, seed)
    try:
        got = results(case, inputs, seed, source, launcher)
    except emulator.EmulatorError as error:
        return Outcome(case, seed, {}, str(error))
    errors = rounding.judge(got, inputs, case.causal)
    # Outputs are NaN until they are written, and no case has a NaN to give: one is an unwritten element, or
    # a NaN that was made.
    wrong = [
        f"{name} has NaN"
        if math.isinf(error.relative)
        else f"{name} is off by {error.relative:.2g}, {error.share:.2g} times what rounding may do"
        for name, error in errors.items()
        if error.share > 1
    ]
    problem = "; ".join(wrong) or None
    return Outcome(case, seed, errors, problem)


def order_matters(case: Case, seed: int, source: pathlib.Path = emulator.KERNEL_SOURCE) -> str | None:
    """The results that differ in any bit between thread orders, or None."""
    inputs = cases.draw(case, seed)
    first: dict[str, Tensor] = {}
    for order in cases.ORDERS:
        got = results(dataclasses.replace(case, order=order), inputs, seed, source)
        differing = [name for name in first if not torch.equal(first[name], got[name])]
        if differing:
            return f"{', '.join(differing)} with threads {order}"
        first = first or got
    return None


def naive_problem(
    case: Case,
    seed: int,
    source: pathlib.Path = emulator.KERNEL_SOURCE,
    launcher: types.ModuleType = launch,
) -> str | None:
    """What is wrong with the output of `attention_naive`; None if nothing."""
    inputs = cases.draw(case, seed)
    with emulator.Emulator(case.order, seed=seed, at_end=case.at_end, source=source) as device:
        x = inputs.map(device.place)
        try:
            out = launcher.naive(device, x.q, x.k, x.v, x.mask, x.key_lengths, case.causal).clone()
        except emulator.EmulatorError as error:
            return str(error)
    share = rounding.judge({"out": out}, inputs, case.causal)["out"].share
    return None if share <= 1 else f"attention_naive is off by {share:.2g} times what rounding may do: {case}"


def conversion_problem(source: pathlib.Path = emulator.KERNEL_SOURCE) -> str | None:
    """How the kernel's half types differ from PyTorch's; None if not.

    All of them to float, and to them all floats that are one of them, halfway to the next, or just beside
    either.
    """
    for dtype in (torch.float16, torch.bfloat16):
        halves = torch.arange(2**16).to(torch.uint16).view(dtype)
        try:
            problem = _differing(halves, emulator.widen(halves, source), halves.float())
            exact = halves.float()[halves.isfinite()].sort().values
            halfway = (exact[1:] + exact[:-1]) / 2
            centres = torch.cat([exact, halfway, torch.tensor([65519.0, 65520.0, 1e9, math.inf, math.nan])])
            x = torch.cat(
                [centres, *(torch.nextafter(centres, torch.tensor(to)) for to in (math.inf, -math.inf))]
            )
            problem = problem or _differing(x, emulator.narrow(x, dtype, source), x.to(dtype))
        except emulator.EmulatorError as error:
            problem = str(error)
        if problem:
            return problem
    return None


def _differing(x: Tensor, got: Tensor, wanted: Tensor) -> str | None:
    same = (got == wanted) & (got.signbit() == wanted.signbit()) | (got.isnan() & wanted.isnan())
    if same.all():
        return None
    first = int((~same).nonzero()[0])
    return f"{x[first].item()!r} in {x.dtype} becomes {got[first].item()!r} in {got.dtype}"


FAR = 2**31 + 64  # numbers: an index of 32 bits does not reach it


def index_problem(
    source: pathlib.Path = emulator.KERNEL_SOURCE, launcher: types.ModuleType = launch
) -> str | None:
    """What is wrong with arrays in which an index needs more than 32 bits; None if nothing.

    They are terabytes of addresses and little memory: only the last head's blocks run.
    """
    checks = (_far_batches, _many_weights, _many_rows)
    try:
        problems = (check(source, launcher) for check in checks)
        return next((problem for problem in problems if problem), None)
    except emulator.EmulatorError as error:
        return str(error)


def _far_batches(source: pathlib.Path, launcher: types.ModuleType) -> str | None:
    """The second batch entry of q, k, v, out_grad and the mask lies FAR numbers after the first."""
    case = Case(torch.bfloat16, 8, 8, n=9, m=12, mask="full", heads=1, weights=False)
    inputs = cases.draw(case, seed=1)

    def place(name: str, x: Tensor) -> Tensor:
        return device.place(name, x, (FAR, *x.stride()[1:]))

    with emulator.Emulator(source=source) as device:
        got = {name: x.clone() for name, x in cases.run(device, inputs.map(place), False, launcher).items()}
    return _far_off("far batches", got, inputs)


def _many_weights(source: pathlib.Path, launcher: types.ModuleType) -> str | None:
    """So many heads that the last one's weights begin after FAR numbers."""
    case = Case(torch.bfloat16, 8, 8, n=64, m=64, batch=1, heads=1)
    heads = FAR // (case.n * case.m) + 2
    inputs = cases.draw(case, seed=2)
    assert inputs.weights_grad is not None
    with emulator.Emulator(source=source, last_blocks=16) as device:
        shared = dataclasses.replace(inputs, weights_grad=None).map(
            lambda name, x: x.expand(-1, heads, -1, -1)
        )
        shared.weights_grad = device.empty((1, heads, case.n, case.m), case.dtype)
        shared.weights_grad[:, -1] = inputs.weights_grad[:, 0]
        got = cases.run(device, shared, False, launcher)
        got = {name: x[:, -1:].clone() for name, x in got.items()}
    return _far_off("many weights", got, inputs)


def _many_rows(source: pathlib.Path, launcher: types.ModuleType) -> str | None:
    """So many heads that the last one's rows, and the numbers of its output, are FAR from the first."""
    case = Case(torch.bfloat16, 8, 8, n=32, m=5, batch=1, heads=1, weights=False)
    heads = FAR // case.n + 2
    inputs = cases.draw(case, seed=3)
    with emulator.Emulator(source=source, last_blocks=16) as device:
        q, k, v = (x.expand(-1, heads, -1, -1) for x in (inputs.q, inputs.k, inputs.v))
        out = launcher.forward(device, q, k, v, None, None, False, False)[0][:, -1:].clone()
    return _far_off("many rows", {"out": out}, inputs)


def _far_off(what: str, got: dict[str, Tensor], inputs: cases.Inputs) -> str | None:
    errors = rounding.judge(got, inputs, causal=False)
    wrong = [name for name, error in errors.items() if error.share > 1]
    return f"{what}: {', '.join(wrong)} wrong in the last head or batch entry" if wrong else None
