"""Fits the statistics that `models.scope` compares live tickets with."""

import base64
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from models.languages import languages_of_words, script
from models.scope import STEPS_PER_NAT, Scope, read, split, typicality

MAX_WORDS = 30_000
MAX_QUANTILES = 512  # of each measure


def fit(
    texts: Sequence[str],
    teams: Sequence[str],
    valid_texts: Sequence[str],
    valid_logits: np.ndarray,
    *,
    kept: float = 0.99,
) -> Scope:
    """The statistics of the training tickets (`texts`, `teams`) and the validation tickets.

    `valid_logits` (tickets, teams) are the network's. With `min_typicality`, the share `kept` of the
    validation tickets is in scope, and with each other limit at least 199 of 200.
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
    tickets = [read(text, scope) for text in valid_texts]
    largest = valid_logits.max(axis=1)
    measures = (largest, [ticket.informativeness for ticket in tickets], [-ticket.idf for ticket in tickets])
    compared = scope.model_copy(update={"quantiles": [_quantiles(values) for values in measures]})
    scores = [
        typicality(ticket, float(logit), compared) for ticket, logit in zip(tickets, largest, strict=True)
    ]
    return compared.model_copy(
        update={
            "min_typicality": float(np.quantile(scores, 1 - kept)),
            "max_unknown_share": max(
                0.5, float(np.quantile([ticket.unknown_share for ticket in tickets], 0.995))
            ),
            "min_informativeness": float(np.quantile(measures[1], 0.005)) / 3,
        }
    )


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
