"""What runs attention.cu: what it supports, each launch's shape, its parameters and its outputs.

`forward` and `backward` do the same for every device that can `empty` and `launch`: the GPU (kernels/gpu.py)
and the tests' emulator (kernels/emulator).
"""

import collections
import ctypes
import dataclasses
import math
import threading
from typing import Protocol

import torch
from torch import Tensor

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
HEAD_SIZES = (8, 16, 32, 64, 128)
WARP = 32
MAX_WARPS = 4  # as MAX_THREADS in attention.cu
ALL_KEYS_WARPS = 8  # as ALL_KEYS_THREADS
BUSY_WARPS = 8  # a multiprocessor with fewer waits for memory and arithmetic more than it computes
MAX_BLOCKS = 2**31 - 1


class Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)] + [(name, ctypes.c_int64) for name in ("batch", "head", "row")]


MATRICES = ("q", "k", "v", "out", "out_grad", "q_grad", "k_grad", "v_grad")


class Params(ctypes.Structure):
    """`struct Params` of attention.cu, byte for byte."""

    _fields_ = (
        [(name, Rows) for name in MATRICES]
        + [("mask", ctypes.c_void_p)]
        + [(f"mask_{axis}", ctypes.c_int64) for axis in ("batch", "head", "query", "key")]
        + [
            (name, ctypes.c_void_p)
            for name in ("key_lengths", "log_sum_exp", "delta", "weights", "weights_grad", "scores")
        ]
        + [("scale", ctypes.c_double)]
        + [(name, ctypes.c_int32) for name in ("heads", "n", "m", "causal")]
    )


@dataclasses.dataclass(frozen=True)
class Variant:
    """What attention.cu is compiled for."""

    type: str
    d_k: int
    d_v: int
    rows: int  # rows that one thread works on

    def macros(self) -> list[tuple[str, str]]:
        names = {"TYPE": self.type, "D_K": self.d_k, "D_V": self.d_v, "ROWS": self.rows}
        return [(name, str(value)) for name, value in names.items()]


def variants(dtype: torch.dtype, d_k: int, d_v: int) -> list[Variant]:
    """All variants that `plan` can return for any lengths."""
    rows = (1,) if dtype == torch.float64 else (1, 2)
    return [Variant(TYPES[dtype], d_k, d_v, one) for one in rows]


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch: the entry's name in attention.cu, the compiled variant, and the grid."""

    kernel: str
    variant: Variant
    blocks: int
    threads: int


class Device(Protocol):
    """Where kernels run."""

    multiprocessors: int  # that the grid should fill; 0: as many rows a thread as there are, on any device

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...

    def launch(self, launch: Launch, params: Params) -> None: ...


_counts: collections.Counter[str] = collections.Counter()
_counts_lock = threading.Lock()  # PyTorch runs backward in a thread of its own


def launches() -> dict[str, int]:
    """How often this process launched each kernel, by its name; replays of a CUDA graph are not counted."""
    with _counts_lock:
        return dict(_counts)


def _launch(device: Device, launch: Launch, params: Params) -> None:
    device.launch(launch, params)
    with _counts_lock:
        _counts[launch.kernel] += 1


def accumulate_type(dtype: torch.dtype) -> torch.dtype:
    """The type that sums, the mask and the log-sum-exp have."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def refuse_unsupported(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError, with a list of what is supported, for inputs that attention.cu does not support."""
    d_k, d_v = q.shape[-1], v.shape[-1]
    if q.dtype not in TYPES or d_k not in HEAD_SIZES or d_v not in HEAD_SIZES:
        raise ValueError(
            f"the attention kernel got type {q.dtype}, d_k = {d_k} and d_v = {d_v}. It takes "
            f"{', '.join(str(dtype) for dtype in TYPES)}; d_k and d_v of {', '.join(map(str, HEAD_SIZES))}, "
            "also different ones. Pad the last dimension with zeros up to one of these, or use the CPU."
        )
    largest = max(q.shape[-2], k.shape[-2])
    if largest >= 2**30:
        raise ValueError(f"the attention kernel takes up to 2**30 queries and keys, got {largest}")


def refuse_other_devices(q: Tensor, others: dict[str, Tensor | None]) -> None:
    """Raise ValueError for a tensor that is not on q's device: the kernel could not read its memory."""
    for name, x in others.items():
        if x is not None and x.device != q.device:
            raise ValueError(f"{name} is on {x.device} and q on {q.device}: move it with {name}.to(q.device)")


