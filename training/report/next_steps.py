"""What to do next after a training run: at most five steps, each with its reason and a command to copy.

Steps are put in the order of the validation tickets that they may gain; those about measuring come last.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest

MOST_STEPS = 5
FEWEST_CONFUSED = 3  # tickets in each direction before two teams are named
FEW_TICKETS = 50  # training tickets of a team: below, more of them help most
POOR_RECALL = 0.7
LITTLE_ROUTED = 0.5
REPEATED = 0.2  # share of training tickets that repeat an earlier one's template
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Step:
    """`gain`, the share of the validation tickets that the step may put right, orders the steps."""

    reason: str
    command: str
    gain: float = 0.0


def next_steps(report: dict[str, Any], out: str, command: Sequence[str]) -> list[Step]:
    """The steps for a report of `training.report.figures`.

    `out` is the bundle's path as the user writes it, `command` the words of the training command.
    """
    steps = [
        *_label_errors(report, out, command),
        *_confused(report, command),
        *_small_teams(report, command),
        *_baselines(report, out),
        *_precision(report, out),
        *_repetition(report, command),
    ]
    ordered = sorted(steps, key=lambda step: -step.gain)[: MOST_STEPS - 1]
    return [
        *ordered,
        Step("Serve this bundle and try tickets on its page.", f"make serve BUNDLE={shlex.quote(out)}"),
    ]


def _label_errors(report: dict[str, Any], out: str, command: Sequence[str]) -> Iterator[Step]:
    suspects = report["suspected_label_errors"]
    if not suspects["count"]:
        return
    file = f"{out}.label_errors.csv"
    checked = report["data"]["train"]["tickets"] + report["data"]["valid"]["tickets"]
    yield Step(
        f"Correct the {_many(suspects['count'], 'label')} in {file}: about {suspects['expected']:.0f} are "
        f"wrong, {suspects['expected'] / checked:.1%} of all."
        + (
            f" On the validation tickets alone that is {_points(suspects['costs'])}."
            if suspects["costs"]
            else ""
        ),
        shlex.join([*command, *([] if "--corrections" in command else ["--corrections", file])]),
        suspects["costs"] + suspects["expected"] / checked / 10,
    )


def _confused(report: dict[str, Any], command: Sequence[str]) -> Iterator[Step]:
    counts = {(actual, predicted): count for actual, predicted, count in report["confusions"]}
    tickets = report["validation"]["tickets"]
    for (one, other), count in counts.items():
        back = counts.get((other, one), 0)
        if one < other and min(count, back) >= FEWEST_CONFUSED:
            small, large = sorted(
                (one, other), key=lambda team: report["data"]["train"]["teams"].get(team, 0)
            )
            yield Step(
                f"'{one}' and '{other}' are confused in both directions ({count} and {back} of {tickets:,} "
                "validation tickets). If the same people answer both, merge them; else describe to who "
                "solves tickets what belongs where.",
                shlex.join([*command, "--merge-team", f"{small}={large}"]),
                (count + back) / tickets,
            )


def _small_teams(report: dict[str, Any], command: Sequence[str]) -> Iterator[Step]:
    tickets, trained = report["validation"]["tickets"], report["data"]["train"]["teams"]
    weak = {
        team: one["tickets"] * (1 - one["recall"]) / tickets
        for team, one in report["validation"]["per_team"].items()
        if trained.get(team, 0) < FEW_TICKETS and one["tickets"] and one["recall"] < POOR_RECALL
    }
    if not weak:
        return
    worst = max(weak, key=lambda team: weak[team])
    others = f", and so have {len(weak) - 1} more teams" if len(weak) > 1 else ""
    yield Step(
        f"'{worst}' has {_many(trained.get(worst, 0), 'training ticket')}, too few{others}: collect "
        f"{FEW_TICKETS} of each, or leave such teams to people.",
        shlex.join([*command, "--min-tickets", str(FEW_TICKETS)]),
        sum(weak.values()),
    )


def _baselines(report: dict[str, Any], out: str) -> Iterator[Step]:
    ours, *others = report["routers"]
    best = max(others, key=lambda one: one["correct"], default=ours)
    more = best["correct"] - ours["correct"]
    if more <= 0:
        return
    probability = binomtest(best["only_right"][0], sum(best["only_right"])).pvalue
    verdict = "not significant" if probability > SIGNIFICANT else "more than chance"
    yield Step(
        f"{best['router']} is right on {_many(more, 'validation ticket')} more: {verdict} "
        f"(p = {probability:.2f}). Measure both on tickets that neither has seen.",
        f"python -m training.evaluate --bundle {shlex.quote(out)} --data NEWER.csv",
        more / report["validation"]["tickets"] if probability <= SIGNIFICANT else 0.0,
    )


def _precision(report: dict[str, Any], out: str) -> Iterator[Step]:
    coverage, wanted = report["validation"]["coverage"], report["thresholds"]["precision"]
    if coverage >= LITTLE_ROUTED:
        return
    shown = [one for one in report["tradeoff"]["choices"] if one["score"] is not None]
    lower = [one for one in shown if one["precision"] < wanted and one["coverage"] > coverage + 0.1]
    if not lower:
        return
    choice = next((one for one in reversed(lower) if one["coverage"] >= LITTLE_ROUTED), lower[0])
    yield Step(
        f"With a precision of {wanted:g}, {coverage:.0%} of the tickets are routed; with "
        f"{choice['precision']:g} it is {choice['coverage']:.0%}. No new training is needed.",
        f"LARKFIELD_PRECISION={choice['precision']:g} make serve BUNDLE={shlex.quote(out)}",
        (choice["coverage"] - coverage) / 10,
    )


def _repetition(report: dict[str, Any], command: Sequence[str]) -> Iterator[Step]:
    train = report["data"]["train"]["repetition"]
    if train["same_template"] < REPEATED * train["tickets"] or "--time-column" in command:
        return
    yield Step(
        f"{train['same_template'] / train['tickets']:.0%} of the training tickets repeat an earlier one with "
        "other numbers. If the file says when a ticket came, validate on the newest ones, as serving will "
        "meet them.",
        shlex.join([*command, "--time-column", "COLUMN"]),
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _points(share: float) -> str:
    return f"{100 * share:.1f} points of accuracy"
