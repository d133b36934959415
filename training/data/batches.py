"""Token ids of many tickets in one flat array, and batches of tickets that are about equally long.

200,000 tickets of 100 tokens take 80 MB this way; as Python lists they would take gigabytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

# Tickets are sorted by length within a random pool of this many batches: little padding, still shuffled.
POOL_BATCHES = 50


@dataclass(frozen=True)
class TokenIds:
    """Ragged rows: row i is flat[starts[i] : starts[i + 1]]."""

    flat: np.ndarray  # (tokens of all tickets,) int32
    starts: np.ndarray  # (tickets + 1,) int64

    @classmethod
    def from_rows(cls, rows: Iterable[list[int]]) -> "TokenIds":
        """Pack rows as they come; at no time are all of them held as lists."""
        chunks: list[np.ndarray] = [np.array(row, dtype=np.int32) for row in rows]
        starts = np.zeros(len(chunks) + 1, dtype=np.int64)
        np.cumsum([len(chunk) for chunk in chunks], out=starts[1:])
        return cls(np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int32), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def followed_by(self, other: "TokenIds") -> "TokenIds":
        """These rows and then those."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        return TokenIds(np.concatenate([self.flat, other.flat]), starts)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def padded(self, rows: np.ndarray) -> torch.Tensor:
        """Rows as int64 (rows, longest of them), filled up with 0, which is padding."""
        lengths = self.lengths[rows]
        batch = np.zeros((len(rows), max(1, int(lengths.max()))), dtype=np.int64)
        for line, row, length in zip(batch, rows, lengths, strict=True):
            line[:length] = self.flat[self.starts[row] : self.starts[row] + length]
        return torch.from_numpy(batch)


def batches_by_length(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator | None = None
) -> Iterator[np.ndarray]:
    """Row numbers of each batch, every row once; shuffled with `generator`, else sorted by length."""
    if generator is None:
        order = np.argsort(lengths, kind="stable")
        yield from (order[start : start + batch_size] for start in range(0, len(order), batch_size))
        return
    order = generator.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[cut : cut + batch_size] for cut in range(0, len(pool), batch_size)]
    for index in generator.permutation(len(batches)):
        yield batches[index]
