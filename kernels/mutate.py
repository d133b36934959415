"""Mutation tests of attention.cu and its launcher: the checks must catch each mutation."""

# ruff: noqa: E501  (a table, a mutation a line)

import dataclasses
import functools
import math
import pathlib
import sys
import tempfile
import time
import types
from collections.abc import Callable

import torch

from kernels import emulate, emulator, launch
from kernels.cases import Case


@dataclasses.dataclass(frozen=True)
class Mutation:
    what: str
    old: str
    new: str
    occurrence: int = 0  # which of the places where `old` stands
    first: int = 0  # the number in CHECKS of one that shows the break: it saves running the others

    def apply(self, source: str) -> str:
        parts = source.split(self.old)
        if len(parts) < self.occurrence + 2:
            raise ValueError(
                f"{self.what}: the source no longer has {self.old!r}; bring the mutation up to date"
            )
        at = self.occurrence + 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


# Few cases and few variants, to save compilation; a mutation that they miss shows a gap in the checks.
CASES = [
    Case(n=65, m=129, mask="full", lengths="some", causal=False, order="reverse"),
    Case(n=129, m=129, mask="none", lengths="none", causal=True, weights=False, order="in order"),
    Case(n=33, m=70, d_k=64, d_v=32, mask="rows hidden", lengths="with 0", causal=False, order="random"),
    Case(n=200, m=75, d_k=64, d_v=32, mask="heads", causal=True, order="reverse", at_end=False),
    Case(n=70, m=70, d_k=8, d_v=8, lengths="some", weights=False, order="random", layout="packed", heads=16),
    Case(n=20, m=20, dtype=torch.bfloat16, d_k=8, d_v=8, mask="keys", causal=True),
    Case(n=8, m=32768, d_k=8, d_v=8, mask="one key", batch=1, heads=1),
    Case(n=20, m=33, dtype=torch.float64, mask="full", layout="16 bytes off"),
    Case(n=20, m=33, mask="full", lengths="some", layout="unaligned", given="wider"),
    Case(n=20, m=33, layout="rows apart"),
    Case(n=20, m=33, layout="numbers apart"),
]
LONG_ROW, DOUBLE, UNALIGNED, ROWS_APART, NUMBERS_APART, ORDERS, CONVERSIONS, INDICES, NAIVE = range(6, 15)

