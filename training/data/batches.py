"""Token ids of many tickets in one flat array, and batches of tickets of similar length.

200,000 tickets of 100 tokens take 80 MB in this form, and gigabytes as Python lists.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

# Tickets are sorted by length within random pools of this many batches: little padding, and still shuffled.
POOL_BATCHES = 50
MOST_TOKENS = 10_240  # in a batch, padding included: bounds memory for long tickets


@dataclass(frozen=True)
class TokenIds:
    """Ragged rows: row i is flat[starts[i] : starts[i + 1]]."""

    flat: np.ndarray  # (tokens of all tickets,) int32
    starts: np.ndarray  # (tickets + 1,) int64

    @classmethod
    def from_rows(cls, rows: Iterable[list[int]]) -> "TokenIds":
        """Pack rows one by one, so that never all of them are Python lists."""
        chunks: list[np.ndarray] = [np.array(row, dtype=np.int32) for row in rows]
        starts = np.zeros(len(chunks) + 1, dtype=np.int64)
        np.cumsum([len(chunk) for chunk in chunks], out=starts[1:])
        return cls(np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int32), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def followed_by(self, other: "TokenIds") -> "TokenIds":
        """These rows, then those of `other`."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        return TokenIds(np.concatenate([self.flat, other.flat]), starts)

    def select(self, rows: np.ndarray) -> "TokenIds":
        """The given rows, in the given order."""
        pieces = [self.flat[self.starts[row] : self.starts[row + 1]] for row in rows]
        starts = np.append(0, np.cumsum(self.lengths[rows])).astype(np.int64)
        return TokenIds(np.concatenate([np.zeros(0, np.int32), *pieces]), starts)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def padded(self, rows: np.ndarray) -> torch.Tensor:
        """Rows as int64 (rows, longest of them), padded with 0."""
        lengths = self.lengths[rows]
        batch = np.zeros((len(rows), max(1, int(lengths.max()))), dtype=np.int64)
        for line, row, length in zip(batch, rows, lengths, strict=True):
            line[:length] = self.flat[self.starts[row] : self.starts[row] + length]
        return torch.from_numpy(batch)


def batches_by_length(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator | None = None
) -> Iterator[np.ndarray]:
    """Row numbers of each batch, every row once; shuffled with `generator`, else sorted by length.

    A batch has `batch_size` rows, or fewer if it would have more than MOST_TOKENS with its padding.
    """
    if generator is None:
        yield from _cut(np.argsort(lengths, kind="stable"), lengths, batch_size)
        return
    order = generator.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += _cut(pool, lengths, batch_size)
    for index in generator.permutation(len(batches)):
        yield batches[index]


def _cut(rows: np.ndarray, lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Cut rows, which are sorted by length, into batches."""
    starts = [0]
    for at, length in enumerate(lengths[rows].tolist()):
        size = at - starts[-1]
        if size == batch_size or (size and (size + 1) * length > MOST_TOKENS):
            starts.append(at)
    return [batch for batch in np.split(rows, starts[1:]) if len(batch)]
