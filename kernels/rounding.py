"""The rounding error that is allowed between the kernels' results and the formula, element by element.

`judge` holds results to the formula in float64. What they may be off by is computed for each element, with
the float64 numbers themselves, by following every rounding to the end. One rounding is off by at most u of
its number, evenly, so with a standard deviation of u / √3; roundings are independent, so variances add
(Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). To first order:

- A sum of n terms rounds n partial sums. In a random order the mean of their squares is below
  (total² + sum of the terms' squares) / 2. The kernel adds up chunks, and so rounds less.
- A row's total is a compensated sum of chunks: only the sums within a chunk round.
- A weight's relative error is the absolute error of its score, plus that of the logarithm of its row's total.
  The latter is the same for the whole row, so it is followed apart.
- exp is good to two units in the last place.
- An element may be off by SIGMAS standard deviations, and by half a step of the type that it is stored in.

The allowance is large only where terms cancel or scores are large. A number that is 0 because something is
hidden must be 0.
"""

import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kernels import formula, launch
from kernels.cases import Case, Inputs

CHUNK = 8  # the most numbers that attention.cu adds up before it adds their sum to a row's total
SIGMAS = 7  # a normal distribution goes beyond once in 4e11 draws

# For the report: where nothing cancels, the largest error is below this share of the largest number.
CLOSE = {
    torch.float64: 1e-13,
    torch.float32: 1e-6,
    torch.float16: torch.finfo(torch.float16).eps / 2,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps / 2,
}


@dataclasses.dataclass(frozen=True)
class Error:
    """The error of one result; infinite for a NaN."""

    share: (
        float  # of what rounding may do, beyond half a step of the stored type; above 1 the result is wrong
    )
    relative: float  # the largest error over the largest number of the reference


@torch.no_grad()
def judge(got: dict[str, Tensor], inputs: Inputs, causal: bool) -> dict[str, Error]:
    """Compare each result (`out`, `weights`, `q_grad`, `k_grad`, `v_grad`) with the formula."""
    results, found = reference(inputs, causal), {}
    for name, x in got.items():
        wanted, variance = results[name]
        error = (x.double().cpu() - wanted).abs()
        beyond = (error - half_step(wanted, x.dtype)).clamp(min=0)
        share = torch.where(beyond > 0, beyond / (SIGMAS * variance.sqrt()), 0).max().item()
        relative = error.max().item() / (wanted.abs().max().item() or 1.0)
        found[name] = Error(share, relative) if math.isfinite(relative) else Error(math.inf, math.inf)
    return found


