"""The network: a pre-norm transformer encoder that reads a ticket's tokens and scores the teams.

    token + position embeddings -> blocks of attention and feed-forward -> layer norm
    -> mean over the real tokens -> one linear layer

Two blocks of four heads at d = 64 by default. Id 0 is padding and stands only at the end of a ticket:
no token reads it, it reads nothing, and it has no part in the mean.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.multihead import MultiHead


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a network; the defaults are the body that every recipe shares."""

    vocab_size: int
    teams: int
    max_tokens: int = 120
    d: int = 64
    heads: int = 4
    blocks: int = 2
    feed_forward: int = 256
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)): nn.TransformerEncoderLayer, norm first."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.d)
        self.attention = MultiHead(config.d, config.heads, config.attention_dropout)
        self.norm_2 = nn.LayerNorm(config.d)
        self.up = nn.Linear(config.d, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.d)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, lengths: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (batch, n, d), lengths (batch,) -> the same shape; weights (batch, heads, n, n) if asked for."""
        read = self.attention(self.norm_1(x), key_lengths=lengths, return_weights=return_weights)
        out, weights = read if return_weights else (read, None)
        x = x + self.dropout(out)
        inner = self.dropout(functional.relu(self.up(self.norm_2(x))))
        x = x + self.dropout(self.down(inner))
        return x if weights is None else (x, weights)


class Network(nn.Module):
    """input_ids (batch, n) -> logits (batch, teams)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.d)
        self.position = nn.Embedding(config.max_tokens, config.d)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.d)
        self.head = nn.Linear(config.d, config.teams)

    def forward(self, input_ids: Tensor, return_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (batch, teams) and, if asked for, attention weights (batch, blocks, heads, n, n).

        The rows and columns of padding are exactly 0. A ticket of padding alone gets the bias for logits.
        """
        real = input_ids != 0  # (batch, n)
        lengths = real.sum(dim=1)
        x = self.token(input_ids) + self.position.weight[: input_ids.shape[1]]  # (batch, n, d)
        weights: list[Tensor] = []
        for block in self.blocks:
            if return_weights:
                x, one = block(x, lengths, return_weights=True)
                weights.append(one)
            else:
                x = block(x, lengths)
        share = real.to(x.dtype) / lengths.clamp(min=1)[:, None]  # (batch, n): a mean over the real tokens
        logits: Tensor = self.head((self.norm(x) * share[:, :, None]).sum(dim=1))
        if not return_weights:
            return logits
        return logits, torch.stack(weights, dim=1) * real[:, None, None, :, None]
