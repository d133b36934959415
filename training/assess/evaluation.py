"""Evaluates a bundle on labelled tickets, with the same functions and in the same order as in serving."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.bundle import Bundle, BundleConfig
from models.decision import decide
from models.languages import language_of
from models.tokenizer import Encoding
from models.windows import read_windows
from training.assess.calibration import calibration_error
from training.data.batches import TokenIds, batches_by_length
from training.data.dataset import Tickets
from training.data.templates import each_group_once

BATCH = 64
PIECE = 4096
# The most words of a ticket in each row of figures by length; the last row is open.
LENGTHS = (5, 12, 40, 120, 400)
# A language with fewer tickets than both is not listed by name: single tickets may be taken for another one.
FEWEST_TICKETS, SMALLEST_SHARE = 5, 0.005
OTHER_LANGUAGES = "other or unclear"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one ticket, without its probabilities."""

    team: str
    confidence: float
    decision: str
    reasons: tuple[str, ...]
    tokens: int  # read by the network
    unknown: int
    truncated: bool


@dataclass(frozen=True)
class Answers:
    """A bundle's answers, in the order of the tickets."""

    logits: np.ndarray  # (tickets, teams) float32
    tickets: list[Answer]

    @property
    def teams(self) -> list[str]:
        return [one.team for one in self.tickets]

    @property
    def confidence(self) -> np.ndarray:
        return np.array([one.confidence for one in self.tickets])

    @property
    def routed(self) -> np.ndarray:
        return np.array([one.decision == "route" for one in self.tickets])


@dataclass(frozen=True)
class Score:
    """Figures of one group of tickets; shares between 0 and 1."""

    tickets: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Group:
    """Figures of the tickets of one language or length; shares between 0 and 1."""

    tickets: int
    accuracy: float
    coverage: float  # share that is routed without a person
    routed_precision: float | None  # share of routed tickets that are right; None when none is routed


@dataclass(frozen=True)
class Evaluation:
    """Figures of a bundle on one file of tickets."""

    tickets: int
    correct: int
    accuracy: float
    template_accuracy: float  # each template counted once (`training.data.templates`)
    macro_f1: float
    calibration_error: float
    coverage: float  # share that is routed without a person
    routed_precision: float | None  # share of routed tickets that are right; None when none is routed
    per_team: dict[str, Score]
    per_style: dict[str, dict[str, float]]
    per_language: dict[str, Group]  # most tickets first
    per_length: dict[str, Group]  # by words, shortest first
    unknown_teams: dict[str, dict[str, int]]  # teams that the bundle lacks: tickets, and those sent to review


def answer(bundle: Bundle, texts: Sequence[str]) -> Answers:
    """Answer cleaned texts, in chunks of PIECE."""
    logits: list[np.ndarray] = []
    tickets: list[Answer] = []
    for start in range(0, len(texts), PIECE):
        encodings = bundle.tokenizer.encode_batch(texts[start : start + PIECE])
        logits.append(run_graph(bundle, TokenIds.from_rows(encoding.ids for encoding in encodings)))
        tickets += [_answer(row, one, bundle.config) for row, one in zip(logits[-1], encodings, strict=True)]
    return Answers(np.concatenate(logits), tickets)


def _answer(logits: np.ndarray, encoding: Encoding, config: BundleConfig) -> Answer:
    made = decide(logits, encoding, config)
    read = encoding.count, encoding.unknown, encoding.truncated
    return Answer(made.team, made.confidence, made.decision, tuple(made.reasons), *read)


def run_graph(bundle: Bundle, tokens: TokenIds) -> np.ndarray:
    """Logits (tickets, teams), computed in batches of similar length."""
    logits = np.zeros((len(tokens), len(bundle.config.teams)), dtype=np.float32)

    def run(input_ids: np.ndarray) -> np.ndarray:
        scored: np.ndarray = bundle.session.run(["logits"], {"input_ids": input_ids})[0]
        return scored

    for rows in batches_by_length(tokens.lengths, BATCH):
        logits[rows], _ = read_windows(
            run, tokens.padded(rows).numpy(), bundle.config.window, bundle.config.whole
        )
    return logits


