"""Break attention.cu in small ways, one at a time, and see that the checks catch each of them."""

# ruff: noqa: E501  (a table, a mutation a line)

import dataclasses
import math
import pathlib
import sys
import tempfile
import time

import torch

from kernels import emulate, emulator
from kernels.cases import Case


@dataclasses.dataclass(frozen=True)
class Mutation:
    what: str
    old: str
    new: str
    occurrence: int = 0  # which of the places where `old` stands
    first: int = 0  # the case of SUITE to begin with: one that shows the break

    def apply(self, source: str) -> str:
        parts = source.split(self.old)
        if len(parts) < self.occurrence + 2:
            raise ValueError(
                f"{self.what}: attention.cu no longer has {self.old!r}; bring the mutation up to date"
            )
        at = self.occurrence + 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


BARRIER = "__syncthreads();"
MUTATIONS = [
    Mutation("drop the rescaling of what was summed so far", "keep[r] = exp(old_top - base);", "keep[r] = 1;"),
    Mutation("rescale the output but not the sum of weights", "kept = total[r] * keep[r]", "kept = total[r]"),
    Mutation("hide the diagonal too", "p.causal && j > i)", "p.causal && j >= i)", first=1),
    Mutation("show one key of the future", "p.causal && j > i)", "p.causal && j > i + 1)", first=1),
    Mutation("show one key of the padding", "j >= key_count", "j > key_count"),
    Mutation("forward: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE"),
    Mutation("backward_q: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE", 1),
    Mutation("backward_kv: forget the last partial tile", "(end - 1) / TILE * TILE", "end / TILE * TILE - TILE"),
    Mutation("do not scale the scores", "dot * A(p.scale)", "dot"),
    Mutation("scores off by one part in ten thousand", "dot * A(p.scale)", "dot * A(p.scale * 1.0001)"),
    Mutation("round the weights to bfloat16 before dV", "dots[r][c] = weight;", "bfloat16 b; narrow(b, weight); dots[r][c] = widen(b);"),
    Mutation("do not scale dQ", "q_grad[r], A(p.scale)", "q_grad[r], 1"),
    Mutation("do not scale dK", "k_grad[r], A(p.scale)", "k_grad[r], 1"),
    Mutation("forward: load a tile before all are done with the last", BARRIER, ""),
    Mutation("forward: read a tile before it is there", BARRIER, "", 1),
    Mutation("weights: load a tile before all are done with the last", BARRIER, "", 2),
    Mutation("backward_q: read a tile before it is there", BARRIER, "", 5),
    Mutation("backward_kv: load a tile before all are done with the last", BARRIER, "", 6),
    Mutation("backward_kv: read a tile before it is there", BARRIER, "", 7),
    Mutation("a barrier that half of the threads skip", BARRIER, "if (threadIdx.x % 2) __syncthreads();", 1),
    Mutation("a barrier that the rows past the end skip", BARRIER, "if (at.row(0) < p.n) __syncthreads();", 1, first=4),
    Mutation("shuffle among half a warp", "__shfl_xor_sync(0xffffffff", "__shfl_xor_sync(0xffff", first=2),
    Mutation("leave out one step of the sum over lanes", "step = LANES / 2", "step = LANES / 4", first=2),
    Mutation("read one row past the end", "first + row < end", "first + row <= end"),
    Mutation("read a tile's row past its end", "&tile[first + c]", "&tile[first + c + 1]"),
    Mutation("load the queries past the end", "if (at.row(r) < p.n) load_part", "load_part"),
    Mutation("write the outputs past the end", "if (at.row(r) >= p.n) continue;\n        store_part", "store_part"),
    Mutation("forget that a row may read nothing", "top[r] == -INF ? 0 : top[r]", "top[r]", first=2),
    Mutation("divide by the sum of a row that reads nothing", "if (total[r] != 0)", "if (true)", first=2),
    Mutation("save the sum where its inverse belongs", "1 / total[r]}", "total[r]}"),
    Mutation("do not subtract the largest score", "exp(score - row.top)", "exp(score)"),
    Mutation("do not normalise the weights", " * row.inverse;", ";"),
    Mutation("add the mask of another head", "at.head * p.mask_head", "(p.heads - 1 - at.head) * p.mask_head"),
    Mutation("add the mask of another query", "i * p.mask_query", "(p.n - 1 - i) * p.mask_query"),
    Mutation("forget the rows' mean gradient", "dots[r][c] = weight * (weight_grad - delta[r]);", "dots[r][c] = weight * weight_grad;"),
    Mutation("leave the weights' own gradient out of delta", "product += widen(p.weights[", "product += 0 * widen(p.weights["),
    Mutation("backward_kv: start a tile too late", "at.block_first / TILE * TILE", "at.block_first / TILE * TILE + TILE"),
    Mutation("forward: stop a row too early", "smaller(key_count, at.block_end)", "smaller(key_count, at.block_end - 1)"),
    Mutation("start a sum without setting it to 0", "dots[r][c] = 0;", ";"),
    Mutation("two threads work on the same row", "first = block_first + threadIdx.x / LANES", "first = block_first + threadIdx.x / LANES / 2"),
    Mutation("cut bfloat16 off instead of rounding it", "(bits + 0x7fff + (bits >> 16 & 1)) >> 16", "bits >> 16"),
    Mutation("take the sums and weights of another head", "((long long)batch * p.heads + head) * p.n", "((long long)batch * p.heads + p.heads - 1 - head) * p.n"),
]  # fmt: skip

