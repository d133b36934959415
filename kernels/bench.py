"""What the kernel takes and, on paper, how long: `python -m kernels.bench --static` (no GPU needed).

On a GPU, `python -m kernels.gpu_check` measures.
"""

import argparse
import dataclasses
import itertools
import math
import sys

import torch

from kernels import compile, launch
from kernels.launch import Launch, Variant

KERNELS = ("attention_forward", "attention_backward_q", "attention_backward_kv")


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """What the blocks on one multiprocessor share (CUDA C++ Programming Guide, technical specifications)."""

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65_536


MULTIPROCESSORS = {
    "sm_75": Multiprocessor(32, 16, 64 * 1024),
    "sm_80": Multiprocessor(64, 32, 164 * 1024),
    "sm_86": Multiprocessor(48, 16, 100 * 1024),
    "sm_89": Multiprocessor(48, 24, 100 * 1024),
    "sm_90": Multiprocessor(64, 32, 228 * 1024),
    "sm_100": Multiprocessor(64, 32, 228 * 1024),
    "sm_120": Multiprocessor(48, 24, 100 * 1024),
}
RESERVED_SHARED_BYTES = 1024  # of each block, by the system, from sm_80 on


def resident_warps(usage: compile.Usage, threads: int, architecture: str) -> int:
    """Warps of one kernel that a multiprocessor holds at once."""
    limits = MULTIPROCESSORS[architecture]
    warps_per_block = threads // 32
    registers_per_warp = math.ceil(usage.registers * 32 / 256) * 256
    shared = usage.shared_bytes + (RESERVED_SHARED_BYTES if architecture != "sm_75" else 0)
    blocks = min(
        limits.blocks,
        limits.warps // warps_per_block,
        limits.registers // registers_per_warp // warps_per_block,
        limits.shared_bytes // shared,
    )
    return blocks * warps_per_block


@dataclasses.dataclass(frozen=True)
class Shape:
    """One attention: what is computed and what has to be moved."""

    batch: int
    heads: int
    n: int
    m: int
    d_k: int
    d_v: int
    dtype: torch.dtype
    causal: bool = False

    def plan(self, kernel: str) -> Launch:
        length = self.m if kernel == "attention_backward_kv" else self.n
        return launch.plan(kernel, self.dtype, self.batch * self.heads, length, self.d_k, self.d_v)

    def operations(self, kernel: str) -> int:
        """Floating-point operations of the matrix products; half of them where the causal rule hides half."""
        products = {
            "attention_forward": self.d_k + self.d_v,  # Q Kᵀ, P V
            "attention_backward_q": 2 * self.d_k + self.d_v,  # Q Kᵀ, dOut Vᵀ, dS K
            "attention_backward_kv": 2 * self.d_k + 2 * self.d_v,  # Q Kᵀ, dOut Vᵀ, Pᵀ dOut, dSᵀ Q
        }
        pairs = self.n * self.m if not self.causal else sum(min(i + 1, self.m) for i in range(self.n))
        return 2 * self.batch * self.heads * pairs * products[kernel]

    def least_bytes(self, kernel: str) -> int:
        """Every input read once and every output written once."""
        queries, keys = self.n * self.d_k, self.m * self.d_k
        values, outs = self.m * self.d_v, self.n * self.d_v
        numbers = {
            "attention_forward": queries + keys + values + outs,
            "attention_backward_q": queries + keys + values + 2 * outs + queries,
            "attention_backward_kv": queries + keys + values + outs + keys + values,
        }[kernel]
        sums = (2 if kernel == "attention_forward" else 3) * self.n  # log-sum-exp, two numbers, and delta
        sum_bytes = launch.accumulate_type(self.dtype).itemsize
        return self.batch * self.heads * (numbers * self.dtype.itemsize + sums * sum_bytes)

    def moved_bytes(self, kernel: str) -> int:
        """What the blocks ask for: the streamed rows once for each block of a head.

        Blocks of a head run side by side: all but the first find the streamed rows in L2.
        """
        plan = self.plan(kernel)
        blocks = plan.blocks // (self.batch * self.heads)
        streamed = self.n if kernel == "attention_backward_kv" else self.m
        again = (blocks - 1) * streamed * (self.d_k + self.d_v) * self.dtype.itemsize
        if self.causal:
            again //= 2
        return self.least_bytes(kernel) + self.batch * self.heads * again

    def seconds(self, kernel: str, bytes_per_second: float, operations_per_second: float) -> float:
        """The larger of the byte time and the arithmetic time."""
        return max(
            self.least_bytes(kernel) / bytes_per_second, self.operations(kernel) / operations_per_second
        )


