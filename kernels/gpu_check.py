"""The kernel on a GPU: is it right, and how fast against PyTorch's own. Within five minutes.

Not yet run on a device: it was written on a machine without one, where its parts ran on the CPU, with the
emulator for the kernel (tests/kernels/test_gpu_check.py). `make gpu-check` runs it.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import attention, bench, cases, formula, launch, rounding
from kernels.cases import Case
from kernels.launch import Variant

SECONDS = 285.0  # for all of it
GRID_SECONDS = 120.0  # most of it is compiling: machines with few cores run fewer cases
SANITIZER_SECONDS = 60.0
ROUNDS = 30
BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


class Clock:
    """Seconds since the start, and whether a deadline has passed."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def past(self, deadline: float) -> bool:
        return self.seconds() > deadline


# ---- right?


def small_grid(seed: int) -> Iterator[Case]:
    """Cases of every type, mask, layout and length; few pairs of head sizes, for each is a compilation."""
    pairs = [(8, 8), (16, 16), (64, 64), (64, 32), (8, 128), (128, 128), (32, 16)]
    rng = random.Random(seed)
    for case in cases.pairwise(seed):
        d_k, d_v = rng.choice(pairs)
        yield dataclasses.replace(case, d_k=d_k, d_v=d_v)


def variants(case: Case) -> set[Variant]:
    """What has to be compiled for a case."""
    lengths = {"attention_forward": case.n, "attention_backward_q": case.n, "attention_backward_kv": case.m}
    return {
        launch.plan(kernel, case.dtype, 1, length, case.d_k, case.d_v).variant
        for kernel, length in lengths.items()
    }


def compile_ahead(drawn: list[Case], architecture: str, clock: Clock, deadline: float) -> int:
    """Fill the disk cache on all cores; how many variants are ready when the deadline comes."""
    from kernels.compile import code

    wanted = list(dict.fromkeys(variant for case in drawn for variant in sorted(variants(case), key=repr)))
    ready = 0
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        jobs = [workers.submit(code, variant, architecture) for variant in wanted]
        for job in jobs:
            if clock.past(deadline):
                job.cancel()
                continue
            job.result()
            ready += 1
    return ready


def right(
    drawn: list[Case],
    seed: int,
    make_device: Callable[[], launch.Device],
    to: torch.device,
    clock: Clock,
    deadline: float,
) -> tuple[int, list[str], dict[torch.dtype, rounding.Total]]:
    """Hold results on the device to the float64 formula: cases run, what is wrong, largest errors."""
    found, wrong = [], []
    for number, case in enumerate(drawn):
        if clock.past(deadline):
            break
        inputs = cases.draw(case, seed + number)
        moved = inputs.map(lambda _, x: x.to(to, copy=True))
        first = cases.run(make_device(), moved, case.causal)
        again = cases.run(make_device(), moved, case.causal)
        errors = rounding.judge(first, inputs, case.causal)
        found.append((case, errors))
        if max(error.share for error in errors.values()) > 1:
            wrong.append(f"{case}, seed {seed + number}: {errors}")
        wrong += [
            f"{case}, seed {seed + number}: {name} differs between two runs"
            for name in first
            if not torch.equal(first[name], again[name])
        ]
    return len(found), wrong, rounding.totals(found)