# Few cases and few variants to compile: a mutant that these do not catch shows a hole in them. A wrong number
# must be wrong by MARGIN times what rounding may do, so that no mutant is caught by luck.
MARGIN = 10.0
SUITE = [
    Case(n=65, m=129, mask="full", lengths="some", causal=False, order="reverse"),
    Case(n=129, m=129, mask="none", lengths="none", causal=True, order="in order"),
    Case(n=33, m=70, d_k=64, d_v=32, mask="rows hidden", lengths="with 0", causal=False, order="random"),
    Case(n=200, m=75, d_k=64, d_v=32, mask="heads", causal=True, order="reverse", at_end=False),
    Case(n=31, m=33, lengths="none", weights=False, order="random", layout="packed"),
    Case(n=20, m=20, dtype=torch.bfloat16, d_k=8, d_v=8, mask="keys", causal=True),
]


@dataclasses.dataclass(frozen=True)
class Catch:
    how: str
    margin: float  # how many times what rounding may do; infinite where no number is needed to see it


def caught(source: pathlib.Path, first: int = 0) -> Catch | None:
    """How the checks catch a wrong kernel; None if they do not."""
    numbered = list(enumerate(SUITE))
    for seed, case in numbered[first:] + numbered[:first]:
        outcome = emulate.outcome(case, seed, source)
        if outcome.problem and outcome.margin > MARGIN:
            return Catch(outcome.problem, outcome.margin)
    for seed, case in numbered[:3]:
        problem = emulate.order_matters(case, seed, source)
        if problem:
            return Catch(f"depends on the order of threads: {problem}", math.inf)
    problem = emulate.rounding_problem(source)
    return Catch(problem, math.inf) if problem else None


def run(mutation: Mutation) -> Catch | None:
    """Break the kernel, and see how that is caught."""
    source = emulator.KERNEL_SOURCE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "broken.cu"
        path.write_text(mutation.apply(source), encoding="utf-8")
        return caught(path, mutation.first)


def main() -> int:
    start = time.perf_counter()
    problem = caught(emulator.KERNEL_SOURCE)
    if problem:
        print(f"the kernel as it stands fails: {problem.how}")
        return 1
    catches = []
    for mutation in MUTATIONS:
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
