"""Break attention.cu in small ways, one at a time, and see that the checks catch each of them."""

# ruff: noqa: E501  (a table, a mutation a line)

import dataclasses
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
    Mutation("rescale the output but not the sum of weights", "total[r] * keep[r] + sum", "total[r] + sum"),
    Mutation("hide the diagonal too", "p.causal && j > i)", "p.causal && j >= i)"),
    Mutation("show one key of the future", "p.causal && j > i)", "p.causal && j > i + 1)"),
    Mutation("show one key of the padding", "j >= key_count", "j > key_count"),
    Mutation("forward: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE"),
    Mutation("backward_q: forget the last partial tile", "start < end; start += TILE", "start + TILE <= end; start += TILE", 1),
    Mutation("backward_kv: forget the last partial tile", "(end - 1) / TILE * TILE", "end / TILE * TILE - TILE"),
    Mutation("do not scale the scores", "dot * A(p.scale)", "dot"),
    Mutation("do not scale dQ", "q_grad[r], A(p.scale)", "q_grad[r], 1"),
    Mutation("do not scale dK", "k_grad[r], A(p.scale)", "k_grad[r], 1"),
    Mutation("forward: load a tile before all are done with the last", BARRIER, ""),
    Mutation("forward: read a tile before it is there", BARRIER, "", 1),
    Mutation("weights: load a tile before all are done with the last", BARRIER, "", 2),
    Mutation("backward_q: read a tile before it is there", BARRIER, "", 5),
    Mutation("backward_kv: load a tile before all are done with the last", BARRIER, "", 6),
    Mutation("backward_kv: read a tile before it is there", BARRIER, "", 7),
    Mutation("a barrier that half of the threads skip", BARRIER, "if (threadIdx.x % 2) __syncthreads();", 1),
    Mutation("a barrier that the rows past the end skip", BARRIER, "if (at.row(0) < p.n) __syncthreads();", 1),
    Mutation("shuffle among half a warp", "__shfl_xor_sync(0xffffffff", "__shfl_xor_sync(0xffff"),
    Mutation("leave out one step of the sum over lanes", "step = LANES / 2", "step = LANES / 4"),
    Mutation("read one row past the end", "first + row < end", "first + row <= end"),
    Mutation("read a tile's row past its end", "&tile[first + c]", "&tile[first + c + 1]"),
    Mutation("load the queries past the end", "if (at.row(r) < p.n) load_part", "load_part"),
    Mutation("write the outputs past the end", "if (at.row(r) >= p.n) continue;\n        store_part", "store_part"),
    Mutation("forget that a row may read nothing", "top[r] == -INF ? 0 : top[r]", "top[r]"),
    Mutation("no sign that a row read nothing", "total[r] == 0 ? INF : top[r]", "total[r] == 0 ? -INF : top[r]"),
    Mutation("leave the logarithm out of log-sum-exp", "top[r] + log(total[r])", "top[r] + total[r]"),
    Mutation("do not normalise the weights", "exp(score - top[r]) * inverse[r]", "exp(score - top[r])"),
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

# Few cases and few variants to compile: a mutant that these do not catch shows a hole in them.
SUITE = [
    Case(n=65, m=129, mask="full", lengths="some", causal=False, order="reverse"),
    Case(n=129, m=129, mask="none", lengths="none", causal=True, order="in order"),
    Case(n=33, m=70, d_k=64, d_v=32, mask="rows hidden", lengths="with 0", causal=False, order="random"),
    Case(n=200, m=75, d_k=64, d_v=32, mask="heads", causal=True, order="reverse", at_end=False),
    Case(n=31, m=33, lengths="none", weights=False, order="random", layout="packed"),
    Case(n=20, m=20, dtype=torch.bfloat16, d_k=8, d_v=8, mask="keys", causal=True),
]


def caught(source: pathlib.Path) -> str | None:
    """How the checks catch a wrong kernel; None if they do not."""
    for seed, case in enumerate(SUITE):
        outcome = emulate.outcome(case, seed, source)
        if outcome.problem:
            return outcome.problem
    for seed, case in enumerate(SUITE[:3]):
        problem = emulate.order_matters(case, seed, source)
        if problem:
            return f"depends on the order of threads: {problem}"
    return emulate.rounding_problem(source)


def run(mutations: list[Mutation] = MUTATIONS) -> list[tuple[Mutation, str | None]]:
    """Each mutation, with how it was caught."""
    source = emulator.KERNEL_SOURCE.read_text(encoding="utf-8")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, mutation in enumerate(mutations):
            path = pathlib.Path(folder) / f"{number}.cu"
            path.write_text(mutation.apply(source), encoding="utf-8")
            found.append((mutation, caught(path)))
    return found


def main() -> int:
    start = time.perf_counter()
    problem = caught(emulator.KERNEL_SOURCE)
    if problem:
        print(f"the kernel as it stands fails: {problem}")
        return 1
    escaped = 0
    for mutation in MUTATIONS:
        ((_, how),) = run([mutation])
        escaped += how is None
        print(
            f"{'caught ' if how else 'ESCAPED'}  {mutation.what}\n         {how or 'no check saw it'}",
            flush=True,
        )
    seconds = time.perf_counter() - start
    print(f"{len(MUTATIONS) - escaped} of {len(MUTATIONS)} mutations caught in {seconds:.0f} s")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