def graph_problem(device: torch.device) -> str | None:
    """Capture forward and backward in a CUDA graph, replay it on new numbers; what differs, or None."""
    q, k, v = (torch.randn(2, 4, 100, 16, device=device, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([100, 60], device=device)

    def step() -> tuple[Tensor, ...]:
        out = attention(q, k, v, key_lengths=lengths)
        return (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles and warms up before the capture, on a stream of its own
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    differing = [i for i, (a, b) in enumerate(zip(captured, step(), strict=True)) if not torch.equal(a, b)]
    return f"results {differing} of a captured graph differ" if differing else None


def sanitizer_problem(tool: str) -> str | None:
    """What NVIDIA's compute-sanitizer (`memcheck`, `racecheck`, `synccheck`) finds in a few small cases."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not run: compute-sanitizer is not installed"
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", __spec__.name, "--few"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SANITIZER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not finished within {SANITIZER_SECONDS:.0f} s"
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-1500:]


# ---- how fast?


def milliseconds(work: Callable[[], Any], device: torch.device, rounds: int = ROUNDS) -> float:
    """The median time of `work`, by device events (on a CPU, by its clock)."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        if device.type != "cuda":
            start = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - start))
            continue
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def measured_rates(device: torch.device, size: int = 8192) -> dict[str, float]:
    """Bytes a second of a large copy, and operations a second of large matrix products."""
    source = torch.empty(size * size, device=device)
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), device, 10)
    rates = {"bytes": 2 * source.numel() * source.element_size() / copy * 1e3}
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(size // 2, size // 2, device=device).to(dtype)
        product = milliseconds(lambda a=a: a @ a, device, 10)  # type: ignore[misc]
        rates[str(dtype)] = 2 * (size // 2) ** 3 / product * 1e3
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return rates


@dataclasses.dataclass
class Timing:
    shape: str
    dtype: str
    backward: bool
    ours_ms: float
    others_ms: dict[str, float | None]  # None: this backend does not take the shape, the type or the mask
    least_ms: float  # the larger of byte time and arithmetic time at the measured rates
    bandwidth_share: float  # least bytes over our time, as a share of the copy's bandwidth

    @property
    def best(self) -> tuple[str, float] | None:
        known = {name: ms for name, ms in self.others_ms.items() if ms is not None and "mask" not in name}
        return min(known.items(), key=lambda item: item[1]) if known else None

    def line(self) -> str:
        others = "  ".join(
            f"{name} {'-' if ms is None else f'{ms / self.ours_ms:.2f}x'}"
            for name, ms in self.others_ms.items()
        )
        name = f"{self.shape}, {self.dtype.removeprefix('torch.')}, {'fwd + bwd' if self.backward else 'fwd'}"
        verdict = ""
        if self.best is not None:
            verdict = f"{self.ours_ms / self.best[1]:.2f} of the best ({self.best[0]})"
        least = f"{self.ours_ms / self.least_ms:6.2f} of the least"
        share = f"{100 * self.bandwidth_share:3.0f} % of bandwidth"
        return f"{name:66} {self.ours_ms:8.3f} ms  {verdict:32} {least}, {share}  others / ours: {others}"


def time_shape(
    name: str,
    one: bench.Shape,
    backward: bool,
    device: torch.device,
    rates: dict[str, float],
    rounds: int = ROUNDS,
) -> Timing:
    """Our time and that of every backend of scaled_dot_product_attention, padded or else causal."""
    g = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(one.batch, length, one.heads, d, generator=g, device=device)
        .to(one.dtype)
        .transpose(1, 2)
        .requires_grad_(backward)
        for length, d in ((one.n, one.d_k), (one.m, one.d_k), (one.m, one.d_v))
    )
    padding: dict[str, Any] = {}
    mask, real_keys = None, 1.0
    if not one.causal:
        lengths = torch.randint(one.m // 2, one.m + 1, (one.batch,), generator=g, device=device)
        padding = {"key_lengths": lengths}
        real_keys = lengths.double().mean().item() / one.m
        mask = formula.additive_mask(one.n, one.m, key_lengths=lengths, like=q)
        assert mask is not None
        mask = mask.expand(one.batch, 1, one.n, one.m).contiguous()
    out_grad = torch.randn(one.batch, one.heads, one.n, one.d_v, generator=g, device=device).to(one.dtype)

    def work(attend: Callable[[], Tensor]) -> Callable[[], Any]:
        if not backward:
            return attend
        return lambda: torch.autograd.grad(attend(), (q, k, v), out_grad)

    ours = milliseconds(work(lambda: attention(q, k, v, causal=one.causal, **padding)), device, rounds)
    others: dict[str, float | None] = {}
    for backend, kind in BACKENDS.items():
        masks = [(backend, mask)] + (
            [(f"{backend} without its mask", None)] if backend == "flash" and mask is not None else []
        )
        for label, given in masks:

            def theirs(given: Tensor | None = given) -> Tensor:
                return functional.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=one.causal)

            try:
                with sdpa_kernel(kind):
                    others[label] = milliseconds(work(theirs), device, rounds)
            except RuntimeError:  # no kernel for this, or no memory
                others[label] = None
    kernels = bench.KERNELS if backward else bench.KERNELS[:1]
    least_bytes = sum(one.least_bytes(kernel) for kernel in kernels)
    operations = real_keys * sum(one.operations(kernel) for kernel in kernels)
    byte_ms, arithmetic_ms = 1e3 * least_bytes / rates["bytes"], 1e3 * operations / rates[str(one.dtype)]
    return Timing(
        *(name, str(one.dtype), backward, ours, others),
        *(max(byte_ms, arithmetic_ms), byte_ms / ours),
    )


class Encoder(nn.Module):
    """A small pre-norm encoder whose attention is ours, or PyTorch's layer."""

    def __init__(
        self, ours: bool, vocabulary: int = 3000, d: int = 64, heads: int = 4, blocks: int = 2
    ) -> None:
        super().__init__()
        self.ours, self.heads = ours, heads
        self.embed = nn.Embedding(vocabulary, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * blocks))
        self.attention_layers = nn.ModuleList(
            nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(blocks)
        )
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d)) for _ in range(blocks)
        )
        self.classify = nn.Linear(d, 5)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
        x = self.embed(ids)
        layers: Any = self.attention_layers  # their parts are typed as Tensor | Module
        for number, (layer, feed) in enumerate(zip(layers, self.feed, strict=True)):
            normed = self.norms[2 * number](x)
            if self.ours:
                packed = functional.linear(normed, layer.in_proj_weight, layer.in_proj_bias)
                q, k, v = packed.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
                out = layer.out_proj(attention(q, k, v, key_lengths=lengths).transpose(1, 2).flatten(2))
            else:
                hidden = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, -torch.inf)
                out = layer(normed, normed, normed, key_padding_mask=hidden, need_weights=False)[0]
            x = x + out
            x = x + feed(self.norms[2 * number + 1](x))
        return self.classify(x.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None])


