"""Multi-head attention as the formula reads: MultiHead(X) = [head_1, ..., head_h] W_O.

head_i = Attention(X W_Q⁽ⁱ⁾, X W_K⁽ⁱ⁾, X W_V⁽ⁱ⁾), each head on its own d / h columns. All heads' matrices
are the columns of one matrix, so that one product computes the queries of all heads. There are 4d² + 4d
parameters for any number of heads.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from kernels import attention


class MultiHead(nn.Module):
    """`heads` heads of size d / heads, initialised like nn.MultiheadAttention.

    `dropout` is the share of attention weights dropped in training.
    """

    def __init__(self, d: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d % heads:
            raise ValueError(f"d = {d} must be a multiple of heads = {heads}")
        self.heads = heads
        self.dropout = dropout
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d, d) for _ in range(4))
        # PyTorch draws W_Q, W_K and W_V as one (3d, d) matrix: the bound of Glorot and Bengio (2010) for it.
        bound = math.sqrt(6 / (3 * d + d))
        for projection in (self.W_Q, self.W_K, self.W_V):
            nn.init.uniform_(projection.weight, -bound, bound)
        for projection in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.zeros_(projection.bias)

    def forward(
        self,
        reader: Tensor,
        read: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from `reader` (batch, n, d) to `read` (batch, m, d), by default to itself.

        Masks are those of `kernels.attention`. Returns (batch, n, d) and, if asked for, the weights
        (batch, heads, n, m) that were used, dropout included.
        """
        read = reader if read is None else read
        q, k, v = self._split(self.W_Q(reader)), self._split(self.W_K(read)), self._split(self.W_V(read))
        out: Tensor
        weights: Any = None
        masks: dict[str, Any] = {"mask": mask, "key_lengths": key_lengths, "causal": causal}
        if self.training and self.dropout:
            weights = functional.dropout(attention(q, k, v, **masks, return_weights=True)[1], self.dropout)
            out = weights @ v
        else:
            attended: Any = attention(q, k, v, **masks, return_weights=return_weights)
            out, weights = attended if return_weights else (attended, None)
        joined = self.W_O(out.transpose(1, 2).flatten(2))  # (batch, heads, n, d / heads) -> (batch, n, d)
        return (joined, weights) if return_weights else joined

    def _split(self, x: Tensor) -> Tensor:
        # (batch, n, d) -> (batch, heads, n, d / heads)
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
