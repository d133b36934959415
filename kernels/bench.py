"""What the kernel takes and, as predicted, how long: `python -m kernels.bench --static` (no GPU needed).

All of it is read from the machine code that NVRTC makes. On a GPU, `python -m kernels.gpu_check` measures.
"""

import argparse
import dataclasses
import itertools
import math
import sys

import torch

from kernels import compile, launch, machine_code
from kernels.launch import Launch, Variant

KERNELS = ("attention_forward", "attention_backward_q", "attention_backward_kv", "attention_backward")


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """The limits of one multiprocessor (CUDA C++ Programming Guide, technical specifications)."""

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
    """The number of resident warps of one kernel per multiprocessor."""
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

    def launches(self, backward: bool, multiprocessors: int = 0) -> list[Launch]:
        """What one pass launches on a device with so many multiprocessors."""
        heads, sizes = self.batch * self.heads, (self.d_k, self.d_v)
        if backward:
            all_keys = launch.plan_all_keys(self.dtype, heads, self.n, self.m, *sizes)
            if all_keys:
                return [all_keys]
        kernels = {"attention_backward_q": self.n, "attention_backward_kv": self.m}
        return [
            launch.plan(kernel, self.dtype, heads, length, *sizes, multiprocessors)
            for kernel, length in (kernels if backward else {"attention_forward": self.n}).items()
        ]

    def operations(self, kernel: str) -> int:
        """Floating-point operations of the matrix products; half of them where the causal rule hides half."""
        products = {
            "attention_forward": self.d_k + self.d_v,  # Q Kᵀ, P V
            "attention_backward_q": 2 * self.d_k + self.d_v,  # Q Kᵀ, dOut Vᵀ, dS K
            "attention_backward_kv": 2 * self.d_k + 2 * self.d_v,  # Q Kᵀ, dOut Vᵀ, Pᵀ dOut, dSᵀ Q
            "attention_backward": 3 * self.d_k + 2 * self.d_v,  # these four and dS K
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
            "attention_backward": 2 * (queries + keys + values + outs),
        }[kernel]
        delta = kernel in ("attention_backward_q", "attention_backward_kv")
        sums = (3 if delta else 2) * self.n  # log-sum-exp, two numbers, and delta
        sum_bytes = launch.accumulate_type(self.dtype).itemsize
        return self.batch * self.heads * (numbers * self.dtype.itemsize + sums * sum_bytes)