def lanes(kernel: str, d_k: int, d_v: int) -> int:
    """Threads that share a row (FORWARD_LANES and BACKWARD_LANES in attention.cu)."""
    d = max(d_k, d_v)
    return max(1, d // 16) if kernel == "attention_forward" else min(8, max(1, d // 8))


def used_rows(kernel: str, rows: int, d_k: int, d_v: int) -> int:
    """Rows that a thread of a kernel owns in a variant (FORWARD_ROWS and BACKWARD_ROWS in attention.cu)."""
    return 1 if kernel != "attention_forward" and max(d_k, d_v) > 64 else rows


def plan(
    kernel: str, dtype: torch.dtype, heads: int, length: int, d_k: int, d_v: int, multiprocessors: int = 0
) -> Launch:
    """The launch for `heads` (batch times heads) matrices of `length` owned rows.

    A thread with two rows executes fewer instructions a row than one with one, and a block of four warps
    copies fewer tiles than four of one warp; but few large blocks leave multiprocessors idle. Of the choices,
    the one whose busiest multiprocessor is done first. float64 has registers for one row.
    """
    rows_per_warp = WARP // lanes(kernel, d_k, d_v)
    most_rows = 1 if dtype == torch.float64 or length <= rows_per_warp else 2

    def used(rows: int) -> int:
        return used_rows(kernel, rows, d_k, d_v)

    def blocks(rows: int, warps: int) -> int:
        return heads * math.ceil(length / (rows_per_warp * used(rows) * warps))

    def time(rows: int, warps: int) -> float:
        """Of the busiest multiprocessor: a key costs a thread about one unit for each row, and one to read it
        from shared memory; copying tiles there costs a warp that is alone in its block 4 % more."""
        busiest = math.ceil(blocks(rows, warps) / multiprocessors) * warps
        return max(busiest, BUSY_WARPS) * (used(rows) + 1) * (1 + 0.04 / warps)

    most_warps = {
        rows: min(MAX_WARPS, math.ceil(length / (rows_per_warp * used(rows)))) for rows in (most_rows, 1)
    }
    rows, warps = most_rows, most_warps[most_rows]
    if multiprocessors:
        choices = [(r, w) for r, most in most_warps.items() for w in range(most, 0, -1)]
        rows, warps = min(choices, key=lambda choice: time(*choice))
    if blocks(rows, warps) > MAX_BLOCKS:
        raise ValueError(
            f"{heads} heads of {length} rows need {blocks(rows, warps)} blocks, a launch takes {MAX_BLOCKS}"
        )
    return Launch(kernel, Variant(TYPES[dtype], d_k, d_v, rows), blocks(rows, warps), WARP * warps)


def plan_all_keys(dtype: torch.dtype, heads: int, n: int, m: int, d_k: int, d_v: int) -> Launch | None:
    """The launch of `attention_backward`, a block a head.

    None where n > 128, or where a block has no room for m keys.
    """
    size = accumulate_type(dtype).itemsize
    rows_per_warp = WARP // lanes("attention_backward", d_k, d_v)
    rows = 1 if size == 8 or max(d_k, d_v) > 64 or m <= rows_per_warp else 2
    room = min(512 // size, ALL_KEYS_WARPS * rows_per_warp * rows, 16384 // (d_k * size))  # ALL_KEYS
    if n > 128 or m > room or heads > MAX_BLOCKS:
        return None
    warps = math.ceil(m / (rows_per_warp * rows))
    return Launch("attention_backward", Variant(TYPES[dtype], d_k, d_v, rows), heads, WARP * warps)


def readable(x: Tensor) -> Tensor:
    """`x` itself if the kernel can read it through its strides (rows 16-byte aligned), else a copy."""
    unit = 16 // x.element_size()
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride(), strict=False) if size > 1]
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in strides):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def heads_last(device: Device, batch: int, heads: int, length: int, d: int, dtype: torch.dtype) -> Tensor:
    """(batch, heads, length, d), in memory (batch, length, heads, d): merging the heads costs nothing."""
    return device.empty((batch, length, heads, d), dtype).transpose(1, 2)


