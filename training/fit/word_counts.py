"""The linear part of the network: team scores for words, their pieces and pairs, in closed form.

A ticket is a vector of weights: each token and each pair with its left neighbour at its TF-IDF. Beside each
token stand its character n-grams, together as heavy as the token, so words that are
written alike have like scores and a piece of a word it never saw says something. Ridge regression on these
vectors, one team against the others, is solved through the products of the tickets (n x n). Its prediction
of each ticket **without that ticket** follows from the same inverse (Allen 1974, PRESS; Rifkin and Lippert
2007, "Notes on Regularized Least Squares"), so how smooth it is, and how much more a ticket of a small team
counts, are chosen on predictions that have not seen the label.

Texts for no team teach too: what a story around a request says is to score for none.

All of it is linear in the tokens: what it has learned folds into one row of scores for each entry of the
vocabulary and each row of pairs (`models.network.WordCounts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve, lapack
from scipy.sparse import csr_matrix, diags, hstack, vstack
from sklearn.metrics import f1_score
from threadpoolctl import threadpool_limits
from torch import nn

from models.network import PAIR_MULTIPLIER, NetworkConfig, WordCounts
from models.tokenizer import INSIDE, UNKNOWN_ID, Tokenizer
from training.data.batches import TokenIds
from training.fit.loop import Examples
from training.teachers.soft_labels import fit_temperature

SHORTEST_GRAM, LONGEST_GRAM = 3, 5  # characters
FEWEST_GRAMS, MOST_GRAMS = 2, 0.3  # tickets, and share of the tickets, in which an n-gram stands that counts
SMOOTHNESS = (
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
)  # what is added to each ticket's product with itself, which is about 1
BALANCES = (0.0, 0.3, 0.6)  # a ticket counts as the share of its team in the tickets, to minus this power
MOST_COMPARED = 4_000  # tickets on which both are chosen
OFTEN = 0.03  # share of the tickets from which on a column is used often
OUTLIER_SHARE = 0.3  # of texts for no team, beside the tickets
MOST_FITTED = 16_000  # tickets: time grows with their third power, memory with their square


@dataclass(frozen=True)
class Settings:
    """How smooth the scores are and how far the teams are balanced; `temperature` makes them logits."""

    smoothness: float
    balance: float
    temperature: float
    accuracy: float  # of the tickets that were compared, each predicted without itself
    macro_f1: float


@dataclass(frozen=True)
class Weights:
    """Of tokens (vocabulary,) and pairs (rows,); `grams` (vocabulary, n-grams) has rows of length 1 or 0."""

    token: np.ndarray
    pair: np.ndarray
    grams: csr_matrix

    def vectors(self, tokens: TokenIds) -> csr_matrix:
        """(tickets, vocabulary + n-grams + rows of pairs)."""
        counted, paired = occurrences(tokens, len(self.token), len(self.pair))
        words = counted @ diags(self.token)
        return csr_matrix(
            diags(1 / self.lengths(tokens))
            @ hstack([words, words @ self.grams, paired @ diags(self.pair)], format="csr")
        )

    def lengths(self, tokens: TokenIds) -> np.ndarray:
        """The root of the sum of squared weights of each ticket's tokens and pairs; 1 for an empty one."""
        squares = np.append(
            self.token[tokens.flat] ** 2 + self.pair[pair_rows(tokens, len(self.pair))] ** 2, 0
        )
        sums = np.add.reduceat(squares, np.minimum(tokens.starts[:-1], len(squares) - 1))
        return np.sqrt(np.where((tokens.lengths > 0) & (sums > 0), sums, 1.0))

    def fold(self, learned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores by token (vocabulary, teams) and by pair (rows, teams) of learned (features, teams)."""
        vocabulary, grams = self.grams.shape
        own, alike, paired = np.split(learned, [vocabulary, vocabulary + grams])
        by_token = self.token[:, None] * (own + self.grams @ alike)
        return by_token, self.pair[:, None] * paired


def occurrences(tokens: TokenIds, vocabulary: int, rows: int) -> tuple[csr_matrix, csr_matrix]:
    """What tokens and pairs count in each ticket: of a token that stands there c times, each 1 / sqrt(c)."""
    ticket = np.repeat(np.arange(len(tokens)), tokens.lengths)
    key = ticket * np.int64(vocabulary) + tokens.flat
    _, place, count = np.unique(key, return_inverse=True, return_counts=True)
    share = 1 / np.sqrt(count[place])
    tickets = len(tokens)
    counted = csr_matrix((share, (ticket, tokens.flat)), shape=(tickets, vocabulary))
    paired = csr_matrix((share, (ticket, pair_rows(tokens, rows))), shape=(tickets, rows))
    return counted, paired


def pair_rows(tokens: TokenIds, rows: int) -> np.ndarray:
    """`models.network.bigram_rows` of all tickets' tokens (tokens,)."""
    left = np.append(0, tokens.flat[:-1]).astype(np.int64)
    left[tokens.starts[:-1][tokens.lengths > 0]] = 0
    found: np.ndarray = (left * PAIR_MULTIPLIER + tokens.flat) % rows
    return found


def weigh(tokens: TokenIds, vocabulary: Sequence[str], rows: int) -> Weights:
    """Inverse document frequencies of tokens, pairs and n-grams of the tickets; a pair seen once has none."""
    counted, paired = occurrences(tokens, len(vocabulary), rows)
    pair, in_tickets = rarity(paired)
    pair = pair * (in_tickets > 1)
    return Weights(rarity(counted)[0], pair, alike(vocabulary, counted))


def rarity(counted: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Inverse document frequency of each column, and in how many rows it stands."""
    tickets = counted.shape[0]
    standing = np.asarray((counted > 0).sum(axis=0)).ravel()
    return np.log((1 + tickets) / (1 + standing)) + 1, standing


def alike(vocabulary: Sequence[str], counted: csr_matrix) -> csr_matrix:
    """Character n-grams of each entry at their inverse document frequency, each row of length 1 or empty."""
    columns: dict[str, int] = {}
    entries, grams = [], []
    for entry, text in enumerate(vocabulary):
        for gram in grams_of(text) if entry > UNKNOWN_ID else ():
            entries.append(entry)
            grams.append(columns.setdefault(gram, len(columns)))
    shape = len(vocabulary), max(1, len(columns))
    holds = csr_matrix((np.ones(len(entries)), (entries, grams)), shape=shape)
    holds.data[:] = 1
    rare, standing = rarity(csr_matrix(counted @ holds))
    most = max(FEWEST_GRAMS, MOST_GRAMS * counted.shape[0])
    used = (standing >= FEWEST_GRAMS) & (standing <= most)
    weighed = csr_matrix((holds @ diags(rare))[:, np.flatnonzero(used)])
    length = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
    return csr_matrix(diags(1 / np.where(length > 0, length, 1)) @ weighed)


def grams_of(entry: str) -> set[str]:
    """The n-grams of a word or piece with its ends marked: a piece inside a word has no beginning."""
    inside = entry.startswith(INSIDE) and entry != INSIDE
    text = f"{entry.removeprefix(INSIDE)} " if inside else f" {entry} "
    sizes = range(SHORTEST_GRAM, LONGEST_GRAM + 1)
    return {text[start : start + size] for size in sizes for start in range(len(text) - size + 1)}


def choose(products: np.ndarray, targets: np.ndarray, teams: int) -> Settings:
    """The settings with most right, each ticket predicted without itself; macro-F1 counts a fifth."""
    best: Settings | None = None
    for balance in BALANCES:
        for smoothness in SMOOTHNESS:
            scores = without_itself(products, targets, teams, smoothness, balance)
            found = scores.argmax(axis=1)
            accuracy = float((found == targets).mean())
            f1 = float(f1_score(targets, found, average="macro", labels=np.unique(targets), zero_division=0))
            if best is None or 4 * accuracy + f1 > 4 * best.accuracy + best.macro_f1:
                best = Settings(smoothness, balance, fit_temperature(scores, targets)[1], accuracy, f1)
    assert best is not None
    return best


def without_itself(
    products: np.ndarray, targets: np.ndarray, teams: int, smoothness: float, balance: float
) -> np.ndarray:
    """Scores (tickets, teams) of each ticket by what the others teach; `products` (tickets, tickets)."""
    loaded = products + np.diag(smoothness / importance(targets, balance))
    inverse = np.tril(cholesky_inverse(loaded))
    inverse = inverse + np.tril(inverse, -1).T
    wanted = signs(targets, teams)
    scores: np.ndarray = wanted - (inverse @ wanted) / np.diag(inverse)[:, None]
    return scores


def cholesky_inverse(matrix: np.ndarray) -> np.ndarray:
    """The lower triangle of the inverse of a symmetric matrix that is positive definite."""
    factor, _ = lapack.spotrf(matrix, lower=1)
    inverse: np.ndarray = lapack.spotri(factor, lower=1)[0]
    return inverse


def importance(targets: np.ndarray, balance: float) -> np.ndarray:
    """How much each ticket counts (tickets,), 1 on average: more where its team has few."""
    share = np.bincount(targets)[targets] / len(targets)
    weight = share**-balance
    found: np.ndarray = (weight / weight.mean()).astype(np.float32)
    return found


def signs(targets: np.ndarray, teams: int) -> np.ndarray:
    """1 for the ticket's team, -1 for the others."""
    wanted = np.full((len(targets), teams), -1.0, dtype=np.float32)
    wanted[np.arange(len(targets)), targets] = 1
    return wanted


def fit_word_counts(
    config: NetworkConfig, examples: Examples, outliers: TokenIds, tokenizer: Tokenizer, seed: int
) -> tuple[WordCounts, Settings]:
    """Word counts whose scores are logits, and how they were chosen; `outliers` are texts for no team.

    Of more than MOST_FITTED tickets as many are fitted, drawn with `seed`; of outliers OUTLIER_SHARE as many.
    """
    # More threads wait for each other by spinning: on a busy machine they take a hundred times as long.
    with threadpool_limits(1, user_api="blas"):
        return _fit(config, examples, outliers, tokenizer, seed)


def _fit(
    config: NetworkConfig, examples: Examples, outliers: TokenIds, tokenizer: Tokenizer, seed: int
) -> tuple[WordCounts, Settings]:
    counts, teams = WordCounts(config), config.teams
    entries = sorted(tokenizer.library.get_vocab().items(), key=lambda entry: entry[1])
    rows = np.sort(np.random.default_rng((seed, 4)).permutation(len(examples.targets))[:MOST_FITTED])
    tokens, targets = examples.tokens.select(rows), examples.targets.numpy()[rows]
    weights = weigh(tokens, [entry for entry, _ in entries], config.counts)
    vectors = weights.vectors(tokens).astype(np.float32)
    compared = np.random.default_rng((seed, 5)).permutation(len(rows))[:MOST_COMPARED]
    settings = choose(inner(vectors[compared]), targets[compared], teams)
    few = outliers.select(np.arange(min(len(outliers), int(OUTLIER_SHARE * len(rows)))))
    vectors = vstack([vectors, weights.vectors(few).astype(np.float32)], format="csr")
    wanted = np.concatenate([signs(targets, teams), np.full((len(few), teams), -1, dtype=np.float32)])
    weight = np.append(importance(targets, settings.balance), np.ones(len(few), dtype=np.float32))
    products = inner(vectors)
    products[np.diag_indices_from(products)] += settings.smoothness / weight
    factor = cho_factor(products, lower=True, overwrite_a=True, check_finite=False)
    learned = vectors.T @ cho_solve(factor, wanted, check_finite=False)
    by_token, by_pair = weights.fold(learned / settings.temperature)
    _store(counts.token, by_token, weights.token)
    _store(counts.bigram, by_pair, weights.pair)
    return counts, settings


def describe(settings: Settings) -> str:
    return (
        f"word counts: {settings.accuracy:.4f} of the tickets right, each by what the others teach (macro-F1 "
        f"{settings.macro_f1:.4f}); smoothness {settings.smoothness:g}, balance {settings.balance:g}"
    )


def inner(vectors: csr_matrix) -> np.ndarray:
    """The products of all pairs of rows: columns in frequent use as a dense matrix."""
    used = np.bincount(vectors.indices, minlength=vectors.shape[1])
    often = used > OFTEN * vectors.shape[0]
    dense = vectors[:, np.flatnonzero(often)].toarray()
    sparse = csr_matrix(vectors[:, np.flatnonzero(~often)])
    products: np.ndarray = dense @ dense.T
    products += sparse @ sparse.T
    return np.asarray(products)


@torch.no_grad()
def _store(table: nn.Embedding, scores: np.ndarray, weight: np.ndarray) -> None:
    rows = np.concatenate([scores, weight[:, None] ** 2], axis=1).astype(np.float16)
    table.weight.copy_(torch.from_numpy(rows.astype(np.float32)))
