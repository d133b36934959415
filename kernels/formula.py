"""Attention as the formula reads: softmax(Q Kᵀ / √d_k + mask) V. All implementations are compared with it."""

import math

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the output (..., n, d_v) and the attention weights (..., n, m).

    Shapes: q (..., n, d_k), k (..., m, d_k), v (..., m, d_v); mask is additive (0 = may read, -inf = may not)
    and broadcasts to (..., n, m). A query that may read no key gets zero weights and a zero output.
    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (..., n, m)
    if mask is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        # softmax of a row of -inf is NaN, as is its gradient: unmask such a row, and set it to 0 afterwards.
        reads_nothing = (mask == -math.inf).all(dim=-1, keepdim=True)
        weights = torch.softmax(scores + mask.masked_fill(reads_nothing, 0.0), dim=-1)
        weights = weights.masked_fill(reads_nothing, 0.0)
    return weights @ v, weights


def additive_mask(
    n: int,
    m: int,
    *,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    like: Tensor,
) -> Tensor | None:
    """Fold a mask, key lengths (batch,) and the causal rule (j > i hidden) into one additive mask.

    The result broadcasts to (batch, heads, n, m) and has the type and device of `like`; None if all may read.
    """
    combined = None if mask is None else mask.to(dtype=like.dtype, device=like.device)
    keys = torch.arange(m, device=like.device)
    hidden = []
    if key_lengths is not None:
        hidden.append(keys >= key_lengths.to(like.device)[..., None, None, None])  # (batch, 1, 1, m)
    if causal:
        hidden.append(keys > torch.arange(n, device=like.device)[:, None])  # (n, m)
    for rule in hidden:
        penalty = torch.zeros(rule.shape, dtype=like.dtype, device=like.device).masked_fill(rule, -math.inf)
        combined = penalty if combined is None else combined + penalty
    return combined


def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    out_grad: Tensor | None,
    weights_grad: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from the weights (..., n, m) and the gradients of output and weights.

    Either gradient may be None, where that result was not used.
    With P the weights: dP = dOut Vᵀ plus the weights' own gradient,
    dS = P (dP - sum_j P dP), dQ = dS K / √d_k, dK = dSᵀ Q / √d_k, dV = Pᵀ dOut.
    """
    p_grad = torch.zeros_like(weights) if weights_grad is None else weights_grad
    v_grad = torch.zeros_like(v)
    if out_grad is not None:
        p_grad = p_grad + out_grad @ v.transpose(-2, -1)  # (..., n, m)
        v_grad = weights.transpose(-2, -1) @ out_grad
    s_grad = weights * (p_grad - (weights * p_grad).sum(dim=-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return s_grad @ k, s_grad.transpose(-2, -1) @ q, v_grad
