"""What is usual in the training and validation tickets, for `models.scope` to compare live tickets with."""

import base64
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from models.languages import languages_of_words, script
from models.scope import STEPS_PER_NAT, Scope, read, split, usualness

MOST_WORDS_KEPT = 30_000
POINTS_KEPT = 512  # of the distribution of each measure


def fit(
    texts: Sequence[str],
    teams: Sequence[str],
    valid_texts: Sequence[str],
    valid_logits: np.ndarray,
    *,
    kept: float = 0.99,
) -> Scope:
    """What is usual in the training tickets (`texts`, `teams`) and the validation tickets.

    `valid_logits` (tickets, teams) are the network's. `kept` is the share of validation tickets that are
    usual enough. The other limits let at least 199 of 200 of them through.
    """
    words = _Fitted(texts, teams)
    scope = Scope(
        words=" ".join(words.names),
        telling=_in_steps(words.telling, STEPS_PER_NAT["telling"]),
        rarity=_in_steps(words.rarity, STEPS_PER_NAT["rarity"]),
        rarest=math.log(2 * len(texts)),
        languages=_languages(texts),
        scripts=_scripts(texts),
    )
    tickets = [read(text, scope) for text in valid_texts]
    largest = valid_logits.max(axis=1)
    measures = (largest, [ticket.telling for ticket in tickets], [-ticket.rarity for ticket in tickets])
    usual = scope.model_copy(update={"usual": [_points(values) for values in measures]})
    scores = [usualness(ticket, float(logit), usual) for ticket, logit in zip(tickets, largest, strict=True)]
    return usual.model_copy(
        update={
            "least_usual": float(np.quantile(scores, 1 - kept)),
            "most_unknown": max(0.5, float(np.quantile([ticket.unknown_share for ticket in tickets], 0.995))),
            "least_telling": float(np.quantile(measures[1], 0.005)) / 3,
        }
    )


def _languages(texts: Sequence[str]) -> list[str]:
    """The languages that one ticket in twenty is in, going by its short words."""
    users = languages_of_words()
    tickets: Counter[str] = Counter()
    for text in texts:
        hits = Counter(language for word in split(text) for language in users.get(word, ()))
        best = max(hits.values(), default=0)
        if best >= 2:
            tickets.update(language for language, count in hits.items() if count == best)
    return sorted(language for language, count in tickets.items() if 20 * count >= len(texts))


def _scripts(texts: Sequence[str]) -> list[str]:
    """The scripts that one letter in a thousand is of."""
    letters = Counter(letter for text in texts for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[script(letter)] += count
    return sorted(name for name, count in scripts.items() if 1000 * count >= scripts.total())


class _Fitted:
    """The commonest words that two tickets have, with what each says.

    `telling`: the divergence of the teams of its tickets from those of all tickets, in nats:
    KL(P(team | word) || P(team)), where two imagined tickets of all teams temper the word's own.
    `rarity`: -log of the share of tickets that have it.
    """

    def __init__(self, texts: Sequence[str], teams: Sequence[str]) -> None:
        tickets = Counter(word for text in texts for word in set(split(text)))
        shared = sorted(
            (word for word, count in tickets.items() if count >= 2), key=lambda w: (-tickets[w], w)
        )
        self.names = shared[:MOST_WORDS_KEPT]
        row = {word: number for number, word in enumerate(self.names)}
        listed = sorted(set(teams))
        column = {team: number for number, team in enumerate(listed)}
        counts = np.zeros((len(row), len(listed)))
        for text, team in zip(texts, teams, strict=True):
            counts[[row[word] for word in set(split(text)) if word in row], column[team]] += 1
        of_all = np.array([teams.count(team) for team in listed]) / len(teams)
        tempered = (counts + 2 * of_all) / (counts.sum(axis=1, keepdims=True) + 2)
        self.telling = (tempered * np.log(tempered / of_all)).sum(axis=1)
        self.rarity = -np.log([tickets[word] / len(texts) for word in self.names])


def _in_steps(nats: np.ndarray, per_nat: int) -> str:
    return base64.b64encode(np.clip(np.round(nats * per_nat), 0, 255).astype(np.uint8).tobytes()).decode()


def _points(values: Sequence[float] | np.ndarray) -> list[float]:
    """Values in rising order, or as many points of their distribution as are kept."""
    count = min(len(values), POINTS_KEPT)
    return [round(float(value), 4) for value in np.quantile(values, (np.arange(count) + 0.5) / count)]
