"""Runs cases in the emulator, thread order by thread order, and says what is wrong with the results."""

import dataclasses
import math
import pathlib

import torch
from torch import Tensor

from kernels import cases, emulator, rounding
from kernels.cases import Case
from kernels.rounding import Error


@dataclasses.dataclass(frozen=True)
class Outcome:
    case: Case
    seed: int
    errors: dict[str, Error]
    problem: str | None  # a barrier, a shuffle, an access, an element that nobody wrote, a result too far off

    @property
    def margin(self) -> float:
        """The largest error as a multiple of what rounding may do; infinite where the emulator stopped."""
        return max((error.share for error in self.errors.values()), default=math.inf)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {error.relative:.2g}" for name, error in self.errors.items())
        return f"{self.problem or 'right'}: {self.case}, seed {self.seed}{': ' + found if found else ''}"


def results(
    case: Case, inputs: cases.Inputs, seed: int = 0, source: pathlib.Path = emulator.KERNEL_SOURCE
) -> dict[str, Tensor]:
    """What the kernels make of `inputs`, with the case's thread order and guard pages."""
    device = emulator.Emulator(case.order, seed=seed, at_end=case.at_end, source=source)
    with device:
        got = cases.run(device, inputs.map(device.place), case.causal)
        return {name: x.clone() for name, x in got.items()}


def outcome(case: Case, seed: int, source: pathlib.Path = emulator.KERNEL_SOURCE) -> Outcome:
    """Draw inputs from the seed, emulate, and hold the results to the float64 formula."""
    inputs = cases.draw(case, seed)
    try:
        got = results(case, inputs, seed, source)
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


def rounding_problem(source: pathlib.Path = emulator.KERNEL_SOURCE) -> str | None:
    """How the kernel's bfloat16 differs from PyTorch's, on all of them and floats between; None if not."""
    low, high = torch.arange(2**16) << 16, torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (low[:, None] | high).reshape(-1)
    x = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)
    rounded, wanted = emulator.to_bfloat16(x, source), x.to(torch.bfloat16)
    same = (rounded == wanted) | (rounded.isnan() & wanted.isnan())
    if same.all():
        return None
    return f"float {x[~same][0].item()!r} becomes bfloat16 {rounded[~same][0].item()!r}"
