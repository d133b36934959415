"""The network: a pre-norm transformer encoder that reads a ticket's tokens and scores the teams.

    token + position embeddings -> blocks of attention and feed-forward -> layer norm
    -> mean over the real tokens -> one linear layer

Two blocks of four heads at d = 64 by default. Id 0 is padding and stands only at the end of a ticket:
no token reads it, it reads nothing, and it has no part in the mean.

Three things around the blocks are a choice. `positions`: learned for each place (the course), or relative,
a fixed penalty for each head and distance that is added to the scores, which sets no longest ticket
(after Press et al. 2022, "Train Short, Test Long"). `bigrams`: rows of a table that gives
each token a second embedding, for the pair it makes with its left neighbour; pairs share rows by hashing
(Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification"). `wide`: numbers that go past the
blocks to the linear layer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.multihead import MultiHead

REACH = 16  # relative positions further away than this count as this far
PAIR = 7919  # a token b behind a token a has row (a * PAIR + b) mod rows; nothing stands before the first
HIDDEN = -1e9  # added to the score of padding: its share is exactly 0, and a ticket of padding has no NaN


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
    positions: Literal["learned", "relative"] = "learned"
    bigrams: int = 0
    wide: int = 0
    embedding_dropout: float = 0.0  # of what enters the first block
    bigram_dropout: float = 0.0  # of whole pairs

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
        self, x: Tensor, lengths: Tensor, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (batch, n, d), lengths (batch,), mask (heads, n, n) added to the scores -> the same shape;
        weights (batch, heads, n, n) if asked for."""
        read = self.attention(self.norm_1(x), mask=mask, key_lengths=lengths, return_weights=return_weights)
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
        self.token: nn.Module = nn.Embedding(config.vocab_size, config.d)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_tokens, config.d)
        else:
            self.distance: Tensor
            self.register_buffer("distance", distances(config.heads), persistent=False)
        if config.bigrams:
            self.bigram = pair_table(config.bigrams, config.d)
        if config.wide:
            self.wide = Wide(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.d)
        self.head = nn.Linear(config.d + config.wide, config.teams)

    def forward(self, input_ids: Tensor, return_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (batch, teams) and, if asked for, attention weights (batch, blocks, heads, n, n).

        The rows and columns of padding are exactly 0. A ticket of padding alone gets the bias for logits.
        """
        weights: list[Tensor] = []
        logits: Tensor = self.head(self.pooled(input_ids, weights if return_weights else None))
        if not return_weights:
            return logits
        real = input_ids != 0
        return logits, torch.stack(weights, dim=1) * real[:, None, None, :, None]

    def pooled(self, input_ids: Tensor, weights: list[Tensor] | None = None) -> Tensor:
        """What the head reads of a ticket: (batch, n) -> (batch, d + wide).

        The attention weights of each block are appended to `weights`.
        """
        real = input_ids != 0  # (batch, n)
        lengths = real.sum(dim=1)
        x = self.embed(input_ids)  # (batch, n, d)
        mask = self.relative(input_ids.shape[1]) if self.config.positions == "relative" else None
        for block in self.blocks:
            if weights is not None:
                x, one = block(x, lengths, mask, return_weights=True)
                weights.append(one)
            else:
                x = block(x, lengths, mask)
        share = real.to(x.dtype) / lengths.clamp(min=1)[:, None]  # (batch, n): a mean over the real tokens
        pooled = (self.norm(x) * share[:, :, None]).sum(dim=1)
        return torch.cat([pooled, self.wide(input_ids)], dim=1) if self.config.wide else pooled

    def embed(self, input_ids: Tensor) -> Tensor:
        """What enters the first block: (batch, n) -> (batch, n, d)."""
        x: Tensor = self.token(input_ids)
        if self.config.bigrams:
            pair: Tensor = self.bigram(bigram_rows(input_ids, self.config.bigrams))
            x = x + leave_out(pair, self.config.bigram_dropout if self.training else 0.0)
        if self.config.positions == "learned":
            x = x + self.position.weight[: input_ids.shape[1]]
        return functional.dropout(x, self.config.embedding_dropout, self.training)

    def relative(self, n: int) -> Tensor:
        """What is added to the scores of each head: (heads, n, n), by how far the read token stands."""
        places = torch.arange(n, device=self.distance.device)
        away = (places[None, :] - places[:, None]).clamp(-REACH, REACH) + REACH  # (reader, read)
        return self.distance[:, away]


class Wide(nn.Module):
    """The way past the blocks: one weighted mean of token and pair embeddings of its own, (batch, wide).

    It learns in few steps what single words and pairs say, and leaves the rest to the blocks (Cheng et al.
    2016, "Wide & Deep Learning").
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.token: nn.Module = nn.Embedding(config.vocab_size, config.wide)
        if config.bigrams:
            self.bigram = pair_table(config.bigrams, config.wide)
        self.gate = nn.Linear(config.wide, 1)
        self.norm = nn.LayerNorm(config.wide)

    def forward(self, input_ids: Tensor) -> Tensor:
        x: Tensor = self.token(input_ids)  # (batch, n, wide)
        if self.config.bigrams:
            pair: Tensor = self.bigram(bigram_rows(input_ids, self.config.bigrams))
            x = x + leave_out(pair, self.config.bigram_dropout if self.training else 0.0)
        score = self.gate(x).masked_fill((input_ids == 0)[:, :, None], HIDDEN)
        pooled: Tensor = self.norm((score.softmax(dim=1) * x).sum(dim=1))
        return pooled


def pair_table(rows: int, size: int) -> nn.Module:
    """Embeddings of word pairs that say little until they have learned something."""
    table = nn.Embedding(rows, size)
    nn.init.normal_(table.weight, std=0.02)
    return table


def leave_out(x: Tensor, share: float) -> Tensor:
    """Set a random share of the vectors of (batch, n, size) to 0, and leave the others as they are."""
    return x * (torch.rand(x.shape[:2], device=x.device) >= share)[:, :, None] if share else x


def bigram_rows(input_ids: Tensor, rows: int) -> Tensor:
    """The table row of the pair that each token makes with its left neighbour; any row for padding."""
    left = functional.pad(input_ids[:, :-1], (1, 0))
    return (left * PAIR + input_ids) % rows


def distances(heads: int) -> Tensor:
    """What a head adds to the score of a token so far to its right, (heads, 2 * REACH + 1).

    The heads in turn: one that looks left, one that looks right, one that prefers what is near, and one
    that reads anywhere.
    """
    away = torch.arange(-REACH, REACH + 1, dtype=torch.float32)
    kinds = [
        -0.5 * away.abs() - 2.0 * (away > 0),
        -0.5 * away.abs() - 2.0 * (away < 0),
        -0.1 * away.abs(),
        torch.zeros_like(away),
    ]
    return torch.stack([kinds[head % len(kinds)] for head in range(heads)])
