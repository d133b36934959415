"""`attention`: the one function through which every model of this project attends, as a PyTorch operator.

On a GPU the operator runs attention.cu. On a CPU it runs PyTorch's fused function, which is several times
faster than the formula, or the formula where that function does not apply (d_v != d_k, weights asked for);
within `emulated()` it runs attention.cu there too. For an ONNX graph it is the formula: standard operators.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernels import formula, launch

_emulation: dict[str, Any] | None = None  # what `emulated` passes to kernels.emulator.Emulator


@contextlib.contextmanager
def emulated(order: str = "in order", source: pathlib.Path | None = None) -> Iterator[None]:
    """Attention on the CPU runs attention.cu, forward and backward, thread by thread in the emulator.

    It holds for every thread of the process. `order` is that of the CUDA threads ("in order", "reverse",
    "random"); `source` is a file to run instead of attention.cu. Thousands of times slower than PyTorch: for
    tests and for watching the kernel work. A backward pass is emulated if its forward pass was. Raises
    EmulatorError without a C++ compiler, and where the kernel does what a GPU would not allow.
    """
    global _emulation
    outer, _emulation = _emulation, {"order": order} | ({} if source is None else {"source": source})
    try:
        yield
    finally:
        _emulation = outer


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    return_weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    return_weights: bool,
) -> Any: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √d_k + mask) V, and the softmax rows too if `return_weights`.

    Shapes: q (..., heads, n, d_k), k (..., heads, m, d_k), v (..., heads, m, d_v) -> (..., heads, n, d_v)
    and weights (..., heads, n, m). `mask` is additive float (0 = may read, -inf = may not) and broadcasts to
    (..., heads, n, m); `key_lengths` (...,), one for each of the batch, hides the keys from there on;
    `causal` hides key j from query i < j. A query that may read nothing gives zeros. Gradients flow to q, k
    and v. Raises TypeError for a boolean mask, ValueError for shapes that do not fit, for tensors on
    different devices and, on a GPU, for types and sizes that attention.cu does not take.
    """
    _check(q, k, v, mask, key_lengths)
    if torch.onnx.is_in_onnx_export():
        out, weights = formula.attention(q, k, v, _combined(q, k, mask, key_lengths, causal))
        return (out, weights) if return_weights else out
    lead = q.shape[:-3]
    if len(lead) != 1:  # the operator has one batch axis
        if mask is not None and mask.dim() > 3:
            mask = mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
        if key_lengths is not None:
            key_lengths = key_lengths.reshape(-1)
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    out, _, weights = torch.ops.larkfield.attention(q, k, v, mask, key_lengths, causal, return_weights)
    if len(lead) != 1:
        out = out.reshape(*lead, *out.shape[1:])
        weights = weights.reshape(*lead, *weights.shape[1:]) if return_weights else weights
    return (out, weights) if return_weights else out


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_lengths: Tensor | None) -> None:
    if mask is not None and not mask.is_floating_point():
        raise TypeError(
            f"mask has type {mask.dtype}, expected an additive float mask: 0 where a query may read a "
            "key, -inf where it may not. A boolean mask means opposite things to nn.MultiheadAttention (True "
            "= may not read) and to scaled_dot_product_attention (True = may read); with the wrong one a row "
            "that may read nothing comes out as zeros, and nothing complains. If True means 'may read', pass "
            "torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)."
        )
    if mask is not None and mask.requires_grad:
        raise ValueError("mask requires a gradient, and attention computes none for it: pass mask.detach()")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.dim(), k.dim(), v.dim()) < 3:
        raise ValueError(
            f"{shapes}: expected (..., heads, n, d_k), (..., heads, m, d_k) and (..., heads, m, d_v)"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{shapes}: queries and keys must have the same size d_k (the last dimension)")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{shapes}: there must be one value for each key (the dimension before the last)")
    if q.shape[:-2] != k.shape[:-2] or q.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"{shapes}: batch and heads (all but the last two dimensions) must be the same")
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        raise ValueError(f"q, k and v have types {q.dtype}, {k.dtype}, {v.dtype}: expected one float type")
    launch.refuse_other_devices(q, {"k": k, "v": v, "mask": mask, "key_lengths": key_lengths})
    if key_lengths is not None:
        if key_lengths.is_floating_point() or key_lengths.dtype == torch.bool:
            raise TypeError(f"key_lengths has type {key_lengths.dtype}, expected whole numbers of keys")
        if key_lengths.shape != q.shape[:-3]:
            batch = tuple(q.shape[:-3])
            raise ValueError(f"key_lengths {tuple(key_lengths.shape)}: expected one for each of {batch}")
    if mask is not None:
        wanted = (*q.shape[:-1], k.shape[-2])  # (..., heads, n, m)
        fits = mask.dim() <= len(wanted) and all(
            size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(wanted), strict=False)
        )
        if not fits:
            raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to (..., heads, n, m) = {wanted}")


# ---- the operator: (batch, heads, length, d) only, arguments already checked


@torch.library.custom_op("larkfield::attention", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if _emulation is not None:
        from kernels.emulator import Emulator  # loads no library of the emulator before it is wanted

        with Emulator(**_emulation) as device:
            results = launch.forward(device, q, k, v, mask, key_lengths, causal, return_weights)
            return tuple(x.clone() for x in results)  # type: ignore[return-value]
    combined = _combined(q, k, mask, key_lengths, causal)
    if _formula_on_cpu(q, v, return_weights):
        out, weights = formula.attention(q, k, v, combined)
        return _heads_last(out), q.new_empty(0), weights if return_weights else q.new_empty(0)
    out, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=_four_axes(combined)
    )
    return _heads_last(out), log_sum_exp.contiguous(), q.new_empty(0)


