"""`attention`: the one function through which every model of this project attends."""

from torch import Tensor

from kernels import formula


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

    Shapes: q (..., heads, n, d_k), k (..., heads, m, d_k), v (..., heads, m, d_v) -> (..., heads, n, d_v) and
    weights (..., heads, n, m). `mask` is additive float (0 = may read, -inf = may not) and broadcasts to
    (..., heads, n, m); `key_lengths` (batch,) hides the keys from there on; `causal` hides key j from query i < j.
    A query that may read nothing gives zeros. Raises TypeError for a boolean mask.
    """
    if mask is not None and not mask.is_floating_point():
        raise TypeError(
            f"mask has type {mask.dtype}, expected an additive float mask: 0 where a query may read a key, -inf "
            "where it may not. A boolean mask means opposite things to nn.MultiheadAttention (True = may not read) "
            "and to scaled_dot_product_attention (True = may read). If True means 'may read', pass "
            "torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)."
        )
    n, m = q.shape[-2], k.shape[-2]
    combined = formula.additive_mask(n, m, mask=mask, key_lengths=key_lengths, causal=causal, like=q)
    out, weights = formula.attention(q, k, v, combined)
    return (out, weights) if return_weights else out
