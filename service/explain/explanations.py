"""Explains the decision on a ticket at three levels.

- `tokens`: how much each word adds to the log-odds of the chosen team against the runner-up, and the smallest
  set of words found without which another team wins.
- `heads`: what each attention head attends to. This is not a reason for the decision.
- `full`: `heads` with all attention weights.

The words' effects come from an optional output of the graph (`training.export.effects_graph`).
`service.tools.faithfulness` compares it with leave-one-out, integrated gradients and attention. If the bundle
lacks that output, stretches of words are left out one at a time. For a ticket longer than the bundle's
window, the window that gave the ticket its logits is explained (`models.windows`).
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from models.text import join
from models.windows import read_windows
from service.api.problems import Problem
from service.explain.word_spans import Word, cut, token_words, words_of
from service.inference.runtime import Runtime, pad

if TYPE_CHECKING:
    from fastapi import FastAPI

    from service.inference.service import Answer, Service

# The largest set of words that the smallest change may have.
MOST_WORDS = 8
# Sets of words are tried exhaustively while their tickets have at most this many tokens in all.
TRIED_TOKENS = 400
# Otherwise the graph runs about this many times, so that an explanation costs as much as a few answers.
MOST_RUNS = 5
# A word is put back for a trial only if another team would still win with this many times the word's effect.
# Against a factor of 1: 5 % fewer runs on 600 validation tickets, sets larger by 0.01 words on average.
EFFECT_MARGIN = 1.5
# The most ablated tickets for a bundle without effects.
MOST_ABLATIONS = 16
STRONGEST_PAIRS = 5


# --------------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True)
class Contrast:
    """The chosen team against the one that came second; `log_odds` is calibrated.

    `scale` is the factor from the gap between their logits to the log-odds, the same for every part of it.
    """

    team: int
    runner_up: int
    log_odds: float
    scale: float
    weights: np.ndarray  # (1, teams): logits @ weights = log-odds


def contrast_of(logits: np.ndarray, temperature: float, exponent: float = 1.0) -> Contrast:
    """The two largest of logits (teams,); of equal logits, the earlier team comes first."""
    team, runner_up = (int(i) for i in np.argsort(-logits, kind="stable")[:2])
    weights = np.zeros((1, len(logits)), np.float32)
    gap = float(logits[team] - logits[runner_up])
    log_odds = (gap / temperature) ** exponent
    scale = log_odds / gap if gap else 1 / temperature
    weights[0, team], weights[0, runner_up] = scale, -scale
    return Contrast(team, runner_up, log_odds, scale, weights)


def tokens(answer: Answer) -> dict[str, Any]:
    """The explanation `tokens` of one routed ticket."""
    runtime, config = answer.runtime, answer.runtime.config
    contrast = contrast_of(answer.logits, config.temperature, config.exponent)
    window = window_of(runtime, answer.encoding.ids)
    words = _words(answer, window)
    effects, method = token_effects(runtime, window, words, contrast)
    by_token = effects.tolist()
    by_word = [sum([by_token[token - window.start] for token in word.tokens]) for word in words]
    change = SmallestChange(answer, words, by_word, contrast).find()
    english = answer.encoding.english.split()
    return {
        "level": "tokens",
        "window": window.document(),
        "method": method,
        "team": config.teams[contrast.team],
        "runner_up": config.teams[contrast.runner_up],
        "log_odds": round(contrast.log_odds, 4),
        "words": [
            {"field": word.field, "start": word.start, "end": word.end, "effect": round(effect, 4)}
            | ({"read_as": " ".join([english[token] for token in word.tokens])} if english else {})
            for word, effect in zip(words, by_word, strict=True)
        ],
        "rest": round(contrast.log_odds - sum(by_word), 4),
        "smallest_change": change,
    }


@dataclass(frozen=True)
class Window:
    """The tokens [start, end) that gave a ticket of `count` tokens its logits; `ids` are theirs."""

    start: int
    end: int
    count: int
    ids: Sequence[int]

    def document(self) -> dict[str, int]:
        return {"start": self.start, "end": self.end, "tokens": self.count}


def window_of(runtime: Runtime, ids: Sequence[int]) -> Window:
    """The window that gave the ticket its logits: the whole ticket, if it fits into the bundle's window."""
    start, end = 0, len(ids)
    config = runtime.config
    if config.window and end > max(config.window, config.whole):
        start, end = read_windows(runtime.run, pad([ids]), config.window, config.whole)[1][0]
    return Window(start, end, len(ids), ids[start:end])


def _words(answer: Answer, window: Window) -> list[Word]:
    """The words that lie entirely in the window."""
    return words_of(answer.joined, answer.encoding, window.start, window.end)


