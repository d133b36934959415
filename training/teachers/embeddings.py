"""Word and bigram embeddings that are initialised from a sentence encoder.

A word's embedding is its encoder vector times one learned projection matrix, shared by all words, plus a
learned offset. Only words of the training tickets have an offset, and training drops some offsets at random,
so that the network also works for words without one. The commonest bigrams are initialised in the same way
from the residual of the bigram's vector, the part that the sum of its two words does not predict ("sign in"
does not mean "sign" plus "in"). After training, `materialize_embeddings` converts the sums to ordinary
tables, rounded to float16 as in the bundle.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.network import PAIR_MULTIPLIER, Network
from models.tokenizer import UNKNOWN_ID, Tokenizer
from training.data.batches import TokenIds
from training.teachers.encoder import Teacher

# Initial standard deviation of a projected entry, times sqrt(384 / size).
WORD_STD, WIDE_WORD_STD = 0.5, 0.3
PAIR_STD, WIDE_PAIR_STD = 0.25, 0.15
OFFSET_STD = 0.02
OFFSET_DROPOUT = 0.1  # share of the offsets dropped in each step
MIN_PAIR_COUNT = 3  # rarer bigrams are not initialised
MAX_PAIRS_COUNTED = 2_000_000  # of more bigrams, every n-th is counted


class ProjectedEmbedding(nn.Module):
    """Ids (batch, n) -> embeddings (batch, n, size).

    `vectors` (vocabulary, 384) are the encoder's; only ids below `trained` have an offset.
    """

    def __init__(self, vectors: Tensor, trained: int, size: int, start: float = WORD_STD) -> None:
        super().__init__()
        self.trained = trained
        self.vectors: Tensor
        self.register_buffer("vectors", vectors, persistent=False)
        entry = start * (size / vectors.shape[1]) ** 0.5
        self.projection = nn.Parameter(torch.randn(vectors.shape[1], size) * entry)
        self.offset = nn.Parameter(torch.randn(trained, size) * OFFSET_STD)

    def forward(self, ids: Tensor) -> Tensor:
        distinct, place = ids.unique(return_inverse=True)  # most words occur several times in a batch
        common = self.vectors[distinct] @ self.projection
        own = functional.embedding(ids.clamp(max=self.trained - 1), self.offset)
        kept = ids < self.trained
        if self.training:
            kept = kept & (torch.rand(ids.shape) >= OFFSET_DROPOUT)
        return functional.embedding(place, common) + own * kept[:, :, None]

    @torch.no_grad()
    def table(self) -> Tensor:
        """The embeddings of the whole vocabulary (vocabulary, size), without dropout."""
        whole = self.vectors @ self.projection
        whole[: self.trained] += self.offset
        return whole


def init_from_encoder(
    network: Network,
    tokenizer: Tokenizer,
    trained: int,
    tokens: TokenIds,
    teacher: Teacher,
) -> None:
    """Replace the network's tables by projected embeddings.

    `tokens` are the ids of the training texts, whose vocabulary is the first `trained` ids.
    """
    entries = sorted(tokenizer.vocabulary.items(), key=lambda entry: entry[1])
    vocabulary = [word for word, _ in entries]
    vectors = teacher.word_vectors(vocabulary)
    words = torch.from_numpy(vectors)
    network.token = ProjectedEmbedding(words, trained, network.config.d)
    if network.config.wide:
        network.wide.token = ProjectedEmbedding(words, trained, network.config.wide, WIDE_WORD_STD)
    if network.config.bigrams:
        rows = torch.from_numpy(pair_vectors(vocabulary, vectors, tokens, network.config.bigrams, teacher))
        network.bigram = ProjectedEmbedding(rows, len(rows), network.config.d, PAIR_STD)
        if network.config.wide:
            network.wide.bigram = ProjectedEmbedding(rows, len(rows), network.config.wide, WIDE_PAIR_STD)


def pair_vectors(
    vocabulary: Sequence[str], vectors: np.ndarray, tokens: TokenIds, rows: int, teacher: Teacher
) -> np.ndarray:
    """Residual encoder vectors (rows, 384) of the commonest bigrams, averaged where bigrams share a row.

    `vectors` (vocabulary, 384) are those of the words. A linear regression predicts a bigram's vector from
    the sum of its words' vectors; the residual is scaled to a mean length of 1. A row without a bigram is 0.
    """
    left, right, count = common_pairs(tokens, [word.isalpha() for word in vocabulary], rows)
    table = np.zeros((rows, vectors.shape[1]), dtype=np.float32)
    if not len(count):
        return table
    found = teacher.vectors([f"{vocabulary[a]} {vocabulary[b]}" for a, b in zip(left, right, strict=True)])
    found -= found.mean(axis=0)
    apart = vectors[left] + vectors[right]
    apart -= apart.mean(axis=0)
    found -= apart @ np.linalg.lstsq(apart, found, rcond=None)[0]
    found *= (count / max(1e-6, float(np.linalg.norm(found, axis=1).mean())))[:, None]
    row, weight = (left * PAIR_MULTIPLIER + right) % rows, np.zeros(rows, dtype=np.float32)
    np.add.at(table, row, found)
    np.add.at(weight, row, count)
    shared: np.ndarray = table / np.maximum(weight, 1)[:, None]
    return shared


def common_pairs(
    tokens: TokenIds, words: Sequence[bool], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `most` commonest bigrams of two words: left ids, right ids and counts."""
    flat, vocabulary = tokens.flat, len(words)
    within = np.ones(max(0, len(flat) - 1), dtype=bool)
    within[tokens.starts[1:-1][tokens.starts[1:-1] < len(flat)] - 1] = False  # no bigram spans two tickets
    step = max(1, len(flat) // MAX_PAIRS_COUNTED)
    left, right = flat[:-1][::step].astype(np.int64), flat[1:][::step].astype(np.int64)
    known = np.array(words)
    known[: UNKNOWN_ID + 1] = False
    pairs = (left * vocabulary + right)[within[::step] & known[left] & known[right]]
    pair, count = np.unique(pairs, return_counts=True)
    often = np.argsort(-count, kind="stable")[:most]
    often = often[count[often] >= MIN_PAIR_COUNT]
    return pair[often] // vocabulary, pair[often] % vocabulary, count[often].astype(np.float32)


@torch.no_grad()
def materialize_embeddings(network: Network) -> None:
    """Turn projected embeddings into tables, and round every table to float16."""
    for owner in (network, *([network.wide] if network.config.wide else [])):
        for name in ("token", "bigram")[: 2 if network.config.bigrams else 1]:
            embedding = getattr(owner, name)
            if isinstance(embedding, ProjectedEmbedding):
                embedding = nn.Embedding.from_pretrained(embedding.table(), freeze=False)
                setattr(owner, name, embedding)
            embedding.weight.copy_(embedding.weight.half().float())
