"""How good a bundle is on labelled tickets, read exactly as serving reads them.

    python -m training.evaluate --bundle models/larkfield --data valid.csv [--json]

Clean, tokenize, run the ONNX graph, decide: the same functions in the same order as in `service`.
"""

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from models.bundle import Bundle, BundleConfig, BundleError, load_bundle
from models.decision import decide
from models.tokenizer import Encoding
from models.windows import read_windows
from training.batches import TokenIds, batches_by_length
from training.calibrate import calibration_error
from training.command import guarded
from training.data import Columns, DataError, Faults, Tickets, read_tickets, team_names

BATCH = 64
PIECE = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What serving says about one ticket, without its probabilities."""

    team: str
    confidence: float
    decision: str
    reasons: tuple[str, ...]
    tokens: int  # that were read
    unknown: int
    truncated: bool


@dataclass(frozen=True)
class Answers:
    """What a bundle says about each ticket, in the order of the tickets."""

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
class Evaluation:
    """Figures of a bundle on one file of tickets."""

    tickets: int
    correct: int
    accuracy: float
    macro_f1: float
    calibration_error: float
    coverage: float  # share that is routed without a person
    routed_precision: float | None  # share of routed tickets that are right; None when none is routed
    per_team: dict[str, Score]
    per_style: dict[str, dict[str, float]]
    unknown_teams: dict[str, dict[str, int]]  # tickets of teams it does not know, and those sent to review


def answer(bundle: Bundle, texts: Sequence[str]) -> Answers:
    """Route cleaned texts through tokenizer, graph and decision, PIECE of them at a time."""
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
    """Logits (tickets, teams), computed in batches of about equally long tickets."""
    logits = np.zeros((len(tokens), len(bundle.config.teams)), dtype=np.float32)

    def run(input_ids: np.ndarray) -> np.ndarray:
        scored: np.ndarray = bundle.session.run(["logits"], {"input_ids": input_ids})[0]
        return scored

    for rows in batches_by_length(tokens.lengths, BATCH):
        logits[rows], _ = read_windows(run, tokens.padded(rows).numpy(), bundle.config.window)
    return logits


def evaluate(bundle: Bundle, tickets: Tickets) -> Evaluation:
    """Answer every ticket and compare with the team it is labelled with."""
    return assess(answer(bundle, tickets.texts), tickets, bundle.config.teams)


def assess(answers: Answers, tickets: Tickets, teams: Sequence[str]) -> Evaluation:
    """The figures of given answers."""
    predicted, actual = np.array(answers.teams), np.array(tickets.teams)
    correct, routed = predicted == actual, answers.routed
    per_team = {team: _score(predicted == team, actual == team) for team in teams}
    present = [score for score in per_team.values() if score.tickets]
    unknown = sorted(set(tickets.teams) - set(teams))
    return Evaluation(
        tickets=len(tickets),
        correct=int(correct.sum()),
        accuracy=float(correct.mean()),
        macro_f1=float(np.mean([score.f1 for score in present] or [0.0])),
        calibration_error=calibration_error(answers.confidence, correct),
        coverage=float(routed.mean()),
        routed_precision=float(correct[routed].mean()) if routed.any() else None,
        per_team=per_team,
        per_style=_per_style(tickets.styles, correct),
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


def _per_style(styles: list[str], correct: np.ndarray) -> dict[str, dict[str, float]]:
    written = np.array(styles)
    return {
        style: {
            "tickets": int((written == style).sum()),
            "accuracy": float(correct[written == style].mean()),
        }
        for style in sorted(set(styles))
    }


def to_text(evaluation: Evaluation) -> str:
    """The figures as a person reads them in a terminal."""
    precision = evaluation.routed_precision
    routed = "none routed" if precision is None else f"{precision:.4f} of those right"
    lines = [
        f"tickets   {evaluation.tickets:,}",
        f"accuracy  {evaluation.accuracy:.4f}  ({evaluation.correct:,} right)",
        f"macro-F1  {evaluation.macro_f1:.4f}",
        f"calibration error  {evaluation.calibration_error:.4f}",
        f"routed    {evaluation.coverage:.4f} of the tickets, {routed}",
        "",
        f"{'team':30} {'tickets':>7} {'precision':>9} {'recall':>7} {'F1':>7}",
    ]
    for team, score in evaluation.per_team.items():
        lines.append(
            f"{team:30} {score.tickets:7,} {score.precision:9.4f} {score.recall:7.4f} {score.f1:7.4f}"
        )
    if evaluation.per_style:
        lines += ["", f"{'style':30} {'tickets':>7} {'accuracy':>9}"]
        for style, figures in evaluation.per_style.items():
            lines.append(f"{style:30} {figures['tickets']:7,} {figures['accuracy']:9.4f}")
    for team, counts in evaluation.unknown_teams.items():
        lines.append(
            f"the bundle does not know the team {team!r}: {counts['tickets']:,} tickets, counted as wrong, "
            f"{counts['review']:,} of them sent to review"
        )
    return "\n".join(lines)


def add_column_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say what the columns of a ticket file are."""
    group = parser.add_argument_group("columns")
    group.add_argument(
        "--text-column",
        action="append",
        metavar="NAME",
        help="what the customer wrote (default: text); give it twice for subject and body, in that order",
    )
    group.add_argument(
        "--team-column", default="team", metavar="NAME", help="the team that solved it (default: team)"
    )
    group.add_argument(
        "--id-column", metavar="NAME", help="the ticket's id (default: ticket_id or id, where there is one)"
    )
    group.add_argument("--encoding", metavar="NAME", help="of CSV and JSONL files (default: UTF-8)")


def columns_of(arguments: argparse.Namespace) -> Columns:
    return Columns(
        tuple(arguments.text_column or ["text"]), arguments.team_column, arguments.id_column or None
    )


def tickets_of(options: argparse.Namespace, teams: Collection[str]) -> Tickets:
    """The usable tickets of `--data`; faults go to stderr.

    DataError for faults that stop, and where no ticket has one of the `teams`: another column is meant.
    """
    faults = Faults()
    tickets = read_tickets(options.data, columns_of(options), faults, options.encoding)
    faults.stop_if_fatal()
    for fault in faults:
        print(fault, file=sys.stderr)
    if not set(tickets.teams) & set(teams):
        raise DataError(
            f"{tickets.file}: no ticket has a team that the bundle knows (is --team-column the right one?); "
            f"it has: {team_names(tickets.teams)}; the bundle: {team_names(teams)}"
        )
    return tickets


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="CSV, JSONL or Parquet")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_column_flags(parser)
    options = parser.parse_args(arguments)

    def command() -> int:
        bundle = load_bundle(options.bundle)
        evaluation = evaluate(bundle, tickets_of(options, bundle.config.teams))
        print(json.dumps(asdict(evaluation), indent=1) if options.json else to_text(evaluation))
        return 0

    return guarded("training.evaluate", command, BundleError, DataError)


if __name__ == "__main__":
    sys.exit(main())