def token_effects(
    runtime: Runtime, window: Window, words: Sequence[Word], contrast: Contrast
) -> tuple[np.ndarray, str]:
    """The effect of each token of a window on the log-odds, and the name of the method."""
    if not window.ids:
        return np.zeros(0), "decomposition"
    if has_effects(runtime):
        return graph_effects(runtime, window.ids, contrast), "decomposition"
    return ablation_effects(runtime, window, words, contrast), "leave_one_out"


def has_output(runtime: Runtime, output: str) -> bool:
    """Whether the bundle's graph has that optional output."""
    return any(each.name == output for each in runtime.session.get_outputs())


def has_effects(runtime: Runtime) -> bool:
    """Whether the bundle's graph computes the effect of each token."""
    return has_output(runtime, "effects")


def graph_effects(runtime: Runtime, ids: Sequence[int], contrast: Contrast) -> np.ndarray:
    """The effects (tokens,) that the graph computes."""
    feed = {"input_ids": np.array([ids], np.int64), "contrast": contrast.weights}
    effects: np.ndarray = runtime.session.run(["effects"], feed)[0][0]
    return effects


def ablation_effects(
    runtime: Runtime, window: Window, words: Sequence[Word], contrast: Contrast
) -> np.ndarray:
    """Leave out one word at a time, or one stretch of words if there are more than MOST_ABLATIONS."""
    if not words:
        return np.zeros(len(window.ids))
    stretches = np.array_split(np.arange(len(words)), min(len(words), MOST_ABLATIONS))
    groups = [
        [token - window.start for word in stretch for token in words[word].tokens] for stretch in stretches
    ]
    logits = runtime.run(pad([without(window.ids, group) for group in groups]))
    falls = contrast.log_odds - logits @ contrast.weights[0]
    effects = np.zeros(len(window.ids))
    for group, fall in zip(groups, falls, strict=True):
        effects[group] = fall / len(group)
    return effects


