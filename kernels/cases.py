"""Cases that attention.cu must get right, drawn at random (how far off a result may be: rounding.py).

The tests and `python -m kernels.check` run them in the emulator, `python -m kernels.gpu_check` on a GPU.
"""

import dataclasses
import itertools
import math
import random
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels import launch

SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 120, 127, 128, 129, 1024)  # around every tile and warp
MASKS = ("none", "keys", "queries", "heads", "full", "rows hidden")
LENGTHS = ("none", "some", "with 0")
LAYOUTS = (
    *("heads first", "heads last", "packed", "16 bytes off"),
    *("unaligned", "rows apart", "numbers apart"),  # the launcher copies these
)
GIVEN = ("as computed", "wider")
ORDERS = ("in order", "reverse", "random")


@dataclasses.dataclass(frozen=True)
class Case:
    dtype: torch.dtype = torch.float32
    d_k: int = 16
    d_v: int = 16
    n: int = 17
    m: int = 33
    mask: str = "none"
    lengths: str = "none"
    causal: bool = False
    layout: str = "heads first"
    given: str = "as computed"  # types of mask and lengths: as the kernel takes them, or "wider"
    weights: bool = True  # ask for the weights, and use them in the loss too
    order: str = "in order"
    at_end: bool = True  # arrays end, or begin, at a guard page
    batch: int = 2
    heads: int = 2


@dataclasses.dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    key_lengths: Tensor | None
    out_grad: Tensor
    weights_grad: Tensor | None

    def map(self, change: Callable[[str, Tensor], Tensor]) -> "Inputs":
        changed: dict[str, Any] = {
            field.name: None if (x := getattr(self, field.name)) is None else change(field.name, x)
            for field in dataclasses.fields(self)
        }
        return Inputs(**changed)


RESULTS = ("out", "weights", "q_grad", "k_grad", "v_grad")


def draw(case: Case, seed: int) -> Inputs:
    """Standard normal inputs in the case's layout."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    b, h, n, m = case.batch, case.heads, case.n, case.m
    if case.layout == "packed" and n == m and case.d_k == case.d_v:
        q, k, v = normal(b, n, 3, h, case.d_k).permute(2, 0, 3, 1, 4)  # as one product makes them
    else:
        q, k, v = (
            laid_out(normal(b, h, length, d), case.layout)
            for length, d in ((n, case.d_k), (m, case.d_k), (m, case.d_v))
        )
    shapes = {"keys": (b, 1, 1, m), "queries": (n, m), "heads": (h, n, m), "full": (b, h, n, m)}
    mask = None
    if case.mask == "rows hidden":
        hidden = torch.rand((n, m), generator=g) < 0.3
        hidden[torch.rand(n, generator=g) < 0.4] = True
        mask = torch.zeros(n, m, dtype=launch.accumulate_type(case.dtype)).masked_fill(hidden, -math.inf)
    elif case.mask == "one key":  # all others weigh next to nothing, and only together
        mask = torch.full((m,), -21.0, dtype=launch.accumulate_type(case.dtype))
        mask[0] = 0
    elif case.mask != "none":
        mask = normal(*shapes[case.mask], dtype=launch.accumulate_type(case.dtype))
        mask = mask.masked_fill(torch.rand(mask.shape, generator=g) < 0.2, -math.inf)
    lengths = None
    if case.lengths != "none":
        least = 0 if case.lengths == "with 0" else 1
        lengths = torch.randint(least, m + 1, (b,), generator=g, dtype=torch.int32)
        lengths[0] = least if case.lengths == "with 0" else m
    out_grad = laid_out(normal(b, h, n, case.d_v), case.layout)
    weights_grad = laid_out(normal(b, h, n, m), case.layout) if case.weights else None
    if case.given == "wider":
        mask = None if mask is None else mask.double()
        lengths = None if lengths is None else lengths.long()
    return Inputs(q, k, v, mask, lengths, out_grad, weights_grad)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers as (batch, heads, length, d), elsewhere in memory."""
    if layout == "heads first":
        return x
    if layout in ("unaligned", "16 bytes off"):  # no multiple of 16 bytes, or of 32
        skipped = 1 if layout == "unaligned" else 16 // x.element_size()
        return torch.cat([x.new_zeros(skipped), x.reshape(-1)])[skipped:].view(x.shape)
    if layout == "rows apart":
        return torch.cat([x, x.new_zeros(*x.shape[:-1], 1)], dim=-1)[..., :-1]
    if layout == "numbers apart":
        return torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0]
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def run(
    device: launch.Device, inputs: Inputs, causal: bool, launcher: types.ModuleType = launch
) -> dict[str, Tensor]:
    """Forward and backward of the kernels on a device, through kernels.launch or a changed copy of it."""
    x, wants_weights = inputs, inputs.weights_grad is not None
    out, log_sum_exp, weights = launcher.forward(
        device, x.q, x.k, x.v, x.mask, x.key_lengths, causal, wants_weights
    )
    gradients = launcher.backward(
        *(device, x.out_grad, x.weights_grad, x.q, x.k, x.v, out, log_sum_exp, weights),
        *(x.mask, x.key_lengths, causal),
    )
    results = dict(zip(RESULTS, (out, weights, *gradients), strict=True))
    return results if wants_weights else {name: x for name, x in results.items() if name != "weights"}


