"""attention.cu itself, run thread by thread in the emulator, against the formula in float64.

Inputs are new in each run; a failure prints the case and its seed, and LARKFIELD_SEED=<seed> draws it again.
"""

import dataclasses
import math
import os
import random

import pytest
import torch

from kernels import cases, emulate, emulator, launch, rounding
from kernels.cases import Case

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")

# Which cases there are is fixed (workers of pytest-xdist must agree on them), the numbers in them are not.
FIXED = 1
SEED = int(os.environ.get("LARKFIELD_SEED", random.SystemRandom().randrange(2**31)))
BELOW_1024 = tuple(size for size in cases.SIZES if size < 1024)


def check(case: Case, seed: int = SEED) -> None:
    outcome = emulate.outcome(case, seed)
    assert outcome.problem is None, str(outcome)


@pytest.mark.parametrize("part", range(8))
def test_every_pair_of_values_of_any_two_factors(part: int) -> None:
    for case in list(cases.pairwise(FIXED, BELOW_1024))[part::8]:
        check(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(32))
def test_every_n_with_every_m(part: int) -> None:
    for case in list(cases.grid(FIXED, repeats=2))[part::32]:
        check(case)


@pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
def test_tickets_with_padding(dtype: torch.dtype) -> None:
    check(Case(dtype, 16, 16, 120, 120, lengths="some", layout="packed", batch=2, heads=4, order="random"))


def test_decoder_only_causal() -> None:
    check(Case(torch.float32, 64, 64, 1024, 1024, causal=True, layout="packed", batch=1, heads=1))


@pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
@pytest.mark.parametrize("sizes", [(16, 16), (64, 32)])
def test_thread_order_changes_no_bit(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    case = Case(dtype, *sizes, n=70, m=129, mask="full", lengths="some", causal=True)
    assert emulate.order_matters(case, SEED) is None, f"seed {SEED}"


@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_grids_for_a_device(multiprocessors: int) -> None:
    """Other rows a thread and other blocks than where nothing is known of the device."""
    case = Case(n=200, m=150, mask="full", lengths="some")
    inputs = cases.draw(case, SEED)
    with emulator.Emulator(multiprocessors=multiprocessors) as device:
        got = {name: x.clone() for name, x in cases.run(device, inputs, case.causal).items()}
        rows = [one.variant.rows for one in device.launches]
    assert max(error.share for error in rounding.judge(got, inputs, case.causal).values()) < 1, f"seed {SEED}"
    assert rows == ([1, 1, 1] if multiprocessors == 132 else [2, 2, 2])


@pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
@pytest.mark.parametrize("weights", [False, True])
def test_one_backward_kernel_for_dq_dk_and_dv(dtype: torch.dtype, weights: bool) -> None:
    """Where a block has room for all keys, up to the last one, and none beyond."""
    for d in (8, 16, 64):
        room = max(m for m in range(1, 200) if launch.plan_all_keys(dtype, 1, 1, m, d, d))
        for n, m, causal in ((33, room, False), (128, room - 1, True), (31, room + 1, False)):
            case = Case(dtype, d, d, n, m, lengths="with 0", causal=causal, weights=weights, order="random")
            check(case)


NAIVE = Case(d_k=16, d_v=16, n=33, m=70, mask="full", lengths="some", order="reverse")


@pytest.mark.parametrize(
    "case",
    [
        *(dataclasses.replace(NAIVE, dtype=dtype) for dtype in launch.TYPES),
        Case(d_k=8, d_v=64, n=65, m=17, mask="rows hidden", lengths="with 0", causal=True),
        Case(n=1, m=1),
    ],
    ids=str,
)
def test_the_naive_kernel(case: Case) -> None:
    assert emulate.naive_problem(case, SEED) is None, f"seed {SEED}"


def test_the_naive_kernel_and_the_fast_one_agree() -> None:
    inputs = cases.draw(Case(n=40, m=50, mask="heads", causal=True), SEED)
    x = (inputs.q, inputs.k, inputs.v, inputs.mask, None, True)
    with emulator.Emulator() as device:
        naive, (fast, _, _) = launch.naive(device, *x), launch.forward(device, *x, False)
        torch.testing.assert_close(naive, fast, rtol=1e-5, atol=1e-5)


def test_one_query_or_one_key() -> None:
    for n, m in ((1, 1), (1, 129), (129, 1)):
        check(Case(n=n, m=m, causal=True, lengths="with 0"))


@pytest.mark.slow
def test_8192_keys_and_8192_queries() -> None:
    check(Case(d_k=8, d_v=8, n=64, m=8192, batch=1, heads=1, weights=False))
    check(Case(d_k=8, d_v=8, n=8192, m=64, batch=1, heads=1, weights=False))


@pytest.mark.slow
def test_8192_by_8192_causal() -> None:
    """Too large for a float64 matrix: the last rows are held to the formula."""
    inputs = cases.draw(Case(d_k=8, d_v=8, n=8192, m=8192, batch=1, heads=1, weights=False), SEED)
    with emulator.Emulator() as device:
        x = inputs.map(device.place)
        out, _, _ = launch.forward(device, x.q, x.k, x.v, None, None, True, False)
        got = out[:, :, -16:].clone()
    rows = dataclasses.replace(inputs, q=inputs.q[:, :, -16:], out_grad=inputs.out_grad[:, :, -16:])
    hidden = torch.arange(8192)[None, :] > torch.arange(8192 - 16, 8192)[:, None]
    rows.mask = torch.zeros(16, 8192).masked_fill(hidden, -math.inf)
    assert rounding.judge({"out": got}, rows, causal=False)["out"].share < 1, f"seed {SEED}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_of_ten_thousand_do_not_overflow(dtype: torch.dtype) -> None:
    """Scores of ±1e4 carry thousands of roundings into the exponent, and into the weights."""
    case = Case(dtype, d_k=16, d_v=16, n=33, m=65, lengths="with 0", causal=True)
    inputs = cases.draw(case, SEED)
    inputs.q *= 1.1e4 / (inputs.q @ inputs.k.transpose(-2, -1) / 4).abs().max()
    scores = inputs.q.double() @ inputs.k.double().transpose(-2, -1) / 4
    assert scores.abs().max() > 1e4
    got = emulate.results(case, inputs)
    assert all(x.isfinite().all() for x in got.values())
    found = rounding.judge(got, inputs, case.causal)
    assert max(error.share for error in found.values()) < 1, f"seed {SEED}: {found}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_mask_of_the_largest_negative_number_hides_no_whole_row(dtype: torch.dtype) -> None:
    """As in PyTorch: such a row gives equal weights to all its keys, while -inf hides them."""
    case = Case(dtype, n=3, m=33)
    inputs = cases.draw(case, SEED)
    inputs.mask = torch.full((3, 33), torch.finfo(dtype).min, dtype=dtype)
    inputs.mask[1] = -math.inf
    inputs.mask[2, 5] = 0
    weights = emulate.results(case, inputs)["weights"]
    torch.testing.assert_close(weights[:, :, 0], torch.full_like(weights[:, :, 0], 1 / 33))
    assert (weights[:, :, 1] == 0).all()
    assert (weights[:, :, 2, 5] == 1).all()


def test_a_row_that_may_read_nothing() -> None:
    case = Case(n=5, m=7, lengths="with 0", mask="rows hidden", batch=2)
    inputs = cases.draw(case, SEED)
    assert inputs.key_lengths is not None
    assert inputs.key_lengths[0] == 0
    got = emulate.results(case, inputs)
    for name, x in got.items():
        assert (x[0] == 0).all(), f"{name} of a batch entry without keys"
        assert not x.isnan().any()


def test_what_lies_in_the_padding_does_not_matter() -> None:
    """Not even NaN: keys and values past the length are never used."""
    case = Case(n=20, m=40, lengths="some", batch=2)
    inputs = cases.draw(case, SEED)
    assert inputs.key_lengths is not None
    clean = emulate.results(case, inputs)
    padding = torch.arange(40) >= inputs.key_lengths[:, None]
    for x in (inputs.k, inputs.v):
        x[padding[:, None, :, None].expand_as(x)] = math.nan
    dirty = emulate.results(case, inputs)
    assert all(torch.equal(clean[name], dirty[name]) for name in clean), f"seed {SEED}"


def test_a_nan_is_not_hidden() -> None:
    case = Case(n=8, m=8, weights=False)
    inputs = cases.draw(case, SEED)
    inputs.q[0, 0, 3, 0] = math.nan
    out = emulate.results(case, inputs)["out"]
    assert out[0, 0, 3].isnan().all()
    assert out[0, 0, 2].isfinite().all()


def test_half_types_convert_as_pytorchs_do() -> None:
    """The conversions of attention.cu, both ways: every half number, and the floats where rounding turns."""
    assert emulate.conversion_problem() is None


def test_indices_beyond_32_bits() -> None:
    assert emulate.index_problem() is None


def test_a_long_row_whose_keys_weigh_next_to_nothing() -> None:
    """Added up one by one, they are lost beside the one large weight: the total is compensated."""
    check(Case(n=8, m=32768, d_k=8, d_v=8, mask="one key", batch=1, heads=1))


def test_rows_of_weights_sum_to_one() -> None:
    case = Case(n=64, m=129, causal=True)
    weights = emulate.results(case, cases.draw(case, SEED))["weights"]
    assert (weights.sum(-1) - 1).abs().max() < 1e-6
    assert (weights.triu(1) == 0).all()
