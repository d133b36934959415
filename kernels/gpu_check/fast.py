"""The stage that asks how fast the kernel is, beside every backend of scaled_dot_product_attention.

Times are those of CUDA graphs, replayed: what the GPU does, without the Python that launches it. A graph
holds the same work several times over, so that the launch of the graph itself hardly counts.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import attention, bench, formula, gpu
from kernels.gpu_check.correct import Visit
from kernels.gpu_check.place import Place
from kernels.gpu_check.record import NotRun

ROUNDS = 15
REPEATS = 10  # of the work within a graph
SHAPES = {  # batch, heads, n = m, d_k = d_v, causal (else padded)
    "(1024, 4, 120, 16) padded": (1024, 4, 120, 16, False),
    "(64, 4, 120, 16) padded": (64, 4, 120, 16, False),
    "(64, 4, 512, 16) padded": (64, 4, 512, 16, False),
    "(1, 12, 1024, 64) causal": (1, 12, 1024, 64, True),
}
DRY_SHAPES = {
    "(2, 2, 9, 8) padded": (2, 2, 9, 8, False),
    "(1, 2, 9, 8) causal": (1, 2, 9, 8, True),
}
BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One thing to time: an attention, alone or with its gradients, with the weights or without."""

    shape: str
    size: bench.Shape
    backward: bool
    weights: bool

    @property
    def name(self) -> str:
        dtype = str(self.size.dtype).removeprefix("torch.")
        kind = "forward + backward" if self.backward else "forward"
        return f"{self.shape}, {dtype}, {kind}{', weights' if self.weights else ''}"


def jobs(dry: bool) -> Iterator[Job]:
    """The most important first: shapes in order, without weights before with them."""
    dtypes = (torch.float32, torch.bfloat16)
    shapes = DRY_SHAPES if dry else SHAPES
    for weights, (name, shape), dtype, backward in itertools.product(
        (False, True), shapes.items(), dtypes, (False, True)
    ):
        batch, heads, n, d, causal = shape
        yield Job(name, bench.Shape(batch, heads, n, n, d, d, dtype, causal), backward, weights)


def times(visit: Visit) -> None:
    """Our time, PyTorch's times, and the least that the measured bandwidth and arithmetic allow."""
    rates = measured_rates(visit.place, 64 if visit.place.dry else 8192)
    visit.record.figure("measured rates", **rates)
    drawn = list(jobs(visit.place.dry))
    timed = 0
    for job in drawn:
        if not visit.time_left():
            break
        visit.record.figure(job.name, **time_job(job, visit.place, rates))
        timed += 1
    if timed < len(drawn):
        raise NotRun(f"time for {timed} of {len(drawn)} jobs; theirs are in the file")