def covering(factors: dict[str, Sequence[Any]], rng: random.Random, tries: int = 40) -> list[dict[str, Any]]:
    """Few combinations of the factors' values in which every pair of values occurs (greedy)."""
    names = list(factors)

    def pairs(row: dict[str, Any]) -> list[Any]:
        return [((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)]

    open_pairs = dict.fromkeys(
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(factors[a], factors[b])
    )
    rows = []
    while open_pairs:
        anchor = dict(next(iter(open_pairs)))
        drawn = ({name: rng.choice(factors[name]) for name in names} | anchor for _ in range(tries))
        best = max(drawn, key=lambda row: sum(pair in open_pairs for pair in pairs(row)))
        rows.append(best)
        for pair in pairs(best):
            open_pairs.pop(pair, None)
    return rows


def grid(seed: int, repeats: int, sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Cases in which every (n, m) occurs `repeats` times, with every pair of values of the other factors."""
    rng = random.Random(seed)
    others: dict[str, Sequence[Any]] = {
        "dtype": list(launch.TYPES),
        "head_sizes": list(itertools.product(launch.HEAD_SIZES, repeat=2)),
        "mask": MASKS,
        "lengths": LENGTHS,
        "causal": (False, True),
        "layout": LAYOUTS,
        "given": GIVEN,
        "weights": (False, True),
        "order": ORDERS,
        "at_end": (False, True),
    }
    pool: list[dict[str, Any]] = []
    for n, m in list(itertools.product(sizes, repeat=2)) * repeats:
        if not pool:
            pool = covering(others, rng)
            rng.shuffle(pool)
        yield shrink(
            Case(n=n, m=m, **named(pool.pop()), batch=rng.choice((1, 2)), heads=rng.choice((1, 2, 3)))
        )


def pairwise(seed: int, sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Few cases in which every pair of values of any two factors occurs, except that of n and m."""
    rng = random.Random(seed)
    factors: dict[str, Sequence[Any]] = {
        "n": sizes,
        "dtype": list(launch.TYPES),
        "d_k": launch.HEAD_SIZES,
        "d_v": launch.HEAD_SIZES,
        "mask": MASKS,
        "lengths": LENGTHS,
        "causal": (False, True),
        "layout": LAYOUTS,
        "given": GIVEN,
        "weights": (False, True),
        "order": ORDERS,
        "at_end": (False, True),
    }
    for row in covering(factors, rng):
        yield shrink(Case(**row, m=rng.choice(sizes), batch=rng.choice((1, 2)), heads=rng.choice((1, 2, 3))))


def named(row: dict[str, Any]) -> dict[str, Any]:
    d_k, d_v = row.pop("head_sizes")
    return row | {"d_k": d_k, "d_v": d_v}


def shrink(case: Case) -> Case:
    """One head is enough for a large case."""
    large = case.n * case.m > 40_000
    return dataclasses.replace(case, batch=1, heads=1) if large else case
