"""All checks of attention.cu that need no GPU; prints one table."""

import argparse
import dataclasses
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from kernels import cases, compile, emulate, emulator, launch, mutate, rounding
from kernels.cases import Case
from kernels.launch import Variant

ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    proof: str
    what: str
    result: str
    right: bool | None = None  # None: a figure that nothing is held to
    seconds: float = 0


def grid(workers: ProcessPoolExecutor, seed: int) -> list[Row]:
    drawn = list(cases.grid(seed, repeats=1))
    outcomes = list(workers.map(emulate.outcome, drawn, range(seed, seed + len(drawn)), chunksize=2))
    wrong = [outcome for outcome in outcomes if outcome.problem]
    report(map(str, wrong))
    sums = rounding.totals((outcome.case, outcome.errors) for outcome in outcomes)
    sizes = f"{len(drawn)} cases, every n with every m of {len(cases.SIZES)} sizes"
    relative = rounding.relative(sums).items()
    return [
        Row("kernel = formula", sizes, rounding.shares(sums), not wrong),
        *(Row("", f"  {name}: largest error / largest number", found) for name, found in relative),
    ]


def orders(workers: ProcessPoolExecutor, seed: int) -> list[Row]:
    drawn = [
        Case(dtype, *sizes, n=70, m=129, mask="full", lengths="some", causal=causal)
        for dtype in launch.TYPES
        for sizes in ((8, 8), (16, 16), (64, 32), (128, 128))
        for causal in (False, True)
    ]
    found = [
        problem for problem in workers.map(emulate.order_matters, drawn, itertools.repeat(seed)) if problem
    ]
    report(found)
    what = f"{len(drawn)} cases in {len(cases.ORDERS)} thread orders"
    return [Row("order changes no bit", what, f"{len(drawn) - len(found)} identical", not found)]


def compile_one(source: str, variant: Variant, architecture: str) -> tuple[int, int, str | None]:
    """Registers and spilled bytes of the variant's worst kernel, and what NVRTC complained about."""
    try:
        _, used = compile.compile_source(source, variant, architecture)
    except compile.CompileError as error:
        return 0, 0, str(error)
    spills = max(usage.spill_bytes for usage in used.values())
    return max(usage.registers for usage in used.values()), spills, None


def compiled(workers: ProcessPoolExecutor, seed: int) -> list[Row]:
    """Every type and size becomes machine code for every architecture; the rows of a thread take turns."""
    source = compile.SOURCE.read_text(encoding="utf-8")
    jobs = []
    pairs = itertools.product(launch.TYPES, launch.HEAD_SIZES, launch.HEAD_SIZES)
    for number, (dtype, d_k, d_v) in enumerate(pairs, seed):
        for turn, architecture in enumerate(compile.ARCHITECTURES):
            rows = 1 if dtype == torch.float64 else (1, 2)[(number // 2 + turn) % 2]
            jobs.append((Variant(launch.TYPES[dtype], d_k, d_v, rows), architecture))
    variants, architectures = zip(*jobs, strict=True)
    found = list(workers.map(compile_one, itertools.repeat(source), variants, architectures, chunksize=4))
    report(error for _, _, error in found if error)
    spilling = [
        f"{variant} spills {spills} bytes on {architecture}"
        for (variant, architecture), (_, spills, _) in zip(jobs, found, strict=True)
        if spills and max(variant.d_k, variant.d_v) <= 64
    ]
    report(spilling)
    right = not spilling and not any(error for _, _, error in found)
    registers = max(registers for registers, _, _ in found)
    what = f"{len(jobs)} variants, {compile.ARCHITECTURES[0]} to {compile.ARCHITECTURES[-1]}"
    result = f"all to machine code: no spills up to d = 64, {registers} registers at most"
    return [Row("NVRTC compiles", what, result if right else "see above", right)]


def mutations(workers: ProcessPoolExecutor, seed: int) -> list[Row]:
    broken = mutate.MUTATIONS + mutate.LAUNCHER_MUTATIONS
    catches = list(workers.map(mutate.run, broken))
    found = zip(broken, catches, strict=True)
    report(f"not caught: {mutation.what}" for mutation, catch in found if catch is None)
    what = (
        f"{len(mutate.MUTATIONS)} mutations of the kernel, {len(mutate.LAUNCHER_MUTATIONS)} of its launcher"
    )
    return [Row("broken copies are caught", what, mutate.summary(catches), all(catches))]


def tests(workers: ProcessPoolExecutor, seed: int) -> list[Row]:
    """The numbers of the lesson, extremes, the operator, gradients, the launcher, the cache."""
    command = [sys.executable, "-m", "pytest", "tests/kernels", "tests/maths", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "-k", "not mutations and not notebook and not any_two_factors"]
    command += ["-n", str(os.cpu_count() or 1)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    if done.returncode != 0:
        report([done.stdout[-5000:], done.stderr[-2000:]])
    counts = re.sub(r"[= ]*(.*?) in .*", r"\1", summary)
    what = "worked example, extremes, operator, gradients, launcher"
    return [Row("pytest", what, counts, done.returncode == 0)]


def report(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"    {line}", flush=True)


PROOFS: dict[str, Callable[[ProcessPoolExecutor, int], list[Row]]] = {
    "grid": grid,
    "orders": orders,
    "tests": tests,
    "mutations": mutations,
    "compile": compiled,
}


def one_thread() -> None:
    torch.set_num_threads(1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.check", description=__doc__)
    parser.add_argument("proofs", nargs="*", help=f"some of: {', '.join(PROOFS)} (all if none is named)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    options = parser.parse_args(arguments)
    if unknown := set(options.proofs) - set(PROOFS):
        parser.error(f"no such proof: {', '.join(sorted(unknown))}; there are {', '.join(PROOFS)}")
    if emulator.compiler() is None:
        print("the emulator needs a C++ compiler: install g++, or set CXX")
        return 1
    print(f"seed {options.seed} (--seed draws the same cases and numbers again)", flush=True)
    rows = []
    with ProcessPoolExecutor(os.cpu_count(), initializer=one_thread) as workers:
        for name in options.proofs or PROOFS:
            start = time.perf_counter()
            print(f"{name} ...", flush=True)
            first, *others = PROOFS[name](workers, options.seed)
            rows += [dataclasses.replace(first, seconds=time.perf_counter() - start), *others]
    print_table(rows)
    return 1 if any(row.right is False for row in rows) else 0


def print_table(rows: list[Row]) -> None:
    cells: list[tuple[Any, ...]] = [("proof", "what", "result", "", "s")]
    verdicts = {True: "right", False: "WRONG", None: ""}
    cells += [
        (row.proof, row.what, row.result, verdicts[row.right], f"{row.seconds:.0f}" if row.seconds else "")
        for row in rows
    ]
    widths = [max(len(str(line[column])) for line in cells) for column in range(5)]
    print()
    for line in cells:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