BARRIER = "__syncthreads();"
MUTATIONS = [
    Mutation("drop the rescaling of what was summed so far", "keep[r] = power_of_2(old_top - top[r]);", "keep[r] = 1;"),
    Mutation("rescale the output but not the sum of weights", "kept = total[r] * keep[r]", "kept = total[r]"),
    Mutation("hide the diagonal too", "p.causal && j > i)", "p.causal && j >= i)", first=1),
    Mutation("show one key of the future", "p.causal && j > i)", "p.causal && j > i + 1)", first=1),
    Mutation("show one key of the padding", "j >= key_count", "j > key_count"),
    Mutation("forward: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE"),
    Mutation("backward_q: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE", 1),
    Mutation("backward_kv: forget the last partial tile", "(end - 1) / COUNT * COUNT", "end / COUNT * COUNT - COUNT"),
    Mutation("forward: do not scale the scores", "at.lane, A(p.scale * LOG2_E)", "at.lane, A(LOG2_E)"),
    Mutation("backward_q: do not scale the scores", "at.lane, A(p.scale * LOG2_E)", "at.lane, A(LOG2_E)", 1),
    Mutation("backward_kv: do not scale the scores", "at.lane, A(p.scale * LOG2_E)", "at.lane, A(LOG2_E)", 2),
    Mutation("scores off by one part in ten thousand", "at.lane, A(p.scale * LOG2_E)", "at.lane, A(p.scale * LOG2_E * 1.0001)"),
    Mutation("round the weights to bfloat16 before dV", "gather<LANES>(all, scores);", "bfloat16 b; for (int r = 0; r < R; r++) for (int g = 0; g < GROUPS; g++) { narrow(b, scores[r][g]); scores[r][g] = widen(b); } gather<LANES>(all, scores);"),
    Mutation("backward_q: do not scale dQ", "q_grad[r], A(p.scale)", "q_grad[r], 1"),
    Mutation("backward: do not scale dQ", "sums[r][e] * A(p.scale)", "sums[r][e]", first=4),
    Mutation("do not scale dK", "k_grad[r], A(p.scale)", "k_grad[r], 1"),
    Mutation("forward: load a tile before all are done with the last", BARRIER, ""),
    Mutation("forward: read a tile before it is there", BARRIER, "", 1),
    Mutation("weights: load a tile before all are done with the last", BARRIER, "", 2),
    Mutation("backward_q: read a tile before it is there", BARRIER, "", 5),
    Mutation("backward_kv: load a tile before all are done with the last", BARRIER, "", 6),
    Mutation("backward_kv: read a tile before it is there", BARRIER, "", 7),
    Mutation("backward: add up the gradients of scores before they are there", BARRIER, "", 8, first=4),
    Mutation("a barrier that half of the threads skip", BARRIER, "if (threadIdx.x % 2) __syncthreads();", 1),
    Mutation("a barrier that the rows past the end skip", BARRIER, "if (at.row(0) < p.n) __syncthreads();", 1, first=4),
    Mutation("shuffle among half a warp", "__shfl_xor_sync(0xffffffff", "__shfl_xor_sync(0xffff", first=2),
    Mutation("leave out one step of the sum over lanes", "step = LANES / 2", "step = LANES / 4", first=2),
    Mutation("leave out one step of a dot product over lanes", "step = LANES / 2", "step = LANES / 4", 1, first=2),
    Mutation("leave out one step of the largest score over lanes", "step = LANES / 2", "step = LANES / 4", 2, first=2),
    Mutation("give the weights to the wrong lanes", "group[x + step] = of_lane", "group[2 * step - 1 - x] = of_lane", first=2),
    Mutation("read one row past the end", "first + row < end", "first + row <= end"),
    Mutation("read a tile's row past its end", "&tile[first + (x ^ lane)", "&tile[first + 1 + (x ^ lane)"),
    Mutation("load the queries past the end", "if (at.row(r) >= p.n) continue;\n        load_part", "load_part"),
    Mutation("write the outputs past the end", "if (at.row(r) >= p.n) continue;\n        store_part", "store_part"),
    Mutation("forget that a row may read nothing", "top[r] = LOWEST;", "top[r] = -INF;", first=2),
    Mutation("forward: do not mask the first chunk of which some keys are hidden", "CHUNK > all_read", "CHUNK > all_read + CHUNK", first=1),
    Mutation("backward_q: do not mask the first chunk of which some keys are hidden", "CHUNK > all_read", "CHUNK > all_read + CHUNK", 1, first=1),
    Mutation("backward_kv: do not mask the last chunk of which some queries do not read", "at.block_end > start + c0 + 1", "at.block_end > start + c0 + 1 + CHUNK", first=1),
    Mutation("store what padding summed up", "if (j >= key_count)  // padding", "if (j >= p.m)  //"),
    Mutation("divide by the sum of a row that reads nothing", "if (total[r] != 0)", "if (true)", first=2),
    Mutation("save the sum where its inverse belongs", "1 / total[r]}", "total[r]}"),
    Mutation("do not subtract the largest score", "power_of_2(score - row.top)", "power_of_2(score)"),
    Mutation("do not normalise the weights", " * row.inverse;", ";"),
    Mutation("add the mask of another head", "head * p.mask_head", "(p.heads - 1 - head) * p.mask_head"),
    Mutation("add the mask of another query", "i * p.mask_query", "(p.n - 1 - i) * p.mask_query"),
    Mutation("backward_q: forget the rows' mean gradient", "(weight_grads[r][g] - delta[r])", "weight_grads[r][g]"),
    Mutation("backward_kv: forget the rows' mean gradient", "(weight_grads[r][g] - delta[t])", "weight_grads[r][g]"),
    Mutation("leave the weights' own gradient out of delta", "product += widen(p.weights[", "product += 0 * widen(p.weights["),
    Mutation("backward_kv: start a tile too late", "at.block_first / COUNT * COUNT", "at.block_first / COUNT * COUNT + COUNT"),
    Mutation("forward: stop a row too early", "smaller(key_count, at.block_end)", "smaller(key_count, at.block_end - 1)"),
    Mutation("backward: leave the last key out of dQ", "j < end; j++", "j + 1 < end; j++", first=4),
    Mutation("start a sum without setting it to 0", "A parts[R][LANES] = {};", "A parts[R][LANES];"),
    Mutation("two threads work on the same row", "+ threadIdx.x % rows_per_warp;", "+ threadIdx.x % rows_per_warp / 2;"),
    Mutation("cut bfloat16 off instead of rounding it", "(bits + 0x7fff + (bits >> 16 & 1)) >> 16", "bits >> 16"),
    Mutation("cut float16 off instead of rounding it", "cvt.rn.f16.f32", "cvt.rz.f16.f32", first=CONVERSIONS),
    Mutation("read the bits of float16 as those of bfloat16", 'PTX("cvt.f32.f16", "=f", y, "h", x.bits)', "y = __uint_as_float((unsigned)x.bits << 16)", first=CONVERSIONS),
    Mutation("leave out the compensation of the total", "sum - excess[r] * keep[r]", "sum", first=LONG_ROW),
    Mutation("add the compensation instead of taking it off", "sum - excess[r] * keep[r]", "sum + excess[r] * keep[r]", first=LONG_ROW),
    Mutation("promise 32 bytes of alignment where there are 16", "alignas(smaller(16, sizeof(E) * N))", "alignas(sizeof(E) * N)", first=DOUBLE),
    Mutation("a batch entry's place in 32 bits", "data + b * batch +", "data + int(b * batch) +", first=INDICES),
    Mutation("a row's place in 32 bits", "h * head + i * row", "h * head + int(i * row)", first=INDICES),
    Mutation("the place in the mask in 32 bits", "p.mask[batch * p.mask_batch", "p.mask[int(batch * p.mask_batch)", first=INDICES),
    Mutation("the number of a query in 32 bits", "((long long)batch * p.heads + head) * p.n", "(batch * p.heads + head) * p.n", 1, first=INDICES),
    Mutation("the place of a weight in 32 bits", "narrow(p.weights[at.query(p, i) * p.m + j]", "narrow(p.weights[int(at.query(p, i) * p.m + j)]", first=INDICES),
    Mutation("the place of a weight's gradient in 32 bits", "widen(p.weights_grad[at.query(p, i) * p.m + j])", "widen(p.weights_grad[int(at.query(p, i) * p.m + j)])", first=INDICES),
    Mutation("take the sums and weights of another head", "((long long)batch * p.heads + head) * p.n", "((long long)batch * p.heads + p.heads - 1 - head) * p.n", 1),
    Mutation("attention_naive: do not scale the scores", "dot * A(p.scale * LOG2_E)", "dot * LOG2_E", first=NAIVE),
    Mutation("attention_naive: leave the last key out of the total", "j < key_count; j++) {  // weights", "j + 1 < key_count; j++) {  // weights", first=NAIVE),
]  # fmt: skip

