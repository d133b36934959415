"""The emulator reports what is wrong, and the checks catch every small break of kernel and launcher."""

import pathlib
import re

import pytest
import torch

from kernels import cases, emulate, emulator, launch, mutate
from kernels.cases import Case

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")
SOURCE = emulator.KERNEL_SOURCE.read_text(encoding="utf-8")
CASE = Case(n=65, m=70, d_k=64, d_v=32)  # several threads to a row, several blocks, a partial tile


def broken(folder: pathlib.Path, old: str, new: str, occurrence: int = 0) -> pathlib.Path:
    path = folder / "broken.cu"
    path.write_text(mutate.Mutation("", old, new, occurrence).apply(SOURCE), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("__syncthreads();", "if (threadIdx.x) __syncthreads();", "waits at"),
        ("__syncthreads();", "if (threadIdx.x == 3) return; __syncthreads();", "1 have left"),
        ("0xffffffff, x", "0x7fffffff, x", "lacks its own lane 31"),
        ("0xffffffff, x", "1u << threadIdx.x % 32, x", "which is not in it"),
        ("0xffffffff, x, step", "threadIdx.x % 2 ? 0xffffffff : 0x7fffffff, x, step", "mask 0x"),
        ("first + row < end", "true", "touches byte .* of `k`"),
        ("&tile[first + (x ^ lane) + g * LANES]", "&tile[COUNT]", "index .* is outside its array"),
        ("p.q.at(at.batch, at.head, at.row(r)), at.lane", "p.q.data - 8, at.lane", "touches byte -"),
        ("store_part<D_V, LANES>(p.out.at", "store_part<D_V, LANES>(p.v.at", "is read-only"),
        ("p.log_sum_exp[at.query(p, at.row(r))] =", "auto unused =", "NaN"),
        (
            "vector_at<T, PACK>(rows.at(",
            "vector_at<T, PACK>(1 + rows.at(",
            "no multiple of the 16 bytes",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: pathlib.Path, old: str, new: str, message: str) -> None:
    case = CASE if "- 8" not in new else Case(n=65, m=70, d_k=64, d_v=32, at_end=False)
    problem = emulate.outcome(case, 1, broken(tmp_path, old, new)).problem
    assert problem is not None
    assert re.search(message, problem), problem


def test_the_kernel_itself_passes() -> None:
    assert emulate.outcome(CASE, 1).problem is None


def test_threads_that_depend_on_their_order_are_found(tmp_path: pathlib.Path) -> None:
    path = broken(tmp_path, "__syncthreads();  // until all are done with the previous tile", "")
    case = Case(n=200, m=200, batch=1, heads=1)
    assert emulate.outcome(case, 1, path).problem or emulate.order_matters(case, 1, path)


def test_a_mutation_whose_place_is_gone_says_so() -> None:
    with pytest.raises(ValueError, match="bring the mutation up to date"):
        mutate.Mutation("", "no such line", "").apply(SOURCE)


MUTATIONS = mutate.MUTATIONS + mutate.LAUNCHER_MUTATIONS


@pytest.mark.parametrize("number", range(0, len(MUTATIONS), 8))
def test_mutations_are_caught(number: int) -> None:
    assert mutate.run(MUTATIONS[number]), MUTATIONS[number].what


@pytest.mark.slow
@pytest.mark.parametrize("number", [n for n in range(len(MUTATIONS)) if n % 8])
def test_all_other_mutations_are_caught(number: int) -> None:
    assert mutate.run(MUTATIONS[number]), MUTATIONS[number].what


@pytest.mark.parametrize(
    "mutation",
    [m for m in MUTATIONS if m.first in (mutate.LONG_ROW, mutate.DOUBLE, mutate.CONVERSIONS)]
    + [m for m in mutate.MUTATIONS if m.first == mutate.INDICES and "row's" in m.what]
    + [m for m in mutate.LAUNCHER_MUTATIONS if m.first >= mutate.UNALIGNED],
    ids=lambda mutation: mutation.what,
)
def test_what_random_cases_alone_do_not_show(mutation: mutate.Mutation) -> None:
    """Alignment, compensation, conversions, 64-bit indices, types that the launcher converts."""
    assert mutate.CHECKS[mutation.first](emulator.KERNEL_SOURCE, mutate.launch) is None
    assert mutate.run(mutation)


def test_an_instruction_that_the_emulator_does_not_know_is_named(tmp_path: pathlib.Path) -> None:
    path = broken(tmp_path, "cvt.rn.f16.f32", "cvt.rm.f16.f32")
    with pytest.raises(emulator.EmulatorError, match=r"does not know the instruction cvt\.rm\.f16\.f32"):
        emulator.narrow(torch.ones(1), torch.float16, path)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_arrays_reach_the_emulator_as_they_lie_in_memory(layout: str) -> None:
    """As aligned and as strided as drawn, so that a launcher that trusts them would be seen."""
    inputs = cases.draw(Case(layout=layout, n=33, m=33), 1)
    with emulator.Emulator() as device:
        for name, x in vars(inputs).items():
            if x is None:
                continue
            placed = device.place(name, x)
            assert placed.stride() == x.stride()
            assert torch.equal(placed, x)
            if not x.is_contiguous() or x.data_ptr() % 64:
                assert placed.data_ptr() % 64 == x.data_ptr() % 64
        copied = launch.readable(inputs.q) is not inputs.q
    assert copied == (layout in ("unaligned", "rows apart", "numbers apart"))