@torch.library.custom_op("larkfield::attention_backward", mutates_args=(), device_types="cpu")
def _attention_backward(
    out_grad: Tensor | None,
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
    if log_sum_exp.dim() == 4:  # the emulator ran the forward pass
        from kernels.emulator import Emulator

        out_grad = torch.zeros_like(out) if out_grad is None else out_grad
        with Emulator(**(_emulation or {})) as device:
            gradients = launch.backward(
                *(device, out_grad, weights_grad, q, k, v, out, log_sum_exp, weights),
                *(mask, key_lengths, causal),
            )
            return tuple(x.clone() for x in gradients)  # type: ignore[return-value]
    combined = _combined(q, k, mask, key_lengths, causal)
    if _formula_on_cpu(q, v, weights.dim() == 4):
        p = weights if weights.dim() == 4 else formula.attention(q, k, v, combined)[1]
        gradients = formula.gradients(q, k, v, p, out_grad, weights_grad)
    else:
        assert out_grad is not None  # there are no weights that could have been used instead
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            out_grad, q, k, v, out, log_sum_exp, 0.0, False, attn_mask=_four_axes(combined)
        )
    return tuple(_heads_last(x) for x in gradients)  # type: ignore[return-value]


@_attention.register_kernel("cuda")
def _attention_cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from kernels.gpu import Gpu  # needs cuda-core, which only GPU machines have to have

    return launch.forward(Gpu(q.device), q, k, v, mask, key_lengths, causal, return_weights)


@_attention_backward.register_kernel("cuda")
def _attention_backward_cuda(
    out_grad: Tensor | None,
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
    from kernels.gpu import Gpu

    return launch.backward(
        *(
            Gpu(q.device),
            torch.zeros_like(out) if out_grad is None else out_grad,
            weights_grad,
            q,
            k,
            v,
            out,
            log_sum_exp,
            weights,
        ),
        *(mask, key_lengths, causal),
    )


@_attention.register_fake
def _attention_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    on_cpu = q.device.type == "cpu" and _emulation is None
    saved: tuple[int, ...] = (batch, heads, n) if on_cpu else (batch, heads, n, 2)
    if on_cpu and _formula_on_cpu(q, v, return_weights):
        saved = (0,)
    log_sum_exp = q.new_empty(saved, dtype=q.dtype if saved == (0,) else launch.accumulate_type(q.dtype))
    return out, log_sum_exp, q.new_empty((batch, heads, n, k.shape[-2]) if return_weights else (0,))


@_attention_backward.register_fake
def _attention_backward_shapes(
    out_grad: Tensor | None,
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
    return _empty_heads_last(q), _empty_heads_last(k), _empty_heads_last(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, key_lengths, causal, return_weights = inputs
    ctx.save_for_backward(q, k, v, mask, key_lengths, *output)
    ctx.causal, ctx.return_weights = causal, return_weights
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, out_grad: Tensor | None, _: Tensor | None, weights_grad: Tensor | None
) -> tuple[Tensor | None, ...]:
    q, k, v, mask, key_lengths, out, log_sum_exp, weights = ctx.saved_tensors
    if not ctx.return_weights:
        weights_grad = None
    if out_grad is None and weights_grad is None:
        return (None,) * 7
    gradients = torch.ops.larkfield.attention_backward(
        *(out_grad, weights_grad, q, k, v, out, log_sum_exp, weights, mask, key_lengths, ctx.causal),
    )
    return (*gradients, None, None, None, None)


_attention.register_autograd(_gradients, setup_context=_save)


def _combined(
    q: Tensor, k: Tensor, mask: Tensor | None, key_lengths: Tensor | None, causal: bool
) -> Tensor | None:
    n, m = q.shape[-2], k.shape[-2]
    return formula.additive_mask(n, m, mask=mask, key_lengths=key_lengths, causal=causal, like=q)


def _four_axes(mask: Tensor | None) -> Tensor | None:
    """The mask with leading axes of 1, as PyTorch's fused function wants it."""
    return None if mask is None else mask.reshape((1,) * (4 - mask.dim()) + mask.shape)


def _formula_on_cpu(q: Tensor, v: Tensor, return_weights: bool) -> bool:
    """Whether to use the formula: PyTorch's fused function returns no weights and requires d_v = d_k."""
    return return_weights or q.shape[-1] != v.shape[-1]


def _empty_heads_last(x: Tensor) -> Tensor:
    batch, heads, length, d = x.shape
    return x.new_empty(batch, length, heads, d).transpose(1, 2)


def _heads_last(x: Tensor) -> Tensor:
    """(batch, heads, length, d), in memory (batch, length, heads, d): merging the heads costs nothing."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _in_standard_operators(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_lengths: Tensor | None,
    causal: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out, weights = formula.attention(q, k, v, _combined(q, k, mask, key_lengths, causal))
    return out, q.new_empty(0), weights if return_weights else q.new_empty(0)


# For a program that torch.export made, on its way to ONNX: program.run_decompositions(DECOMPOSITIONS).
DECOMPOSITIONS = {torch.ops.larkfield.attention.default: _in_standard_operators}
