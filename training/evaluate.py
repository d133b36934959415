"""Evaluate a bundle on labelled tickets.

python -m training.evaluate --bundle models/larkfield --data valid.csv [--json]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from models.bundle import BundleError, load_bundle, with_precision
from models.tradeoff import HIGHEST_PRECISION, LOWEST_PRECISION
from training.assess.evaluation import Evaluation, evaluate
from training.command_line import guarded, within
from training.data.columns import add_column_flags, add_held_out_flags, tickets_of
from training.data.dataset import DataError


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
    for kind, groups in (("language", evaluation.per_language), ("length", evaluation.per_length)):
        lines += ["", f"{kind:30} {'tickets':>7} {'accuracy':>9} {'routed':>7} {'right':>7}"]
        for name, group in groups.items():
            right = "" if group.routed_precision is None else f" {group.routed_precision:7.4f}"
            lines.append(f"{name:30} {group.tickets:7,} {group.accuracy:9.4f} {group.coverage:7.4f}{right}")
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="CSV, JSONL or Parquet")
    parser.add_argument(
        "--precision",
        type=within(LOWEST_PRECISION, HIGHEST_PRECISION),
        metavar="SHARE",
        help="route as LARKFIELD_PRECISION does when serving (default: as the bundle was written)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_column_flags(parser)
    add_held_out_flags(parser)
    options = parser.parse_args(arguments)

    def command() -> int:
        bundle = with_precision(load_bundle(options.bundle), options.precision)
        evaluation = evaluate(bundle, tickets_of(options, bundle.config.teams))
        print(json.dumps(asdict(evaluation), indent=1) if options.json else to_text(evaluation))
        return 0

    return guarded("training.evaluate", command, BundleError, DataError)


if __name__ == "__main__":
    sys.exit(main())
