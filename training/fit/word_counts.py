"""Fits the linear part of the network (`models.network.WordCounts`) in closed form, by ridge regression.

A ticket is a vector with the TF-IDF weights of its tokens, of its pairs of neighbouring tokens, and of the
tokens' character n-grams. The n-grams of a token together weigh as much as the token, so that words with
similar spelling have similar scores, and parts of unseen words count too.

One-against-rest ridge regression is solved in its dual form, through the Gram matrix (n x n) of the tickets.
The leave-one-out prediction of each ticket follows from the same inverse (Allen 1974, PRESS; Rifkin and
Lippert 2007, "Notes on Regularized Least Squares"). The ridge penalty and the sample weights of small teams
are chosen on these predictions. Tickets of one template are left out together: the same alert with another
number in it would give a ticket's team away.

The targets are 1 for a ticket's team and -1 for the others, plus the teachers' logits where they read the
tickets (training.teachers.soft_labels). With many teams, +-1 alone says nothing about which teams are alike.
The weight of these logits is chosen on the validation tickets. Leave-one-out would flatter it, because the
teachers of the other tickets saw the label of the one that is left out.

Outlier texts are also examples: their target is "none" for every team.

The model is linear in the tokens, so the result is one row of scores per vocabulary entry and per row of the
pair table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

SHORTEST_NGRAM, LONGEST_NGRAM = 3, 5  # characters
MIN_TICKETS, MAX_SHARE = 2, 0.3  # an n-gram counts if it is in this many tickets, and in at most this share
PENALTIES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # added to the diagonal of the Gram matrix, which is about 1
TEACHINGS = (0.4, 1.6)  # weights of the teachers' logits, which have a standard deviation of 1
BALANCES = (0.0, 0.3, 0.6)  # a ticket weighs (its team's share of the tickets) ** -balance
MOST_COMPARED = 4_000  # tickets on which penalty and balance are chosen
DENSE_SHARE = 0.03  # columns used by a larger share of the tickets are multiplied as a dense matrix
LEAST_SOFT = 1e-6  # smaller probabilities of a soft label count as this
OUTLIER_SHARE = 0.3  # outlier texts per ticket, at most
MOST_FITTED = 16_000  # tickets: time grows with the cube of their number, memory with its square


@dataclass(frozen=True)
class Settings:
    """The chosen ridge penalty, balance and teaching; `temperature` turns scores into logits."""

    penalty: float
    balance: float
    temperature: float
    accuracy: float  # leave-one-out
    macro_f1: float  # leave-one-out
    teaching: float = 0.0  # weight of the teachers' logits


@dataclass(frozen=True)
class Weights:
    """The idf of tokens (vocabulary,) and pairs (rows,), and `ngram_features`."""

    token: np.ndarray
    pair: np.ndarray
    ngrams: csr_matrix

    def vectors(self, tokens: TokenIds) -> csr_matrix:
        """(tickets, vocabulary + n-grams + rows of pairs)."""
        counted, paired = count_tokens(tokens, len(self.token), len(self.pair))
        words = counted @ diags(self.token)
        return csr_matrix(
            diags(1 / self.norms(tokens))
            @ hstack([words, words @ self.ngrams, paired @ diags(self.pair)], format="csr")
        )

    def norms(self, tokens: TokenIds) -> np.ndarray:
        """(tickets,) L2 norm of the weights of a ticket's tokens and pairs; 1 if it is 0."""
        squares = np.append(
            self.token[tokens.flat] ** 2 + self.pair[pair_rows(tokens, len(self.pair))] ** 2, 0
        )
        sums = np.add.reduceat(squares, np.minimum(tokens.starts[:-1], len(squares) - 1))
        return np.sqrt(np.where((tokens.lengths > 0) & (sums > 0), sums, 1.0))

    def scores(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores by token (vocabulary, teams) and pair (rows, teams), from coefficients (features, teams)."""
        vocabulary, ngrams = self.ngrams.shape
        own, spelling, paired = np.split(coefficients, [vocabulary, vocabulary + ngrams])
        by_token = self.token[:, None] * (own + self.ngrams @ spelling)
        return by_token, self.pair[:, None] * paired


def count_tokens(tokens: TokenIds, vocabulary: int, rows: int) -> tuple[csr_matrix, csr_matrix]:
    """Counts (tickets, vocabulary) and (tickets, rows of pairs).

    Each occurrence of a token that occurs c times in its ticket, and of its pair, counts 1 / sqrt(c).
    """
    ticket = np.repeat(np.arange(len(tokens)), tokens.lengths)
    key = ticket * np.int64(vocabulary) + tokens.flat
    _, place, count = np.unique(key, return_inverse=True, return_counts=True)
    share = 1 / np.sqrt(count[place])
    tickets = len(tokens)
    counted = csr_matrix((share, (ticket, tokens.flat)), shape=(tickets, vocabulary))
    paired = csr_matrix((share, (ticket, pair_rows(tokens, rows))), shape=(tickets, rows))
    return counted, paired


def pair_rows(tokens: TokenIds, rows: int) -> np.ndarray:
    """`models.network.bigram_rows` for the tokens of all tickets (tokens,)."""
    left = np.append(0, tokens.flat[:-1]).astype(np.int64)
    left[tokens.starts[:-1][tokens.lengths > 0]] = 0
    found: np.ndarray = (left * PAIR_MULTIPLIER + tokens.flat) % rows
    return found


def fit_weights(tokens: TokenIds, vocabulary: Sequence[str], rows: int) -> Weights:
    """The idf of the tickets' tokens, pairs and n-grams; 0 for a pair of only one ticket."""
    counted, paired = count_tokens(tokens, len(vocabulary), rows)
    pair, in_tickets = idf(paired)
    pair = pair * (in_tickets > 1)
    return Weights(idf(counted)[0], pair, ngram_features(vocabulary, counted))


def idf(counted: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Inverse document frequency and document frequency of each column of (tickets, columns)."""
    tickets = counted.shape[0]
    frequency = np.asarray((counted > 0).sum(axis=0)).ravel()
    return np.log((1 + tickets) / (1 + frequency)) + 1, frequency


def ngram_features(vocabulary: Sequence[str], counted: csr_matrix) -> csr_matrix:
    """The idf of each entry's character n-grams (vocabulary, n-grams), each row of norm 1 or 0."""
    columns: dict[str, int] = {}
    entries, grams = [], []
    for entry, text in enumerate(vocabulary):
        for gram in ngrams(text) if entry > UNKNOWN_ID else ():
            entries.append(entry)
            grams.append(columns.setdefault(gram, len(columns)))
    shape = len(vocabulary), max(1, len(columns))
    contains = csr_matrix((np.ones(len(entries)), (entries, grams)), shape=shape)
    contains.data[:] = 1
    weight, frequency = idf(csr_matrix(counted @ contains))
    most = max(MIN_TICKETS, MAX_SHARE * counted.shape[0])
    used = (frequency >= MIN_TICKETS) & (frequency <= most)
    weighed = csr_matrix((contains @ diags(weight))[:, np.flatnonzero(used)])
    norm = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
    return csr_matrix(diags(1 / np.where(norm > 0, norm, 1)) @ weighed)


def ngrams(entry: str) -> set[str]:
    """The character n-grams of a vocabulary entry; a space marks the beginning and the end of a word."""
    inside = entry.startswith(INSIDE) and entry != INSIDE
    text = f"{entry.removeprefix(INSIDE)} " if inside else f" {entry} "
    sizes = range(SHORTEST_NGRAM, LONGEST_NGRAM + 1)
    return {text[start : start + size] for size in sizes for start in range(len(text) - size + 1)}


def choose(gram: np.ndarray, targets: np.ndarray, teams: int, groups: np.ndarray) -> Settings:
    """The settings with the best leave-one-out quality: the mean of accuracy and macro-F1.

    Tickets of equal `groups` (tickets,) are left out together.
    """
    best: Settings | None = None
    y = one_against_rest(targets, teams)
    for balance in BALANCES:
        for penalty in PENALTIES:
            scores = leave_one_out(gram, y, penalty / sample_weights(targets, balance), groups)
            found = scores.argmax(axis=1)
            accuracy, f1 = float((found == targets).mean()), _macro_f1(targets, found)
            if best is None or accuracy + f1 > best.accuracy + best.macro_f1:
                best = Settings(penalty, balance, fit_temperature(scores, targets)[1], accuracy, f1)
    assert best is not None
    return best


def choose_teaching(labels: np.ndarray, teachers: np.ndarray, targets: np.ndarray) -> float:
    """The weight of `teachers` beside `labels`, both scores of validation tickets (tickets, teams).

    It is 0 unless the mean of accuracy and macro-F1 gains more than .5 / sqrt(tickets), which bounds the
    standard error of an accuracy.
    """

    def quality(teaching: float) -> float:
        found = (labels + teaching * teachers).argmax(axis=1)
        return (float((found == targets).mean()) + _macro_f1(targets, found)) / 2

    best = max(TEACHINGS, key=quality)
    return best if quality(best) - quality(0) > 0.5 / np.sqrt(max(1, len(targets))) else 0.0


def _macro_f1(targets: np.ndarray, found: np.ndarray) -> float:
    return float(f1_score(targets, found, average="macro", labels=np.unique(targets), zero_division=0))


def leave_one_out(gram: np.ndarray, y: np.ndarray, penalties: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Scores (tickets, columns) of each ticket by a model that was fitted to `y` without its group.

    `groups` (tickets,) are equal for tickets that are left out together. With the inverse K of the penalized
    Gram matrix, the scores of a group g are y_g - (K_gg)^-1 (K y)_g.
    """
    inverse = np.tril(cholesky_inverse(gram + np.diag(penalties)))
    inverse = inverse + np.tril(inverse, -1).T
    explained = inverse @ y
    scores: np.ndarray = y - explained / np.diag(inverse)[:, None]
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(rows) > 1:
            scores[rows] = y[rows] - np.linalg.solve(inverse[np.ix_(rows, rows)], explained[rows])
    return scores


def cholesky_inverse(matrix: np.ndarray) -> np.ndarray:
    """The lower triangle of the inverse of a symmetric positive definite matrix."""
    factor, _ = lapack.spotrf(matrix, lower=1)
    inverse: np.ndarray = lapack.spotri(factor, lower=1)[0]
    return inverse


def sample_weights(targets: np.ndarray, balance: float) -> np.ndarray:
    """The weight of each ticket (tickets,), 1 on average, and larger for teams with few tickets."""
    share = np.bincount(targets)[targets] / len(targets)
    weight = share**-balance
    found: np.ndarray = (weight / weight.mean()).astype(np.float32)
    return found


def one_against_rest(targets: np.ndarray, teams: int) -> np.ndarray:
    """(tickets, teams): 1 for the ticket's team, -1 for the others."""
    y = np.full((len(targets), teams), -1.0, dtype=np.float32)
    y[np.arange(len(targets)), targets] = 1
    return y


def teachers_logits(soft: np.ndarray) -> np.ndarray:
    """The logits behind soft labels (tickets, teams), with mean 0 in each ticket and standard deviation 1."""
    logits = np.log(np.maximum(soft, LEAST_SOFT))
    logits -= logits.mean(axis=1, keepdims=True)
    scaled: np.ndarray = logits / max(float(logits.std()), 1e-6)
    return scaled


# BLAS threads wait in busy loops: on a loaded machine several take a hundred times as long as one.
@threadpool_limits.wrap(limits=1, user_api="blas")
def fit_word_counts(
    config: NetworkConfig,
    examples: Examples,
    valid: Examples,
    outliers: TokenIds,
    tokenizer: Tokenizer,
    seed: int,
    groups: np.ndarray,
) -> tuple[WordCounts, Settings]:
    """The fitted model, whose scores are logits, and its settings; `outliers` are texts of no team.

    `groups` (tickets,) are equal for tickets of one template. The soft labels of the examples, if they have
    any, are targets too. At most MOST_FITTED tickets are used, drawn with `seed`, and at most OUTLIER_SHARE
    outliers per ticket.
    """
    counts, teams = WordCounts(config), config.teams
    entries = sorted(tokenizer.vocabulary.items(), key=lambda entry: entry[1])
    rows = np.sort(np.random.default_rng((seed, 4)).permutation(len(examples.targets))[:MOST_FITTED])
    tokens, targets = examples.tokens.select(rows), examples.targets.numpy()[rows]
    weights = fit_weights(tokens, [entry for entry, _ in entries], config.counts)
    vectors = weights.vectors(tokens).astype(np.float32)
    compared = np.random.default_rng((seed, 5)).permutation(len(rows))[:MOST_COMPARED]
    settings = choose(gram_matrix(vectors[compared]), targets[compared], teams, groups[rows][compared])
    few = outliers.select(np.arange(min(len(outliers), int(OUTLIER_SHARE * len(rows)))))
    vectors = vstack([vectors, weights.vectors(few).astype(np.float32)], format="csr")
    y = np.concatenate([one_against_rest(targets, teams), np.full((len(few), teams), -1, dtype=np.float32)])
    if examples.soft is not None:
        taught = np.pad(teachers_logits(examples.soft.numpy()[rows]), ((0, len(few)), (0, 0)))
        y = np.hstack([y, taught])
    weight = np.append(sample_weights(targets, settings.balance), np.ones(len(few), dtype=np.float32))
    gram = gram_matrix(vectors)
    gram[np.diag_indices_from(gram)] += settings.penalty / weight
    factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    coefficients = vectors.T @ cho_solve(factor, y, check_finite=False)
    if examples.soft is not None:
        labels, teachers = np.hsplit(coefficients, [teams])
        known = weights.vectors(valid.tokens)
        chosen = choose_teaching(known @ labels, known @ teachers, valid.targets.numpy())
        settings = replace(settings, teaching=chosen)
        coefficients = labels + chosen * teachers
    by_token, by_pair = weights.scores(coefficients / settings.temperature)
    _store(counts.token, by_token, weights.token)
    _store(counts.bigram, by_pair, weights.pair)
    return counts, settings


def describe(settings: Settings) -> str:
    return (
        f"word counts: leave-one-out accuracy {settings.accuracy:.4f}, macro-F1 {settings.macro_f1:.4f}; "
        f"ridge penalty {settings.penalty:g}, balance {settings.balance:g}, "
        f"weight of the teachers {settings.teaching:g}"
    )


def gram_matrix(vectors: csr_matrix) -> np.ndarray:
    """The products of all pairs of rows (rows, rows); often used columns are multiplied as a dense matrix."""
    used = np.bincount(vectors.indices, minlength=vectors.shape[1])
    often = used > DENSE_SHARE * vectors.shape[0]
    dense = vectors[:, np.flatnonzero(often)].toarray()
    sparse = csr_matrix(vectors[:, np.flatnonzero(~often)])
    products: np.ndarray = dense @ dense.T
    products += sparse @ sparse.T
    return np.asarray(products)


@torch.no_grad()
def _store(table: nn.Embedding, scores: np.ndarray, weight: np.ndarray) -> None:
    rows = np.concatenate([scores, weight[:, None] ** 2], axis=1).astype(np.float16)
    table.weight.copy_(torch.from_numpy(rows.astype(np.float32)))