LAUNCHER_MUTATIONS = [
    Mutation("load 16 bytes at an address that is no multiple of 16", "x.data_ptr() % 16 == 0 and ", "", first=UNALIGNED),
    Mutation("load 16 bytes of rows that are no multiple of 16 bytes apart", " and all(stride % unit == 0 for stride in strides)", "", first=ROWS_APART),
    Mutation("read numbers that are apart as if they were neighbours", "x.stride(-1) == 1 and ", "", first=NUMBERS_APART),
    Mutation("take the rows' stride for that of the heads", "x.stride(1), x.stride(2))", "x.stride(2), x.stride(1))"),
    Mutation("take the mask's keys for its queries", "params.mask_query, params.mask_key =", "params.mask_key, params.mask_query ="),
    Mutation("read a mask of another type as it is", "mask.to(accumulate_type(q.dtype)).expand", "mask.expand", first=UNALIGNED),
    Mutation("read key lengths of 64 bits as 32", "key_lengths.to(torch.int32)", "key_lengths", first=UNALIGNED),
    Mutation("read a strided gradient of the weights as if it were contiguous", "weights_grad.contiguous()", "weights_grad", first=NUMBERS_APART),
    Mutation("forget the causal rule", "causal=causal", "causal=False", first=1),
    Mutation("forget the key lengths", "params.key_lengths = key_lengths.data_ptr()", "pass"),
    Mutation("scale by the number of keys", "math.sqrt(q.shape[-1])", "math.sqrt(k.shape[-2])"),
    Mutation("leave the last head out", "batch * heads, n, d_k, d_v", "batch * heads - 1, n, d_k, d_v"),
    Mutation("size the grid of backward_kv by the queries", '("attention_backward_kv", m)', '("attention_backward_kv", n)'),
    Mutation("give a block more keys than it has room for", "m > room", "m > 2 * room"),
    Mutation("write the gradient of k where that of v belongs", "q_grad, k_grad, v_grad), strict", "q_grad, v_grad, k_grad), strict", first=2),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Catch:
    how: str
    margin: float  # how many times what rounding may do; infinite where no number is needed to see it


# A result counts as wrong from this multiple of the rounding allowance, so that no mutation is caught by chance.
MARGIN = 10.0


def _case(number: int, source: pathlib.Path, launcher: types.ModuleType) -> Catch | None:
    outcome = emulate.outcome(CASES[number], number, source, launcher)
    return Catch(outcome.problem, outcome.margin) if outcome.problem and outcome.margin > MARGIN else None


def _orders(source: pathlib.Path, launcher: types.ModuleType) -> Catch | None:
    problems = (emulate.order_matters(case, seed, source) for seed, case in enumerate(CASES[:3]))
    found = next((problem for problem in problems if problem), None)
    return Catch(f"depends on the order of threads: {found}", math.inf) if found else None


def _conversions(source: pathlib.Path, launcher: types.ModuleType) -> Catch | None:
    problem = emulate.conversion_problem(source)
    return Catch(problem, math.inf) if problem else None


def _indices(source: pathlib.Path, launcher: types.ModuleType) -> Catch | None:
    problem = emulate.index_problem(source, launcher)
    return Catch(problem, math.inf) if problem else None


def _naive(source: pathlib.Path, launcher: types.ModuleType) -> Catch | None:
    problems = (emulate.naive_problem(case, seed, source, launcher) for seed, case in enumerate(CASES[:3]))
    found = next((problem for problem in problems if problem), None)
    return Catch(found, math.inf) if found else None


CHECKS: list[Callable[[pathlib.Path, types.ModuleType], Catch | None]] = [
    *(functools.partial(_case, number) for number in range(len(CASES))),
    *(_orders, _conversions, _indices, _naive),
]


def caught(
    source: pathlib.Path = emulator.KERNEL_SOURCE, launcher: types.ModuleType = launch, first: int = 0
) -> Catch | None:
    """The check that catches a wrong kernel or launcher, starting with check `first`; None if none does."""
    catches = (check(source, launcher) for check in CHECKS[first:] + CHECKS[:first])
    return next((catch for catch in catches if catch), None)


def run(mutation: Mutation) -> Catch | None:
    """Apply one mutation to the kernel or launcher, and run the checks."""
    if mutation in LAUNCHER_MUTATIONS:
        return caught(launcher=broken_launcher(mutation), first=mutation.first)
    source = emulator.KERNEL_SOURCE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "broken.cu"
        path.write_text(mutation.apply(source), encoding="utf-8")
        return caught(path, first=mutation.first)


def broken_launcher(mutation: Mutation) -> types.ModuleType:
    """A copy of kernels.launch with the mutation in it; the module itself stays as it is."""
    assert launch.__file__ is not None
    source = pathlib.Path(launch.__file__).read_text(encoding="utf-8")
    module = types.ModuleType("kernels.broken_launch")
    sys.modules[module.__name__] = module  # where dataclasses look their own module up
    exec(compile(mutation.apply(source), "broken launch.py", "exec"), module.__dict__)
    return module


def main() -> int:
    start = time.perf_counter()
    problem = caught()
    if problem:
        print(f"the kernel as it stands fails: {problem.how}")
        return 1
    catches = []
    for mutation in MUTATIONS + LAUNCHER_MUTATIONS:
        catch = run(mutation)
        print(f"{'caught ' if catch else 'ESCAPED'}  {mutation.what}")
        print(f"         {catch.how if catch else 'no check saw it'}", flush=True)
        catches.append(catch)
    print(f"{summary(catches)}, in {time.perf_counter() - start:.0f} s")
    return 0 if all(catches) else 1


def summary(catches: list[Catch | None]) -> str:
    """How many were caught, and the least that one of them was off by."""
    margins = [catch.margin for catch in catches if catch]
    counts = f"{len(margins)} of {len(catches)} caught"
    return f"{counts}, each off by {min(margins):.0f} times the rounding or more" if margins else counts


if __name__ == "__main__":
    sys.exit(main())