def _rows(x: Tensor) -> Rows:
    return Rows(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def _params(
    matrices: dict[str, Tensor],
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    pointers: dict[str, Tensor | None],
) -> Params:
    q, k = matrices["q"], matrices["k"]
    refuse_other_devices(q, {**matrices, "mask": mask, "key_lengths": key_lengths, **pointers})
    params = Params(
        scale=1.0 / math.sqrt(q.shape[-1]),
        heads=q.shape[1],
        n=q.shape[2],
        m=k.shape[2],
        causal=causal,
        **{name: _rows(matrix) for name, matrix in matrices.items()},
    )
    if mask is not None:
        params.mask = mask.data_ptr()
        params.mask_batch, params.mask_head, params.mask_query, params.mask_key = mask.stride()
    if key_lengths is not None:
        params.key_lengths = key_lengths.data_ptr()
    for name, tensor in pointers.items():
        if tensor is not None:
            setattr(params, name, tensor.data_ptr())
    return params


def _prepared(
    q: Tensor, k: Tensor, mask: Tensor | None, key_lengths: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The mask in the kernel's type, with its full shape through strides of 0; the key lengths as int32."""
    if mask is not None:
        mask = mask.to(accumulate_type(q.dtype)).expand(*q.shape[:3], k.shape[2])
    if key_lengths is not None:
        key_lengths = key_lengths.to(torch.int32).contiguous()
    return mask, key_lengths


def forward(
    device: Device,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, log-sum-exp (batch, heads, n, 2), weights) for q (batch, heads, n, d_k) and so on.

    `mask` broadcasts to (batch, heads, n, m). A log-sum-exp is two numbers, the row's largest score times
    log2(e) and 1 / Σ exp(score - largest), which rounding hurts less than one; both are 0 for a row that
    reads nothing. The weights are empty unless asked for.
    """
    refuse_unsupported(q, k, v)
    (batch, heads, n, d_k), m, d_v = q.shape, k.shape[2], v.shape[3]
    out = heads_last(device, batch, heads, n, d_v, q.dtype)
    log_sum_exp = device.empty((batch, heads, n, 2), accumulate_type(q.dtype))
    weights = device.empty((batch, heads, n, m) if return_weights else (0,), q.dtype)
    if batch * heads * n == 0:
        return out, log_sum_exp, weights
    q, k, v = readable(q), readable(k), readable(v)
    mask, key_lengths = _prepared(q, k, mask, key_lengths)
    params = _params(
        {"q": q, "k": k, "v": v, "out": out},
        mask,
        key_lengths,
        causal,
        {"log_sum_exp": log_sum_exp, "weights": weights if return_weights else None},
    )
    chosen = plan("attention_forward", q.dtype, batch * heads, n, d_k, d_v, device.multiprocessors)
    _launch(device, chosen, params)
    return out, log_sum_exp, weights


def backward(
    device: Device,
    out_grad: Tensor,
    weights_grad: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    weights: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, from what `forward` took and returned.

    `weights_grad` is the gradient of the weights where they were asked for and used, else None.
    """
    (batch, heads, n, d_k), m, d_v = q.shape, k.shape[2], v.shape[3]
    q_grad = heads_last(device, batch, heads, n, d_k, q.dtype)
    k_grad = heads_last(device, batch, heads, m, d_k, q.dtype)
    v_grad = heads_last(device, batch, heads, m, d_v, q.dtype)
    delta = device.empty((batch, heads, n), accumulate_type(q.dtype))
    q, k, v, out, out_grad = (readable(x) for x in (q, k, v, out, out_grad))
    mask, key_lengths = _prepared(q, k, mask, key_lengths)
    weights_grad = None if weights_grad is None else weights_grad.contiguous()
    params = _params(
        dict(zip(MATRICES, (q, k, v, out, out_grad, q_grad, k_grad, v_grad), strict=True)),
        mask,
        key_lengths,
        causal,
        {
            "log_sum_exp": log_sum_exp,
            "delta": delta,
            "weights": None if weights_grad is None else weights,
            "weights_grad": weights_grad,
        },
    )
    all_keys = plan_all_keys(q.dtype, batch * heads, n, m, d_k, d_v)
    if all_keys and batch * heads * n * m > 0:
        _launch(device, all_keys, params)
        return q_grad, k_grad, v_grad
    for kernel, length in (("attention_backward_q", n), ("attention_backward_kv", m)):
        if batch * heads * length > 0:
            chosen = plan(kernel, q.dtype, batch * heads, length, d_k, d_v, device.multiprocessors)
            _launch(device, chosen, params)
    return q_grad, k_grad, v_grad


def naive(
    device: Device,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The output by `attention_naive`: shapes as for `forward`, with a matrix of scores (n, m) in memory."""
    refuse_unsupported(q, k, v)
    (batch, heads, n, d_k), m, d_v = q.shape, k.shape[2], v.shape[3]
    out = heads_last(device, batch, heads, n, d_v, q.dtype)
    scores = device.empty((batch, heads, n, m), accumulate_type(q.dtype))
    q, k, v = readable(q), readable(k), readable(v)
    mask, key_lengths = _prepared(q, k, mask, key_lengths)
    params = _params({"q": q, "k": k, "v": v, "out": out}, mask, key_lengths, causal, {"scores": scores})
    variant = Variant(TYPES[q.dtype], d_k, d_v, 1)
    _launch(device, Launch("attention_naive", variant, batch * heads * math.ceil(n / WARP), WARP), params)
    return out
