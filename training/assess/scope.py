"""Fits the statistics that `models.scope` compares live tickets with."""

import base64
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.languages import languages_of_words, script
from models.scope import STEPS_PER_NAT, Scope, read, review_reasons, split, typicality

MAX_WORDS = 30_000
MAX_QUANTILES = 512  # of each measure
KEPT = 0.99  # share of the validation tickets that stay in scope, at least
REFUSED = 0.97  # share of the outlier texts that `min_typicality` should refuse
FEWEST_OUTLIERS = 50


@dataclass(frozen=True)
class Scored:
    """Texts, and the network's largest logit of each (texts,)."""

    texts: Sequence[str]
    logits: np.ndarray


def fit(texts: Sequence[str], teams: Sequence[str], valid: Scored, outliers: Scored | None = None) -> Scope:
    """The statistics of the training tickets (`texts`, `teams`) and the validation tickets.

    `min_typicality` is the lowest value that refuses REFUSED of the `outliers`, but it refuses at most
    1 - KEPT of the validation tickets. Outliers count that no other limit refuses; with fewer than
    FEWEST_OUTLIERS of them it refuses 1 - KEPT of the validation tickets. Each other limit keeps at least
    199 of 200.
    """
    words = _WordStatistics(texts, teams)
    scope = Scope(
        words=" ".join(words.names),
        informativeness=_encode_nats(words.informativeness, STEPS_PER_NAT["informativeness"]),
        idf=_encode_nats(words.idf, STEPS_PER_NAT["idf"]),
        unknown_idf=math.log(2 * len(texts)),
        languages=_languages(texts),
        scripts=_scripts(texts),
    )
    tickets = [read(text, scope) for text in valid.texts]
    informativeness = [ticket.informativeness for ticket in tickets]
    measures = (valid.logits, informativeness, [-ticket.idf for ticket in tickets])
    fitted = scope.model_copy(
        update={
            "quantiles": [_quantiles(values) for values in measures],
            "max_unknown_share": max(
                0.5, float(np.quantile([ticket.unknown_share for ticket in tickets], 0.995))
            ),
            "min_informativeness": float(np.quantile(informativeness, 0.005)) / 3,
        }
    )
    limit = float(np.quantile(_typicality(valid, fitted), 1 - KEPT))
    if outliers is not None:
        limit = min(limit, _limit_of(outliers, fitted))
    return fitted.model_copy(update={"min_typicality": limit})


def _typicality(scored: Scored, scope: Scope) -> list[float]:
    return [
        typicality(read(text, scope), float(logit), scope)
        for text, logit in zip(scored.texts, scored.logits, strict=True)
    ]


def _limit_of(outliers: Scored, scope: Scope) -> float:
    """The typicality that REFUSED of the outliers do not reach; infinite where too few can say."""
    scores = [
        score
        for text, logit, score in zip(
            outliers.texts, outliers.logits, _typicality(outliers, scope), strict=True
        )
        if not review_reasons(text, float(logit), scope)
    ]
    return float(np.quantile(scores, REFUSED)) if len(scores) >= FEWEST_OUTLIERS else math.inf


def _languages(texts: Sequence[str]) -> list[str]:
    """The languages of at least one ticket in twenty, by their function words."""
    users = languages_of_words()
    tickets: Counter[str] = Counter()
    for text in texts:
        hits = Counter(language for word in split(text) for language in users.get(word, ()))
        best = max(hits.values(), default=0)
        if best >= 2:
            tickets.update(language for language, count in hits.items() if count == best)
    return sorted(language for language, count in tickets.items() if 20 * count >= len(texts))


def _scripts(texts: Sequence[str]) -> list[str]:
    """The scripts of at least one letter in a thousand."""
    letters = Counter(letter for text in texts for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[script(letter)] += count
    return sorted(name for name, count in scripts.items() if 1000 * count >= scripts.total())


class _WordStatistics:
    """The commonest words of at least two tickets, with the statistics of each in nats.

    `informativeness`: KL(P(team | word) || P(team)), smoothed with two pseudo-tickets of the prior P(team).
    `idf`: -log of the share of tickets that contain the word.
    """

    def __init__(self, texts: Sequence[str], teams: Sequence[str]) -> None:
        tickets = Counter(word for text in texts for word in set(split(text)))
        shared = sorted(
            (word for word, count in tickets.items() if count >= 2), key=lambda w: (-tickets[w], w)
        )
        self.names = shared[:MAX_WORDS]
        row = {word: number for number, word in enumerate(self.names)}
        listed = sorted(set(teams))
        column = {team: number for number, team in enumerate(listed)}
        counts = np.zeros((len(row), len(listed)))
        for text, team in zip(texts, teams, strict=True):
            counts[[row[word] for word in set(split(text)) if word in row], column[team]] += 1
        prior = np.array([teams.count(team) for team in listed]) / len(teams)
        smoothed = (counts + 2 * prior) / (counts.sum(axis=1, keepdims=True) + 2)
        self.informativeness = (smoothed * np.log(smoothed / prior)).sum(axis=1)
        self.idf = -np.log([tickets[word] / len(texts) for word in self.names])


def _encode_nats(nats: np.ndarray, per_nat: int) -> str:
    return base64.b64encode(np.clip(np.round(nats * per_nat), 0, 255).astype(np.uint8).tobytes()).decode()


def _quantiles(values: Sequence[float] | np.ndarray) -> list[float]:
    """The sorted values, or at most MAX_QUANTILES quantiles of them."""
    count = min(len(values), MAX_QUANTILES)
    return [round(float(value), 4) for value in np.quantile(values, (np.arange(count) + 0.5) / count)]