def measured_rates(place: Place, size: int) -> dict[str, float]:
    """Bytes a second of a large copy, and operations a second of large matrix products."""
    source = torch.zeros(size * size, device=place.device)
    target = torch.empty_like(source)
    copy = _milliseconds(place, lambda: (target.copy_(source),))
    rates = {"bytes": 2 * source.numel() * source.element_size() / copy * 1e3}
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(size // 2, size // 2, device=place.device).to(dtype)
        product = _milliseconds(place, lambda a=a: (a @ a,))  # type: ignore[misc]
        rates[str(dtype)] = 2 * (size // 2) ** 3 / product * 1e3
    torch.backends.cuda.matmul.allow_tf32 = allowed
    return rates


def _milliseconds(place: Place, work: Callable[[], tuple[Tensor, ...]]) -> float:
    rounds, repeats = (2, 2) if place.dry else (ROUNDS, REPEATS)

    def repeated() -> tuple[Tensor, ...]:
        for _ in range(repeats - 1):
            work()
        return work()

    return place.milliseconds(place.capture(repeated).replay, rounds) / repeats


def time_job(job: Job, place: Place, rates: dict[str, float]) -> dict[str, Any]:
    """`ours_ms`, `others_ms` by backend (None: it does not take this), `least_ms`, and what they come to."""
    size, dtype = job.size, job.size.dtype
    g = torch.Generator(place.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=place.device).to(dtype)

    q, k, v = (
        normal(size.batch, length, size.heads, d).transpose(1, 2).requires_grad_(job.backward)
        for length, d in ((size.n, size.d_k), (size.m, size.d_k), (size.m, size.d_v))
    )
    out_grad = normal(size.batch, size.heads, size.n, size.d_v)
    weights_grad = normal(size.batch, size.heads, size.n, size.m) if job.weights else None
    masks: dict[str, Any] = {"causal": size.causal}
    mask, read = None, 1.0
    if not size.causal:
        lengths = torch.randint(size.m // 2, size.m + 1, (size.batch,), generator=g, device=place.device)
        masks["key_lengths"] = lengths
        read = lengths.double().mean().item() / size.m  # the share of keys that is no padding
        mask = formula.additive_mask(size.n, size.m, key_lengths=lengths, like=q)
        assert mask is not None
        mask = mask.expand(size.batch, 1, size.n, size.m).contiguous()

    def work(attend: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
        def step() -> tuple[Tensor, ...]:
            results = attend()
            if not job.backward:
                return results
            grads = (out_grad, weights_grad) if job.weights else (out_grad,)
            return (*results, *torch.autograd.grad(results, (q, k, v), grads))

        return step

    def ours() -> tuple[Tensor, ...]:
        if job.weights:
            return attention(q, k, v, **masks, return_weights=True)
        return (attention(q, k, v, **masks),)

    if not place.dry:
        gpu.warm_up(place.device, dtype, size.d_k, size.d_v)
    with place.attending():
        ours_ms = _milliseconds(place, work(ours))
    others = dict(_others(job, place, work, q, k, v, mask))
    return {"ours_ms": ours_ms, "others_ms": others} | _bounds(job, rates, read, ours_ms, others)


def _others(
    job: Job,
    place: Place,
    work: Callable[[Callable[[], tuple[Tensor, ...]]], Callable[[], tuple[Tensor, ...]]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
) -> Iterator[tuple[str, float | None]]:
    """PyTorch's times: each backend, or the formula in its operators where the weights are asked for."""
    causal = job.size.causal
    if job.weights:
        hidden = formula.additive_mask(job.size.n, job.size.m, mask=mask, causal=causal, like=q)
        yield "formula", _tried(place, work(lambda: formula.attention(q, k, v, hidden)))
        return
    for name, backend in BACKENDS.items():

        def theirs(given: Tensor | None = mask) -> tuple[Tensor, ...]:
            return (functional.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=causal),)

        yield name, _tried(place, work(theirs), backend)
        if name == "flash" and mask is not None:  # it takes no mask: what it takes to compute more than asked
            yield "flash without its mask", _tried(place, work(lambda: theirs(None)), backend)


def _tried(
    place: Place, step: Callable[[], tuple[Tensor, ...]], backend: SDPBackend | None = None
) -> float | None:
    """The time, or None where PyTorch has no kernel for this."""
    try:
        with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
            step()  # outside of any capture, which an error would leave half done
            return _milliseconds(place, step)
    except RuntimeError:
        return None


def _bounds(
    job: Job, rates: dict[str, float], read: float, ours_ms: float, others: dict[str, float | None]
) -> dict[str, Any]:
    """The least time by bytes and by operations, and ours as multiples of it and of PyTorch's best."""
    size = job.size
    kernels = ["attention_forward"]
    kernels += [plan.kernel for plan in size.launches(backward=True)] if job.backward else []
    moved = sum(size.least_bytes(kernel) for kernel in kernels)
    moved += (
        job.weights * (1 + job.backward) * size.batch * size.heads * size.n * size.m * size.dtype.itemsize
    )
    operations = read * sum(size.operations(kernel) for kernel in kernels)
    least = max(1e3 * moved / rates["bytes"], 1e3 * operations / rates[str(size.dtype)])
    known = {name: ms for name, ms in others.items() if ms is not None and "without" not in name}
    best = min(known, key=lambda name: known[name]) if known else None
    return {
        "least_ms": least,
        "ours_over_least": ours_ms / least,
        "best": best,
        "ours_over_best": ours_ms / known[best] if best else None,
    }
