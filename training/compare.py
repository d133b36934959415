"""Compare two bundles on the same labelled tickets.

    python -m training.compare OLD NEW --data valid.csv [--json]

McNemar's exact test uses the tickets on which exactly one bundle is right. Its null hypothesis is that each
bundle is right on half of those.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from models.bundle import Bundle, BundleError, load_bundle
from training.assess.evaluation import Answers, answer, assess
from training.command_line import guarded
from training.data.columns import add_column_flags, add_held_out_flags, tickets_of
from training.data.dataset import DataError, Tickets

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """The differences between two bundles on the same tickets."""

    old: dict[str, Any]  # version, accuracy, coverage, routed_precision
    new: dict[str, Any]
    tickets: int
    only_old_right: int
    only_new_right: int
    both_wrong: int
    p_value: float  # of McNemar's exact test, two-sided
    agreement: float  # share of tickets that go to the same team
    newly_routed: int  # sent to review by the old bundle, routed by the new one
    newly_reviewed: int
    per_team: dict[str, dict[str, float]]  # tickets, old and new recall, gained and lost tickets
    moves: list[list[Any]]  # [old team, new team, tickets], most frequent first

    @property
    def verdict(self) -> str:
        if self.p_value >= SIGNIFICANT:
            return "no significant difference"
        return (
            "the new bundle is better"
            if self.only_new_right > self.only_old_right
            else "the new bundle is worse"
        )


def mcnemar(only_old: int, only_new: int) -> float:
    """Two-sided exact p-value for the tickets that only one of two routers gets right (McNemar, 1947)."""
    both = only_old + only_new
    return float(binomtest(only_new, both, 0.5).pvalue) if both else 1.0


def compare(old: Bundle, new: Bundle, tickets: Tickets) -> Comparison:
    """Compare the answers of both bundles to every ticket."""
    actual = np.array(tickets.teams)
    answers = [answer(bundle, tickets.texts) for bundle in (old, new)]
    teams = [np.array(one.teams) for one in answers]
    right = [team == actual for team in teams]
    routed = [one.routed for one in answers]
    moved = Counter((str(a), str(b)) for a, b in zip(*teams, strict=True) if a != b)
    only_old, only_new = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return Comparison(
        old=_figures(old, answers[0], tickets),
        new=_figures(new, answers[1], tickets),
        tickets=len(tickets),
        only_old_right=only_old,
        only_new_right=only_new,
        both_wrong=int((~right[0] & ~right[1]).sum()),
        p_value=mcnemar(only_old, only_new),
        agreement=float((teams[0] == teams[1]).mean()),
        newly_routed=int((~routed[0] & routed[1]).sum()),
        newly_reviewed=int((routed[0] & ~routed[1]).sum()),
        per_team={team: _change(actual == team, *right) for team in sorted(set(tickets.teams))},
        moves=[[a, b, count] for (a, b), count in moved.most_common()],
    )


def _figures(bundle: Bundle, answers: Answers, tickets: Tickets) -> dict[str, Any]:
    figures = asdict(assess(answers, tickets, bundle.config.teams))
    shown = ("accuracy", "macro_f1", "calibration_error", "coverage", "routed_precision")
    names = {"name": bundle.config.name, "version": bundle.config.version}
    return {**names, **{name: figures[name] for name in shown}}


def _change(of_team: np.ndarray, old_right: np.ndarray, new_right: np.ndarray) -> dict[str, float]:
    return {
        "tickets": int(of_team.sum()),
        "old_recall": float(old_right[of_team].mean()),
        "new_recall": float(new_right[of_team].mean()),
        "gained": int((of_team & new_right & ~old_right).sum()),
        "lost": int((of_team & old_right & ~new_right).sum()),
    }


def to_text(result: Comparison) -> str:
    """The comparison as a person reads it in a terminal."""

    def share(value: float | None) -> str:
        return "     -" if value is None else f"{value:.4f}"

    lines = [f"{result.tickets:,} tickets", "", f"{'':20} {'old':>24} {'new':>24}"]
    for name in result.old:
        old, new = (
            one[name] if isinstance(one[name], str) else share(one[name]) for one in (result.old, result.new)
        )
        lines.append(f"{name:20} {old:>24} {new:>24}")
    lines += [
        "",
        f"right: only the old bundle {result.only_old_right:,}, only the new one {result.only_new_right:,}, "
        f"neither {result.both_wrong:,}",
        f"McNemar's exact test: p = {result.p_value:.4g}: {result.verdict}",
        f"same team for {result.agreement:.1%}; {result.newly_routed:,} tickets newly routed, "
        f"{result.newly_reviewed:,} newly sent to review",
        "",
        f"{'team':30} {'tickets':>7} {'old':>7} {'new':>7} {'gained':>7} {'lost':>5}",
    ]
    for team, one in result.per_team.items():
        lines.append(
            f"{team:30} {one['tickets']:7,} {one['old_recall']:7.4f} {one['new_recall']:7.4f} "
            f"{one['gained']:7,} {one['lost']:5,}"
        )
    if result.moves:
        moves = ", ".join(f"{old} to {new} {count}" for old, new, count in result.moves[:5])
        lines += ["", f"tickets that move: {moves}"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.compare", description="Compare two bundles on the same labelled tickets."
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="the bundle that serves now")
    parser.add_argument("new", type=Path, metavar="NEW", help="the bundle that might replace it")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="CSV, JSONL or Parquet")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_column_flags(parser)
    add_held_out_flags(parser)
    options = parser.parse_args(arguments)

    def command() -> int:
        old, new = load_bundle(options.old), load_bundle(options.new)
        result = compare(old, new, tickets_of(options, {*old.config.teams, *new.config.teams}))
        shown = {**asdict(result), "verdict": result.verdict}
        print(json.dumps(shown, indent=1) if options.json else to_text(result))
        return 0

    return guarded("training.compare", command, BundleError, DataError)


if __name__ == "__main__":
    sys.exit(main())
