"""The network: a pre-norm transformer encoder that maps a ticket's tokens to logits for the teams.

    token + position embeddings -> blocks of attention and feed-forward -> layer norm
    -> mean over the real tokens -> one linear layer

Two blocks of four heads at d = 64 by default. Id 0 is padding, and only at the end of a ticket: padding is
masked in attention and excluded from the mean.

Four parts around the blocks are optional:

- `positions`: a learned embedding for each position, or "relative", a fixed bias for each head and distance
  that is added to the scores and allows tickets of any length (after Press et al. 2022, "Train Short, Test
  Long");
- `bigrams`: rows of a hashed embedding table for pairs; a token's input is its own embedding plus that of the
  pair with its left neighbour (Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification");
- `wide`: the size of pooled embeddings that bypass the blocks (Cheng et al. 2016, "Wide & Deep Learning");
- `counts`: a linear model of tokens and pairs whose scores are added to the logits. It is fitted in closed
  form (`training.fit.word_counts`), not trained with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.multihead import MultiHead

MAX_DISTANCE = 16  # greater distances have the bias of this one
PAIR_MULTIPLIER = (
    7919  # the pair (a, b) has row (a * PAIR_MULTIPLIER + b) mod rows; before the first token, a = 0
)
PADDING_SCORE = -1e9  # gives padding a weight of exactly 0; unlike -inf, no NaN in a ticket of padding alone
MIN_SQUARED_NORM = 1e-6  # of a ticket's word counts: that of a ticket of padding is 0


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a network; the defaults are those of the baseline recipe."""

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
    counts: int = 0  # rows of the word counts' own hashed bigram table; 0: no word counts
    embedding_dropout: float = 0.0  # of the first block's input
    bigram_dropout: float = 0.0  # of whole pairs


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
            self.bias: Tensor
            self.register_buffer("bias", relative_bias(config.heads), persistent=False)
        if config.bigrams:
            self.bigram = pair_table(config.bigrams, config.d)
        if config.wide:
            self.wide = Wide(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.d)
        self.head = nn.Linear(config.d + config.wide, config.teams)
        if config.counts:
            self.counts = WordCounts(config)

    def forward(self, input_ids: Tensor, return_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (batch, teams) and, if asked for, attention weights (batch, blocks, heads, n, n).

        The rows and columns of padding are exactly 0. A ticket of padding alone gets the bias for logits.
        """
        weights: list[Tensor] = []
        logits: Tensor = self.head(self.pooled(input_ids, weights if return_weights else None))
        if self.config.counts:
            logits = logits + self.counts(input_ids)
        if not return_weights:
            return logits
        real = input_ids != 0
        return logits, torch.stack(weights, dim=1) * real[:, None, None, :, None]

    def pooled(self, input_ids: Tensor, weights: list[Tensor] | None = None) -> Tensor:
        """The input of the head: (batch, n) -> (batch, d + wide).

        Appends each block's attention weights (batch, heads, n, n) to `weights`.
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
        """The input of the first block: (batch, n) -> (batch, n, d)."""
        x: Tensor = self.token(input_ids)
        if self.config.bigrams:
            pair: Tensor = self.bigram(bigram_rows(input_ids, self.config.bigrams))
            x = x + drop_vectors(pair, self.config.bigram_dropout if self.training else 0.0)
        if self.config.positions == "learned":
            x = x + self.position.weight[: input_ids.shape[1]]
        return functional.dropout(x, self.config.embedding_dropout, self.training)

    def relative(self, n: int) -> Tensor:
        """The bias (heads, query, key) of n tokens, by the distance from query to key."""
        places = torch.arange(n, device=self.bias.device)
        distance = (places[None, :] - places[:, None]).clamp(
            -MAX_DISTANCE, MAX_DISTANCE
        ) + MAX_DISTANCE  # (query, key)
        return self.bias[:, distance]


class Wide(nn.Module):
    """A gated mean of separate token and pair embeddings (batch, wide) that bypasses the blocks.

    It learns the evidence of single words and pairs in few steps, so that the blocks learn the rest.
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
            x = x + drop_vectors(pair, self.config.bigram_dropout if self.training else 0.0)
        score = self.gate(x).masked_fill((input_ids == 0)[:, :, None], PADDING_SCORE)
        pooled: Tensor = self.norm((score.softmax(dim=1) * x).sum(dim=1))
        return pooled


class WordCounts(nn.Module):
    """A linear model of tokens and pairs: (batch, n) -> scores (batch, teams).

    Each row of its tables has a score for every team and, in the last column, the squared weight of the token
    or pair. A token that occurs c times counts sqrt(c) times, and the sum is divided by the norm of the
    ticket's vector of weights: TF-IDF with a square root instead of the logarithm.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.teams + 1)
        self.bigram = nn.Embedding(config.counts, config.teams + 1)
        self.bias = nn.Parameter(torch.zeros(config.teams))
        for table in (self.token, self.bigram):
            nn.init.zeros_(table.weight)

    def forward(self, input_ids: Tensor) -> Tensor:
        real = (input_ids != 0).to(self.bias.dtype)
        pairs = bigram_rows(input_ids, self.config.counts)
        rows = self.token(input_ids) + self.bigram(pairs)  # (batch, n, teams + 1)
        share = real * repeats(input_ids).rsqrt()
        length = (rows[:, :, -1] * real).sum(dim=1).clamp(min=MIN_SQUARED_NORM).sqrt()
        scores: Tensor = (share[:, :, None] * rows[:, :, :-1]).sum(dim=1) / length[:, None]
        return scores + self.bias


def repeats(input_ids: Tensor) -> Tensor:
    """How often each token occurs in its ticket, (batch, n) float."""
    return (input_ids[:, :, None] == input_ids[:, None, :]).sum(dim=2).float()


def pair_table(rows: int, size: int) -> nn.Module:
    """Pair embeddings, initialised near 0."""
    table = nn.Embedding(rows, size)
    nn.init.normal_(table.weight, std=0.02)
    return table


def drop_vectors(x: Tensor, share: float) -> Tensor:
    """Set a random share of the vectors of x (batch, n, size) to 0, without rescaling the others."""
    return x * (torch.rand(x.shape[:2], device=x.device) >= share)[:, :, None] if share else x


def bigram_rows(input_ids: Tensor, rows: int) -> Tensor:
    """The table row of each token's pair with its left neighbour (batch, n); arbitrary for padding."""
    left = functional.pad(input_ids[:, :-1], (1, 0))
    return (left * PAIR_MULTIPLIER + input_ids) % rows


def relative_bias(heads: int) -> Tensor:
    """The score bias of each head for a key at each distance to the right, (heads, 2 * MAX_DISTANCE + 1).

    The kinds alternate over the heads: a preference for the left, for the right, for near tokens, and none.
    """
    distance = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1, dtype=torch.float32)
    kinds = [
        -0.5 * distance.abs() - 2.0 * (distance > 0),
        -0.5 * distance.abs() - 2.0 * (distance < 0),
        -0.1 * distance.abs(),
        torch.zeros_like(distance),
    ]
    return torch.stack([kinds[head % len(kinds)] for head in range(heads)])
