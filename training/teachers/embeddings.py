"""Embeddings of words and of word pairs that start from what an encoder knows of them.

A word's embedding is its encoder vector, brought down to the network's size by one learned matrix for all
words, plus a difference of its own that is learned only for words of the training tickets and is sometimes
left out, so that the network can read a word it was never taught next to one it was. The commonest pairs of
neighbours start likewise, from what the encoder says of the pair beyond what its two words say: "sign in"
is not "sign" and "in". After training the sums become ordinary tables (`settle`), rounded to the float16 in
which the bundle stores them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.network import PAIR, Network
from models.tokenizer import UNKNOWN_ID, Tokenizer, build_word_tokenizer
from training.data.batches import TokenIds
from training.recipe import Recipe
from training.teachers.encoder import Teacher

# An entry of a brought-down vector at the start, times sqrt(384 / size): of words, and of pairs.
START, WIDE_START = 0.5, 0.3
PAIR_START, WIDE_PAIR_START = 0.25, 0.15
DIFFERENCE_START = 0.02
FORGOTTEN = 0.1  # share of the differences left out in each step
FEWEST_PAIRS = 3  # a pair seen less often starts from nothing
MOST_COUNTED = 2_000_000  # pairs of neighbours; of more, evenly taken ones


class Informed(nn.Module):
    """Ids (batch, n) -> embeddings (batch, n, size); `vectors` (vocabulary, 384), `trained` lowest ids."""

    def __init__(self, vectors: Tensor, trained: int, size: int, start: float = START) -> None:
        super().__init__()
        self.trained = trained
        self.vectors: Tensor
        self.register_buffer("vectors", vectors, persistent=False)
        entry = start * (size / vectors.shape[1]) ** 0.5
        self.lift = nn.Parameter(torch.randn(vectors.shape[1], size) * entry)
        self.difference = nn.Parameter(torch.randn(trained, size) * DIFFERENCE_START)

    def forward(self, ids: Tensor) -> Tensor:
        distinct, place = ids.unique(return_inverse=True)  # a batch holds most words many times
        common = self.vectors[distinct] @ self.lift
        own = functional.embedding(ids.clamp(max=self.trained - 1), self.difference)
        kept = ids < self.trained
        if self.training:
            kept = kept & (torch.rand(ids.shape) >= FORGOTTEN)
        return functional.embedding(place, common) + own * kept[:, :, None]

    @torch.no_grad()
    def table(self) -> Tensor:
        """(vocabulary, size): what the sum is without anything left out."""
        whole = self.vectors @ self.lift
        whole[: self.trained] += self.difference
        return whole


def inform(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    tokens: TokenIds,
    recipe: Recipe,
    teacher: Teacher,
) -> None:
    """Let the network's embeddings start from the teacher's; words of the training texts learn more.

    `tokens` are the ids of the training texts.
    """
    entries = sorted(tokenizer.library.get_vocab().items(), key=lambda entry: entry[1])
    vocabulary = [word for word, _ in entries]
    vectors = teacher.word_vectors(vocabulary)
    trained = build_word_tokenizer(texts, recipe.min_count).get_vocab_size()
    words = torch.from_numpy(vectors)
    network.token = Informed(words, trained, network.config.d)
    if network.config.wide:
        network.wide.token = Informed(words, trained, network.config.wide, WIDE_START)
    if network.config.bigrams:
        rows = torch.from_numpy(pair_vectors(vocabulary, vectors, tokens, network.config.bigrams, teacher))
        network.bigram = Informed(rows, len(rows), network.config.d, PAIR_START)
        if network.config.wide:
            network.wide.bigram = Informed(rows, len(rows), network.config.wide, WIDE_PAIR_START)


def pair_vectors(
    vocabulary: Sequence[str], vectors: np.ndarray, tokens: TokenIds, rows: int, teacher: Teacher
) -> np.ndarray:
    """(rows, 384): what the encoder says of the pairs that share a row, beyond what their words say.

    The commonest pairs of words, as many as there are rows; about 1 long, 0 where a row has none.
    `vectors` (vocabulary, 384) are those of the words. What words say of a pair is the linear function of
    the sum of their vectors that fits all pairs best.
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
    row, weight = (left * PAIR + right) % rows, np.zeros(rows, dtype=np.float32)
    np.add.at(table, row, found)
    np.add.at(weight, row, count)
    shared: np.ndarray = table / np.maximum(weight, 1)[:, None]
    return shared


def common_pairs(
    tokens: TokenIds, words: Sequence[bool], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The commonest pairs of neighbours that are both words: left ids, right ids, how often seen."""
    flat, vocabulary = tokens.flat, len(words)
    within = np.ones(max(0, len(flat) - 1), dtype=bool)
    within[tokens.starts[1:-1][tokens.starts[1:-1] < len(flat)] - 1] = False  # not from ticket to ticket
    step = max(1, len(flat) // MOST_COUNTED)
    left, right = flat[:-1][::step].astype(np.int64), flat[1:][::step].astype(np.int64)
    known = np.array(words)
    known[: UNKNOWN_ID + 1] = False
    pairs = (left * vocabulary + right)[within[::step] & known[left] & known[right]]
    pair, count = np.unique(pairs, return_counts=True)
    often = np.argsort(-count, kind="stable")[:most]
    often = often[count[often] >= FEWEST_PAIRS]
    return pair[often] // vocabulary, pair[often] % vocabulary, count[often].astype(np.float32)


@torch.no_grad()
def settle(network: Network) -> None:
    """Turn informed embeddings into tables, and round all tables to float16."""
    for owner in (network, *([network.wide] if network.config.wide else [])):
        for name in ("token", "bigram")[: 2 if network.config.bigrams else 1]:
            embedding = getattr(owner, name)
            if isinstance(embedding, Informed):
                embedding = nn.Embedding.from_pretrained(embedding.table(), freeze=False)
                setattr(owner, name, embedding)
            embedding.weight.copy_(embedding.weight.half().float())