def half_step(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of storing each number: half a step of a half type; else only what underflows."""
    info = torch.finfo(dtype)
    if dtype == torch.float64:
        return torch.full_like(x, 1e-130)  # variances of such numbers underflow, and the reference may too
    if dtype == torch.float32:
        return info.smallest_normal * (x != 0)
    return (x.abs().clamp(min=info.smallest_normal) * info.eps / 2).where(x != 0, 0)


@dataclasses.dataclass(frozen=True)
class Total:
    """Of many results of one type."""

    results: int
    share: float  # the largest
    relative: float  # the largest
    close: int  # results with a relative error within CLOSE

    def __add__(self, other: "Total") -> "Total":
        return Total(
            *(self.results + other.results, max(self.share, other.share)),
            *(max(self.relative, other.relative), self.close + other.close),
        )


def totals(found: Iterable[tuple[Case, dict[str, Error]]]) -> dict[torch.dtype, Total]:
    """The errors of all cases, by type."""
    sums: dict[torch.dtype, Total] = {}
    for case, errors in found:
        for error in errors.values():
            one = Total(1, error.share, error.relative, error.relative <= CLOSE[case.dtype])
            sums[case.dtype] = sums.get(case.dtype, Total(0, 0, 0, 0)) + one
    return sums


def shares(sums: dict[torch.dtype, Total]) -> str:
    """For a report: the largest errors as multiples of the rounding allowance."""
    each = (f"{launch.TYPES[dtype]} {total.share:.2f}" for dtype, total in sums.items())
    return f"at most {', '.join(each)} of what rounding may do"


def relative(sums: dict[torch.dtype, Total]) -> dict[str, str]:
    """For a report: of each type, how many results are close without any allowance, and the largest error."""
    found = {}
    for dtype, total in sums.items():
        close = f"{total.close} of {total.results} within {CLOSE[dtype]:.1e}"
        found[launch.TYPES[dtype]] = f"{close}, all within {total.relative:.1e}"
    return found


@dataclasses.dataclass(frozen=True)
class Roundings:
    """Variances of one rounding, relative to the square of the number."""

    computing: float
    storing: float  # to a half type; 0 for the others

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Roundings":
        def variance(x: torch.dtype) -> float:
            return (torch.finfo(x).eps / 2) ** 2 / 3

        if dtype == torch.float64:
            return cls(4 * variance(dtype), 0)  # twice the deviation: the reference rounds just as much
        return cls(variance(torch.float32), variance(dtype) if dtype.itemsize == 2 else 0)

    def sum(self, terms: int, total: Tensor, squares: Tensor) -> Tensor:
        """The variance of a sum, from its value and the sum of its terms' squares."""
        return self.computing * (terms + 1) / 2 * (total**2 + squares)


def reference(inputs: Inputs, causal: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """Each result by the formula in float64, and the variance that rounding gives a kernel's result."""
    x = inputs
    q, k, v, dout = (one.double() for one in (x.q, x.k, x.v, x.out_grad))
    n, d_k, m = *q.shape[-2:], k.shape[-2]
    mask = formula.additive_mask(n, m, mask=x.mask, key_lengths=x.key_lengths, causal=causal, like=q)
    out, p = formula.attention(q, k, v, mask)
    dw = torch.zeros_like(p) if x.weights_grad is None else x.weights_grad.double()
    dq, dk, dv = formula.gradients(q, k, v, p, dout, dw)
    results = {"out": out, "weights": p, "q_grad": dq, "k_grad": dk, "v_grad": dv}

    rounding = Roundings.of(x.q.dtype)
    u2, p2 = rounding.computing, p**2
    dots = q @ k.mT / math.sqrt(d_k)
    scores = dots if mask is None else dots + mask
    hidden = scores == -math.inf
    below_top = scores.amax(-1, keepdim=True) - scores
    squares = (q**2 @ (k**2).mT) / d_k
    # Of the logarithm of exp(score - top), in which a rounded scale scales the dot product, and of the total.
    of_log = rounding.sum(d_k, dots, squares) + u2 * (2 * dots**2 + scores**2 + below_top**2 + 3 * 4**2)
    of_log = of_log.masked_fill(hidden, 0)  # (..., n, m)
    of_total = (p2 * of_log).sum(-1, keepdim=True) + 3 * u2  # (..., n, 1)
    of_total = of_total + rounding.sum(min(m, CHUNK), p.sum(-1, keepdim=True), p2.sum(-1, keepdim=True))
    of_out_sum = rounding.sum(m, out, p2 @ v**2)
    of_out = (p2 * of_log) @ v**2 + out**2 * of_total + of_out_sum
    of_weights = p2 * (of_log + of_total)
    gradients = _of_gradients(rounding, q, k, v, dout, dw, p, of_log, of_total, of_out_sum)
    variances = (of_out, of_weights, *gradients)
    return {name: (results[name], one) for name, one in zip(results, variances, strict=True)}


def _of_gradients(
    rounding: Roundings,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dw: Tensor,
    p: Tensor,
    of_log: Tensor,
    of_total: Tensor,
    of_out_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Variances of dQ, dK and dV; dS = P (dP - delta), with delta from the stored output and weights."""
    n, m, d_v, u2, p2 = *p.shape[-2:], v.shape[-1], rounding.computing, p**2
    dp = dout @ v.mT + dw
    delta = (p * dp).sum(-1, keepdim=True)
    ds = p * (dp - delta)
    of_dp = rounding.sum(d_v, dp - dw, dout**2 @ (v**2).mT) + u2 * dp**2
    stored = (dout**2 * (p @ v) ** 2).sum(-1, keepdim=True) + (p2 * dw**2).sum(-1, keepdim=True)
    of_delta = (
        (of_log * ds**2).sum(-1, keepdim=True)  # what is off in the weights moves delta = sum_j P dP
        + delta**2 * of_total
        + (dout**2 * of_out_sum).sum(-1, keepdim=True)
        + rounding.storing * stored
        + rounding.sum(d_v + m, delta, stored)
    )
    of_ds = ds**2 * (of_log + 3 * u2) + p2 * of_dp  # but for what is common to the row
    of_row = ds**2 * of_total + p2 * of_delta
    dq = ds @ k  # times √d_k, as dK below
    of_dq = of_ds @ k**2 + of_delta * (p @ k) ** 2 + dq**2 * of_total + rounding.sum(m, dq, ds**2 @ k**2)
    of_dk = (of_ds + of_row).mT @ q**2 + rounding.sum(n, ds.mT @ q, (ds**2).mT @ q**2)
    of_dv = (p2 * (of_log + of_total)).mT @ dout**2 + rounding.sum(n, p.mT @ dout, p2.mT @ dout**2)
    d_k = q.shape[-1]
    return of_dq / d_k, of_dk / d_k, of_dv