def evaluate(bundle: Bundle, tickets: Tickets) -> Evaluation:
    """Answer every ticket and compare the answers with the labels."""
    return assess(answer(bundle, tickets.texts), tickets, bundle.config.teams)


def assess(answers: Answers, tickets: Tickets, teams: Sequence[str]) -> Evaluation:
    """The figures of `answers` to labelled `tickets`."""
    predicted, actual = np.array(answers.teams), np.array(tickets.teams)
    correct, routed = predicted == actual, answers.routed
    per_team = {team: _score(predicted == team, actual == team) for team in teams}
    present = [score for score in per_team.values() if score.tickets]
    unknown = sorted(set(tickets.teams) - set(teams))
    return Evaluation(
        tickets=len(tickets),
        correct=int(correct.sum()),
        accuracy=float(correct.mean()),
        template_accuracy=float(np.average(correct, weights=each_group_once(tickets.template_groups))),
        macro_f1=float(np.mean([score.f1 for score in present] or [0.0])),
        calibration_error=calibration_error(answers.confidence, correct),
        coverage=float(routed.mean()),
        routed_precision=float(correct[routed].mean()) if routed.any() else None,
        per_team=per_team,
        per_style=_per_style(tickets.styles, correct),
        per_language=_groups(*_languages(tickets.texts), correct, routed),
        per_length=_groups(*_lengths(tickets.texts), correct, routed),
        unknown_teams={
            team: {
                "tickets": int((actual == team).sum()),
                "review": int(((actual == team) & ~routed).sum()),
            }
            for team in unknown
        },
    )


def _score(predicted: np.ndarray, actual: np.ndarray) -> Score:
    right = int((predicted & actual).sum())
    said, are = int(predicted.sum()), int(actual.sum())
    precision, recall = right / said if said else 0.0, right / are if are else 0.0
    return Score(are, precision, recall, 2 * right / (said + are) if said + are else 0.0)


def _languages(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The language of each text, and all languages, most tickets first."""
    found = [language_of(text) for text in texts]
    fewest = max(FEWEST_TICKETS, SMALLEST_SHARE * len(texts))
    listed = [
        language
        for language, count in Counter(found).most_common()
        if language is not None and count >= fewest
    ]
    names = [language if language in listed else OTHER_LANGUAGES for language in found]
    return names, listed + [OTHER_LANGUAGES] * (OTHER_LANGUAGES in names)


def _lengths(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The range of words of each text, and all ranges that occur, shortest first."""
    ends = [str(end) for end in LENGTHS]
    ranges = [
        f"1 to {ends[0]}",
        *(f"{end + 1} to {last}" for end, last in zip(LENGTHS, ends[1:], strict=False)),
    ]
    ranges = [f"{name} words" for name in [*ranges, f"more than {ends[-1]}"]]
    names = [ranges[bisect_left(LENGTHS, len(text.split()))] for text in texts]
    return names, [name for name in ranges if name in set(names)]


def _groups(names: list[str], order: list[str], correct: np.ndarray, routed: np.ndarray) -> dict[str, Group]:
    """The figures of each group; `names` has the group of each ticket, `order` each group once."""
    named = np.array(names)
    groups = {}
    for name in order:
        of_it = named == name
        right = correct[of_it & routed]
        groups[name] = Group(
            tickets=int(of_it.sum()),
            accuracy=float(correct[of_it].mean()),
            coverage=float(routed[of_it].mean()),
            routed_precision=float(right.mean()) if len(right) else None,
        )
    return groups


def _per_style(styles: list[str], correct: np.ndarray) -> dict[str, dict[str, float]]:
    written = np.array(styles)
    return {
        style: {
            "tickets": int((written == style).sum()),
            "accuracy": float(correct[written == style].mean()),
        }
        for style in sorted(set(styles))
    }