SHAPES = {
    "tickets, padded (1024, 4, 120, 16)": (1024, 4, 120, 120, 16, 16, False),
    "a small batch of tickets (64, 4, 120, 16)": (64, 4, 120, 120, 16, 16, False),
    "long tickets (64, 4, 512, 16)": (64, 4, 512, 512, 16, 16, False),
    "decoder, causal (1, 12, 1024, 64)": (1, 12, 1024, 1024, 64, 64, True),
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
        for rows in (1,) if dtype == torch.float64 else (1, 2):
            _, used = compile.compile_source(
                source, Variant(launch.TYPES[dtype], d_k, d_v, rows), architecture
            )
            for kernel in KERNELS:
                usage = used[kernel]
                spilling += usage.spill_bytes > 0 and max(d_k, d_v) <= 64
                warps, most = resident_warps(usage, 128, architecture), MULTIPROCESSORS[architecture].warps
                print(
                    f"{launch.TYPES[dtype]:9} {d_k:3} {d_v:3} {rows:4}  {kernel:22} {usage.registers:9} "
                    f"{usage.spill_bytes:7} {usage.shared_bytes:6} {warps:2}/{most}",
                    flush=True,
                )
    return spilling


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of the device that times are predicted for; the defaults are those of an H100 (SXM)."""

    bytes_per_second: float = 3.35e12
    multiprocessors: int = 132
    hertz: float = 1.98e9

    @property
    def operations_per_second(self) -> float:
        """float32: a multiply-add is two operations; a multiprocessor starts 128 of them in a cycle."""
        return 2 * 128 * self.multiprocessors * self.hertz


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Seconds that one launch takes at least, by what it is that takes them."""

    bytes: float  # every input read and every output written once
    arithmetic: float  # the multiply-adds alone
    instructions: float  # all instructions of the innermost loops, on the busiest multiprocessor
    shared: float  # what these loops read from shared memory, and their shuffles
    special: float  # their powers of two
    per_multiply_add: float  # instructions of the main loop for each useful multiply-add

    @property
    def seconds(self) -> float:
        return max(self.bytes, self.instructions, self.shared, self.special)

    @property
    def bound(self) -> str:
        names = ("bytes", "instructions", "shared", "special")
        return max(names, key=lambda name: float(getattr(self, name)))


def predict(one: Shape, plan: Launch, found: list[machine_code.Loop], rates: Rates) -> Prediction:
    """What the loops of the plan's kernel take for a shape, if there are always warps that can go on.

    Left out: what runs once a tile (copying it) or once a row, and waiting.
    """
    kernel = plan.kernel
    lanes = launch.lanes(kernel, one.d_k, one.d_v)
    rows = launch.used_rows(kernel, plan.variant.rows, one.d_k, one.d_v)
    chunk = max(4, lanes)  # FORWARD_CHUNK and BACKWARD_CHUNK in attention.cu
    owns_keys = kernel in ("attention_backward_kv", "attention_backward")
    streamed, owned = (one.n, one.m) if owns_keys else (one.m, one.n)
    numbers = one.operations(kernel) / one.operations("attention_forward") * (one.d_k + one.d_v)
    if kernel == "attention_backward":
        numbers -= one.d_k  # dQ has a loop of its own
    useful = rows * chunk * numbers / lanes  # multiply-adds of a thread in one pass of the main loop
    passes: float = streamed / chunk
    if one.causal:
        passes *= (owned + chunk) / 2 / owned
    main = found[0]
    instructions, shared, special = (
        passes * x for x in (main.instructions, main.shared_cycles, main.special)
    )
    if kernel == "attention_backward":  # a thread computes 4 x 4 numbers of dQ, one key after the other
        second = found[1]
        share = one.n * one.m * one.d_k / plan.threads / second.multiply_adds  # passes of each thread
        instructions += share * second.instructions
        shared += share * second.shared_cycles
    warps = plan.threads // 32
    busiest: float = math.ceil(plan.blocks / rates.multiprocessors) * warps
    if one.causal:  # the longest blocks start first, and short ones fill the gaps
        busiest = max(warps, plan.blocks * warps / rates.multiprocessors)
    cycles = {"instructions": instructions / 4, "shared": shared, "special": 2 * special}
    return Prediction(
        bytes=one.least_bytes(kernel) / rates.bytes_per_second,
        arithmetic=one.operations(kernel) / rates.operations_per_second,
        **{name: busiest * x / rates.hertz for name, x in cycles.items()},
        per_multiply_add=main.instructions / useful,
    )


def print_predictions(architecture: str, rates: Rates) -> None:
    """A line for each launch of each shape."""
    source = compile.SOURCE.read_text(encoding="utf-8")
    print(
        f"\nPREDICTED for {rates.multiprocessors} multiprocessors at {rates.hertz / 1e9:g} GHz and "
        f"{rates.bytes_per_second / 1e9:g} GB/s; nothing here is measured."
    )
    print(
        "Microseconds: bytes and arithmetic are limits; instr(uctions), shared memory and special functions"
    )
    print(
        "are those of the innermost loops. predicted is the largest but for arithmetic, which instr contains."
    )
    print(
        "i/fma: instructions of the main loop for each useful multiply-add, no mask. warps: resident at once."
    )
    columns = (
        "bytes",
        "arith",
        "instr",
        "shared",
        "special",
        "predicted",
        "/bytes",
        "/arith",
        "i/fma",
        "warps",
    )
    print(f"{'shape':42} {'launch':23}{'blocks':>7}x{'thr':3} " + " ".join(f"{name:>9}" for name in columns))
    for name, backward in itertools.product(SHAPES, (False, True)):
        one = shape(name, torch.float32)
        for plan in one.launches(backward, rates.multiprocessors):
            code, used = compile.compile_source(source, plan.variant, architecture)
            found = predict(one, plan, machine_code.loops(code)[plan.kernel], rates)
            times = (
                found.bytes,
                found.arithmetic,
                found.instructions,
                found.shared,
                found.special,
                found.seconds,
            )
            ratios = (found.seconds / found.bytes, found.seconds / found.arithmetic)
            cells = [f"{1e6 * x:9.1f}" for x in times] + [f"{x:8.1f}x" for x in ratios]
            warps = resident_warps(used[plan.kernel], plan.threads, architecture)
            print(
                f"{name:42} {plan.kernel.removeprefix('attention_'):12} by {found.bound:12}"[:66]
                + f"{plan.blocks:7}x{plan.threads:3} {' '.join(cells)} "
                f"{found.per_multiply_add:9.2f} {warps:9}",
                flush=True,
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument(
        "--static", action="store_true", required=True, help="from the compiler, without a GPU"
    )
    parser.add_argument("--arch", default="sm_90", choices=compile.ARCHITECTURES)
    parser.add_argument("--all-sizes", action="store_true", help="also d_v != d_k: 25 pairs instead of 5")
    parser.add_argument("--bandwidth", type=float, default=3350, help="GB/s of device memory to predict for")
    parser.add_argument("--multiprocessors", type=int, default=132, help="of the device to predict for")
    parser.add_argument("--clock", type=float, default=1.98, help="GHz of the device to predict for")
    options = parser.parse_args(arguments)
    equal = [(d, d) for d in launch.HEAD_SIZES]
    pairs = [(d_k, d_v) for d_k in launch.HEAD_SIZES for d_v in launch.HEAD_SIZES]
    spilling = print_usage(options.arch, pairs if options.all_sizes else equal)
    rates = Rates(1e9 * options.bandwidth, options.multiprocessors, 1e9 * options.clock)
    print_predictions(options.arch, rates)
    print(f"\n{spilling or 'no'} kernels of d_k, d_v up to 64 spill registers")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