SHAPES = {
    "tickets, padded (1024, 4, 120, 16)": (1024, 4, 120, 120, 16, 16, False),
    "short tickets, padded (4096, 4, 30, 16)": (4096, 4, 30, 30, 16, 16, False),
    "decoder, causal (8, 12, 1024, 64)": (8, 12, 1024, 1024, 64, 64, True),
}


def shape(name: str, dtype: torch.dtype) -> Shape:
    batch, heads, n, m, d_k, d_v, causal = SHAPES[name]
    return Shape(batch, heads, n, m, d_k, d_v, dtype, causal)


def print_usage(architecture: str, head_sizes: list[tuple[int, int]]) -> int:
    """One line for each kernel, type and size; the number of kernels up to d = 64 that spill."""
    source = compile.SOURCE.read_text(encoding="utf-8")
    spilling = 0
    print(
        f"{architecture}, NVRTC {compile.nvrtc_version()}. Registers of a thread, bytes that a thread spills,"
    )
    print(
        "shared bytes of a block, warps of 128-thread blocks that a multiprocessor holds (of those it could)"
    )
    print(f"{'type':9} {'d_k':>3} {'d_v':>3} rows  {'kernel':22} registers spilled shared warps")
    for dtype, (d_k, d_v) in itertools.product(launch.TYPES, head_sizes):
        for rows in (1,) if dtype == torch.float64 else (1, 2, 4):
            _, used = compile.compile_source(
                source, Variant(launch.TYPES[dtype], d_k, d_v, rows), architecture
            )
            for kernel in KERNELS if rows != 4 else KERNELS[:1]:  # backward kernels take two rows at most
                usage = used[kernel]
                spilling += usage.spill_bytes > 0 and max(d_k, d_v) <= 64
                warps, most = resident_warps(usage, 128, architecture), MULTIPROCESSORS[architecture].warps
                print(
                    f"{launch.TYPES[dtype]:9} {d_k:3} {d_v:3} {rows:4}  {kernel:22} {usage.registers:9} "
                    f"{usage.spill_bytes:7} {usage.shared_bytes:6} {warps:2}/{most}",
                    flush=True,
                )
    return spilling


def print_predictions(architecture: str, gigabytes_per_second: float, teraflops: float) -> None:
    rates = f"byte time at {gigabytes_per_second:g} GB/s and arithmetic time at {teraflops:g} Tflop/s"
    print(f"\nPREDICTION, nothing here is measured: the larger of {rates}.")
    print("Asked: what all blocks ask for against the least possible; what is asked again comes from L2.")
    columns = f"{'Gflop':>7} {'MB':>7} {'asked':>8} {'predicted ms':>12} bound by"
    print(f"{'shape':40} {'type':9} {'kernel':22} {columns}")
    for name, dtype in itertools.product(SHAPES, (torch.float32, torch.bfloat16)):
        one = shape(name, dtype)
        for kernel in KERNELS:
            operations, least = one.operations(kernel), one.least_bytes(kernel)
            byte_time, arithmetic_time = least / gigabytes_per_second / 1e9, operations / teraflops / 1e12
            print(
                f"{name:40} {launch.TYPES[dtype]:9} {kernel:22} {operations / 1e9:7.2f} {least / 1e6:7.1f} "
                f"{one.moved_bytes(kernel) / least:7.2f}x {1e3 * max(byte_time, arithmetic_time):12.3f} "
                f"{'bytes' if byte_time > arithmetic_time else 'arithmetic'}"
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument(
        "--static", action="store_true", required=True, help="from the compiler, without a GPU"
    )
    parser.add_argument("--arch", default="sm_90", choices=compile.ARCHITECTURES)
    parser.add_argument("--all-sizes", action="store_true", help="also d_v != d_k: 25 pairs instead of 5")
    parser.add_argument("--bandwidth", type=float, default=3350, help="GB/s of device memory to predict for")
    parser.add_argument("--rate", type=float, default=67, help="float32 Tflop/s to predict for")
    options = parser.parse_args(arguments)
    equal = [(d, d) for d in launch.HEAD_SIZES]
    pairs = [(d_k, d_v) for d_k in launch.HEAD_SIZES for d_v in launch.HEAD_SIZES]
    spilling = print_usage(options.arch, pairs if options.all_sizes else equal)
    print_predictions(options.arch, options.bandwidth, options.rate)
    print(f"\n{spilling or 'no'} kernels of d_k, d_v up to 64 spill registers")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