def epoch_seconds(
    ours: bool, device: torch.device, tickets: int = 20_000, batch: int = 256, n: int = 120
) -> float:
    """One epoch of training on random tickets of 10 to n tokens."""
    torch.manual_seed(0)
    model = Encoder(ours).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ids = torch.randint(2, 3000, (tickets, n), device=device)
    lengths = torch.randint(10, n + 1, (tickets,), device=device)
    teams = torch.randint(0, 5, (tickets,), device=device)

    def steps(first: int, last: int) -> None:
        for start in range(first, last, batch):
            part = slice(start, start + batch)
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(ids[part], lengths[part]), teams[part]).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    steps(0, 2 * batch)
    start = time.perf_counter()
    steps(0, tickets)
    return time.perf_counter() - start


# ---- all of it


def few_cases() -> list[str]:
    """Small cases, for compute-sanitizer: what is wrong with them."""
    from kernels.gpu import Gpu

    device = torch.device("cuda")
    drawn = [
        Case(n=65, m=129, mask="full", lengths="some", causal=True),
        Case(n=33, m=70, d_k=64, d_v=32, mask="rows hidden"),
        Case(torch.bfloat16, n=130, m=20, layout="packed"),
    ]
    return right(drawn, 0, lambda: Gpu(device), device, Clock(), SANITIZER_SECONDS)[1]


