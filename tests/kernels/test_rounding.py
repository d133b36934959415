"""What rounding may do: sound arithmetic never goes beyond it, small faults do."""

import dataclasses
import math
import random

import pytest
import torch
from torch import Tensor

from kernels import cases, formula, launch, rounding
from kernels.cases import Case

SEED = random.SystemRandom().randrange(2**31)
CASES = (
    Case(d_k=64, d_v=32, n=33, m=65, mask="full", lengths="with 0", causal=True),
    Case(d_k=8, d_v=8, n=1, m=300, weights=False),
    Case(d_k=16, d_v=16, n=120, m=3, mask="rows hidden"),
)


def by_the_formula(inputs: cases.Inputs, causal: bool) -> dict[str, Tensor]:
    """All results, computed in the inputs' type, float32 for half types, and stored in it."""
    dtype = inputs.q.dtype
    compute = launch.accumulate_type(dtype)
    q, k, v, dout = (x.to(compute) for x in (inputs.q, inputs.k, inputs.v, inputs.out_grad))
    n, m = q.shape[-2], k.shape[-2]
    mask = formula.additive_mask(
        n, m, mask=inputs.mask, key_lengths=inputs.key_lengths, causal=causal, like=q
    )
    out, p = formula.attention(q, k, v, mask)
    dw = None if inputs.weights_grad is None else inputs.weights_grad.to(compute)
    results = (out, p, *formula.gradients(q, k, v, p, dout, dw))
    return {name: x.to(dtype) for name, x in zip(cases.RESULTS, results, strict=True)}


@pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_sound_arithmetic_stays_within_it(number: int, dtype: torch.dtype) -> None:
    case = dataclasses.replace(CASES[number], dtype=dtype)
    for seed in range(SEED, SEED + 20):
        inputs = cases.draw(case, seed)
        found = rounding.judge(by_the_formula(inputs, case.causal), inputs, case.causal)
        assert max(error.share for error in found.values()) < 1, f"seed {seed}: {found}"


@pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
@pytest.mark.parametrize("name", cases.RESULTS)
def test_one_element_that_is_off_by_little_goes_beyond_it(name: str, dtype: torch.dtype) -> None:
    """Off by 100 roundings in float32 and float64, by two steps in the half types."""
    case = Case(dtype, n=33, m=20, mask="keys")
    inputs = cases.draw(case, SEED)
    got = by_the_formula(inputs, case.causal)
    assert rounding.judge(got, inputs, case.causal)[name].share < 1
    x = got[name].flatten()
    x[x.abs().argmax()] *= 1 + (2 if dtype.itemsize == 2 else 100) * 2 * torch.finfo(dtype).eps
    got[name] = x.view_as(got[name])
    assert rounding.judge(got, inputs, case.causal)[name].share > 1, f"seed {SEED}"


def test_half_types_must_round_to_nearest() -> None:
    case = Case(torch.bfloat16, n=33, m=20)
    inputs = cases.draw(case, SEED)
    exact = rounding.reference(inputs, case.causal)["out"][0].float()
    cut_off = (exact.view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()
    assert rounding.judge({"out": exact.bfloat16()}, inputs, case.causal)["out"].share < 1
    assert rounding.judge({"out": cut_off}, inputs, case.causal)["out"].share > 10


def test_what_is_hidden_must_be_zero_and_nothing_may_be_nan() -> None:
    case = Case(n=5, m=7, causal=True)
    inputs = cases.draw(case, SEED)
    got = by_the_formula(inputs, case.causal)
    got["weights"][..., 0, 1] = 1e-30
    got["out"][..., 0, 0] = math.nan
    found = rounding.judge(got, inputs, case.causal)
    assert found["weights"].share == math.inf
    assert found["out"].share == math.inf


def test_a_report_of_many_results() -> None:
    found = [
        (Case(), {"out": rounding.Error(0.1, 2e-6), "weights": rounding.Error(0.2, 1e-7)}),
        (Case(), {"out": rounding.Error(0.3, 1e-8)}),
        (Case(torch.float64), {}),
    ]
    sums = rounding.totals(found)
    assert sums == {torch.float32: rounding.Total(3, 0.3, 2e-6, 2)}
    assert rounding.shares(sums) == "at most float 0.30 of what rounding may do"
    assert rounding.relative(sums) == {"float": "2 of 3 within 1.0e-06, all within 2.0e-06"}