def without(ids: Sequence[int], tokens: Iterable[int]) -> list[int]:
    """The ids without the tokens at these positions."""
    gone = set(tokens)
    return [each for place, each in enumerate(ids) if place not in gone]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The team that wins without some words, and the log-odds of the chosen team against the best other."""

    team: int
    log_odds: float


class SmallestChange:
    """The fewest words without which another team wins.

    For a short ticket all sets of one word are tried, then of two and so on. For a longer one, words are left
    out in order of their effects until another team wins; then the words that were not needed are put back.
    The result is confirmed: the ticket is routed again as it was sent, without these words.
    """

    def __init__(
        self, answer: Answer, words: Sequence[Word], effects: Sequence[float], contrast: Contrast
    ) -> None:
        self.answer = answer
        self.runtime = answer.runtime
        self.words = words
        self.effects = effects
        self.contrast = contrast
        self.ids = answer.encoding.ids
        if answer.encoding.truncated:  # tokens beyond the limit move up when words are left out
            library = self.runtime.tokenizer.library
            self.ids = library.encode(answer.joined.text, add_special_tokens=False).ids
        self.candidates = [number for number, word in enumerate(words) if word.plain.isalnum() or word.wordy]
        self.runs = 0
        self.known: dict[tuple[int, ...], Outcome] = {}  # by ids

    def find(self) -> dict[str, Any]:
        """{words, team, limit, exhaustive}; words is empty and team None if no set was found."""
        found, exhaustive = self._every_small_set()
        if found is None and not exhaustive:
            found = self._by_effect()
        team = None if found is None else self.runtime.config.teams[found[1]]
        return {
            "words": [] if found is None else sorted(found[0]),
            "team": team,
            "limit": min(MOST_WORDS, len(self.candidates)),
            "exhaustive": exhaustive,
        }

    def _every_small_set(self) -> tuple[tuple[tuple[int, ...], int] | None, bool]:
        """The smallest set that changes the team, and whether all smaller sets were tried."""
        spent = 0
        for size in range(1, min(MOST_WORDS, len(self.candidates)) + 1):
            sets = list(itertools.islice(itertools.combinations(self.candidates, size), TRIED_TOKENS))
            spent += len(sets) * len(self.ids)
            if spent > TRIED_TOKENS:
                return None, False
            sets.sort(key=lambda chosen: -sum(self.effects[number] for number in chosen))
            outcomes = self._outcomes(sets)
            for chosen, outcome in zip(sets, outcomes, strict=True):
                if outcome.team != self.contrast.team and (confirmed := self._confirm(chosen)) is not None:
                    return (chosen, confirmed), True
        return None, True

    def _by_effect(self) -> tuple[tuple[int, ...], int] | None:
        """The fewest words of largest effect that change the team, without those that are not needed."""
        strongest = sorted(self.candidates, key=lambda number: -self.effects[number])[:MOST_WORDS]
        strongest = [number for number in strongest if self.effects[number] > 0]
        count = self._fewest(strongest)
        if count is None:
            return None
        chosen = self._pruned(strongest[:count])
        for tried in (chosen, strongest[:count]):
            if (winner := self._confirm(tried)) is not None:
                return tuple(tried), winner
        return None

    def _fewest(self, strongest: Sequence[int]) -> int | None:
        """How many of the strongest words must go; None if leaving out all of them changes nothing.

        Each try starts from the log-odds of the last one and predicts by the effects how many more must go.
        """
        keeps, changes = 0, None
        left = self.contrast.log_odds
        while keeps < len(strongest) and changes != keeps + 1:
            last = len(strongest) if changes is None else changes - 1
            count, hoped = keeps + 1, left - self.effects[strongest[keeps]]
            while hoped > 0 and count < last:
                hoped -= self.effects[strongest[count]]
                count += 1
            outcome = self._outcome(strongest[:count])
            if outcome.team != self.contrast.team:
                changes = count
            else:
                keeps, left = count, outcome.log_odds
        return changes

    def _pruned(self, chosen: Sequence[int]) -> list[int]:
        """Put back words, weakest first, without which another team may still win by their effects."""
        needed = list(chosen)
        over = -self._outcome(needed).log_odds
        for number in reversed(chosen):
            fewer = [other for other in needed if other != number]
            if not fewer or self.runs >= MOST_RUNS:
                break
            if EFFECT_MARGIN * self.effects[number] > over:
                continue
            outcome = self._outcome(fewer)
            if outcome.team != self.contrast.team:
                needed, over = fewer, -outcome.log_odds
        return needed

    def _outcome(self, gone: Sequence[int]) -> Outcome:
        """The outcome without some words; each set is run once."""
        known = self.known.get(tuple(self._left(gone)))
        if known is not None:
            return known
        self.runs += 1
        return self._outcomes([gone])[0]

    def _left(self, gone: Sequence[int]) -> list[int]:
        lost = [token for number in gone for token in self.words[number].tokens]
        return without(self.ids, lost)[: self.runtime.config.max_tokens]

    def _outcomes(self, sets: Sequence[Sequence[int]]) -> list[Outcome]:
        """The outcomes of several sets, in one run of the graph."""
        rows = [self._left(each) for each in sets]
        outcomes = [self._outcome_of(logits) for logits in self.runtime.run(pad(rows)).tolist()]
        self.known |= zip(map(tuple, rows), outcomes, strict=True)
        return outcomes

    def _outcome_of(self, logits: list[float]) -> Outcome:
        team = self.contrast.team
        winner = logits.index(max(logits))
        best = max(logits[:team] + logits[team + 1 :])
        return Outcome(winner, (logits[team] - best) * self.contrast.scale)

    def _confirm(self, chosen: Sequence[int]) -> int | None:
        """Route the ticket as sent, without these words: the team that wins, None if it is the same."""
        ticket = self.answer.ticket
        words = [self.words[number] for number in chosen]
        joined = join(cut("subject", ticket.subject, words), cut("text", ticket.text, words) or "")
        ids = self.runtime.tokenizer.encode(joined.text).ids
        known = self.known.get(tuple(ids))
        winner = known.team if known else int(self.runtime.run(pad([ids]))[0].argmax())
        return None if winner == self.contrast.team else winner


# ---------------------------------------------------------------------------------------------- heads


def heads(answer: Answer) -> dict[str, Any]:
    """The explanation `heads`: what each head attends to in this ticket, in numbers and in a sentence."""
    return _heads(answer, *_attention(answer))


def full(answer: Answer) -> dict[str, Any]:
    """The explanation `full`: `heads` and all attention weights."""
    window, weights = _attention(answer)
    return _heads(answer, window, weights) | {"level": "full", "weights": encode_weights(weights)}


def _attention(answer: Answer) -> tuple[Window, np.ndarray]:
    """The window and its attention weights (blocks, heads, tokens, tokens)."""
    if not has_output(answer.runtime, "attention"):
        message = "the graph of this bundle has no output for attention weights"
        raise Problem(422, f"explain: {message}.", errors=[{"field": "explain", "message": message}])
    window = window_of(answer.runtime, answer.encoding.ids)
    weights: np.ndarray = answer.runtime.attention(pad([window.ids]))[1][0]
    return window, weights[:, :, : len(window.ids), : len(window.ids)]


def _heads(answer: Answer, window: Window, weights: np.ndarray) -> dict[str, Any]:
    here = slice(window.start, window.end)
    words = token_words(_words(answer, window), answer.encoding.count)[here]
    places = [answer.joined.locate(start, end) for start, end in answer.encoding.offsets[here]]
    texts = answer.encoding.tokens[here]
    return {
        "level": "heads",
        "window": window.document(),
        "tokens": [
            {"field": field, "start": start, "end": end, "word": word}
            for (field, start, end), word in zip(places, words, strict=True)
        ],
        "heads": [
            {"block": block + 1, "head": head + 1, **describe(weights[block, head], texts)}
            for block in range(weights.shape[0])
            for head in range(weights.shape[1])
        ],
    }


def describe(weights: np.ndarray, texts: Sequence[str]) -> dict[str, Any]:
    """Strongest pairs, mean weight of each token, and the pattern as data and sentence; weights (n, n)."""
    count = len(texts)
    mean_read = weights.mean(axis=0) if count else np.zeros(0)
    flat = weights.ravel()
    strongest = (
        np.argpartition(-flat, STRONGEST_PAIRS)[:STRONGEST_PAIRS] if count > 2 else np.arange(flat.size)
    )
    order = strongest[np.lexsort((strongest, -flat[strongest]))]
    pairs = [divmod(int(place), count) for place in order]
    pattern = pattern_of(weights, mean_read)
    return {
        "strongest": [
            {"reader": reader, "read": read, "weight": round(float(weights[reader, read]), 4)}
            for reader, read in pairs
        ],
        "mean_read": np.round(mean_read.astype(np.float64), 4).tolist(),
        "pattern": pattern,
        "summary": sentence(pattern, texts),
    }


def pattern_of(weights: np.ndarray, mean_read: np.ndarray) -> dict[str, Any]:
    """What a head mostly attends to: itself, a neighbour, a few words, nearby tokens, or many."""
    count = len(mean_read)
    if count == 0:
        return {"kind": "broad", "tokens": [], "shares": []}
    if count > 2:
        for kind, offset in (("self", 0), ("previous", -1), ("next", 1)):
            share = float(weights.diagonal(offset).mean())
            if share >= 0.4:
                return {"kind": kind, "share": round(share, 4)}
    top = np.argsort(-mean_read, kind="stable")[:3]
    enough = max(0.1, 3 / count)
    columns = [int(token) for token in top if mean_read[token] >= enough]
    shares = [round(float(mean_read[token]), 4) for token in columns]
    if sum(shares) >= 0.25:
        return {"kind": "words", "tokens": columns, "shares": shares}
    distance = 3
    rows = np.arange(count)
    near = np.abs(rows[:, None] - rows) <= distance
    share = float((weights * near).sum(axis=1).mean())
    if share >= 0.6 and near.mean() <= 0.4:
        return {"kind": "nearby", "distance": distance, "share": round(share, 4)}
    return {"kind": "broad", "tokens": [int(top[0])], "shares": [round(float(mean_read[top[0]]), 4)]}


def sentence(pattern: dict[str, Any], texts: Sequence[str]) -> str:
    """A pattern as an English sentence; the page has it in its languages (`web/strings.js`)."""
    kind = pattern["kind"]
    if kind in ("self", "previous", "next"):
        whom = {"self": "themselves", "previous": "the one before them", "next": "the one after them"}[kind]
        return f"Tokens mostly read {whom} ({pattern['share']:.0%} of the weight)."
    if kind == "nearby":
        within = f"stays within {pattern['distance']} places"
        return f"Tokens read their neighbourhood: {pattern['share']:.0%} of the weight {within}."
    named = [
        f"“{texts[token]}” ({share:.0%})"
        for token, share in zip(pattern["tokens"], pattern["shares"], strict=True)
    ]
    if kind == "words":
        return f"Most tokens read {_listed(named)}."
    if not named:
        return "There is nothing to read."
    return f"Reads broadly, most of all {named[0]}."


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


# ----------------------------------------------------------------------------------------------- full


def encode_weights(weights: np.ndarray) -> dict[str, Any]:
    """Weights as base64 of little-endian 16-bit numbers c with weight = (c / 65535)²; error below 1.6e-5.

    The square root keeps small weights distinct: the smallest above 0 is 2.3e-10.
    """
    codes = np.rint(np.sqrt(np.clip(weights, 0, 1)) * 65535).astype("<u2")
    data = base64.b64encode(codes.tobytes()).decode("ascii")
    return {"encoding": "sqrt-uint16-le-base64", "shape": list(weights.shape), "data": data}


EXPLAINERS: dict[str, Callable[[Answer], dict[str, Any]]] = {"tokens": tokens, "heads": heads, "full": full}


def install(_: FastAPI, service: Service) -> None:
    """Register the three levels."""
    service.explainers.update(EXPLAINERS)