def check_right(device: torch.device, seed: int, clock: Clock) -> list[str]:
    """Print how the kernel compares to the formula; what is wrong."""
    from kernels.gpu import Gpu, architecture

    drawn = list(small_grid(seed))
    ready = compile_ahead(drawn, architecture(device), clock, GRID_SECONDS / 2)
    print(f"{ready} variants compiled in {clock.seconds():.0f} s")
    count, wrong, sums = right(drawn, seed, lambda: Gpu(device), device, clock, GRID_SECONDS)
    print(f"{count} of {len(drawn)} cases against the float64 formula, seed {seed}: {rounding.shares(sums)}")
    for name, found in rounding.relative(sums).items():
        print(f"    {name}: largest error / largest number: {found}")
    problem = graph_problem(device)
    print(f"CUDA graph: {problem or 'the replay is the same, bit for bit'}")
    wrong += [problem] if problem else []
    for tool in ("memcheck", "racecheck"):
        if clock.past(GRID_SECONDS + SANITIZER_SECONDS / 2):
            print(f"compute-sanitizer {tool}: no time left")
            continue
        problem = sanitizer_problem(tool)
        print(f"compute-sanitizer {tool}: {problem or 'nothing found'}")
        wrong += (
            [f"compute-sanitizer {tool}: {problem}"] if problem and not problem.startswith("not ") else []
        )
    return wrong


def check_fast(device: torch.device, clock: Clock) -> dict[str, Any]:
    """Print the times; all of them for --json."""
    rates = measured_rates(device)
    print(
        f"measured: copy {rates['bytes'] / 1e9:.0f} GB/s, matrix product float32 "
        f"{rates['torch.float32'] / 1e12:.1f} Tflop/s, bfloat16 {rates['torch.bfloat16'] / 1e12:.0f} Tflop/s"
    )
    timings = []
    for name in bench.SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for backward in (False, True):
                if clock.past(SECONDS - 30):
                    print(f"{name}, {dtype}: no time left")
                    continue
                timings.append(time_shape(name, bench.shape(name, dtype), backward, device, rates))
                print(timings[-1].line(), flush=True)
    for line in verdicts(timings):
        print(line)
    epochs = {"kernel": epoch_seconds(True, device), "PyTorch's layer": epoch_seconds(False, device)}
    ratio = epochs["kernel"] / epochs["PyTorch's layer"]
    print(f"one epoch of 20,000 random tickets: {epochs}, ratio {ratio:.2f}")
    return {"rates": rates, "timings": [dataclasses.asdict(one) for one in timings], "epoch_seconds": epochs}


def verdicts(timings: list[Timing]) -> list[str]:
    """The two targets: n <= 128 not slower than PyTorch's best; within 2 times the least possible."""
    lines = []
    for one in timings:
        name = f"{one.shape}, {one.dtype.removeprefix('torch.')}, {'fwd + bwd' if one.backward else 'fwd'}"
        short = bench.SHAPES[one.shape][2] <= 128
        if short and one.best is not None:
            met = one.ours_ms <= one.best[1]
            lines.append(f"{'met   ' if met else 'MISSED'} not slower than PyTorch's best: {name}")
        met = one.ours_ms <= 2 * one.least_ms
        lines.append(f"{'met   ' if met else 'MISSED'} within 2 times the least time: {name}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--json", type=pathlib.Path, help="write the measurements here too")
    parser.add_argument("--few", action="store_true", help="a few small cases only, for compute-sanitizer")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "gpu-check needs an NVIDIA GPU and a PyTorch built for CUDA; "
            f"this PyTorch ({torch.__version__}) sees none. Without a GPU: make kernel-check."
        )
        return 2
    if options.few:
        wrong = few_cases()
        print("\n".join(wrong) or "right")
        return 1 if wrong else 0
    clock, device = Clock(), torch.device("cuda", torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}", flush=True)
    wrong = check_right(device, options.seed, clock)
    measurements = check_fast(device, clock)
    if options.json:
        measurements["device"] = torch.cuda.get_device_name(device)
        options.json.write_text(json.dumps(measurements, indent=2), encoding="utf-8")
    print("\n".join(wrong) or "right: nothing differed")
    print(f"{clock.seconds():.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
