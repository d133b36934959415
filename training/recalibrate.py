"""Fit calibration and thresholds of a bundle anew on feedback, without training the network.

    python -m service.feedback export --out feedback.csv
    python -m training.recalibrate --bundle models/larkfield --feedback feedback.csv

Network, vocabulary and teams stay the same, and so does the predicted team of every ticket. What changes is
the confidence, and which tickets are routed. The result is a new bundle; the old one is not changed.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from models.bundle import (
    CARD,
    DICTIONARIES,
    MODEL,
    SCHEMA_VERSION,
    TOKENIZER,
    Bundle,
    BundleError,
    load_bundle,
    write_bundle,
)
from models.tradeoff import HIGHEST_PRECISION, LOWEST_PRECISION
from training.assess.evaluation import Evaluation, answer, assess
from training.command_line import guarded, within
from training.data.columns import add_column_flags, tickets_of
from training.data.dataset import DataError, Tickets
from training.data.templates import first_of_each
from training.export.bundle_builder import team_numbers, validate, with_metrics, with_thresholds
from training.report.routing import precision_table, to_text

# With fewer tickets the accuracy itself has a standard error of more than two points (at 0.9).
FEWEST_TICKETS = 200
TITLE = "## Recalibrated"


@dataclass(frozen=True)
class Recalibrated:
    """The new bundle, and the figures of both on the feedback."""

    bundle: Bundle
    before: Evaluation
    after: Evaluation  # the calibration error is cross-fitted


def recalibrate(bundle: Bundle, feedback: Tickets, precision: float | None = None) -> Recalibrated:
    """Fit calibration, trade-off and thresholds on the tickets of `feedback`, each text once.

    Tickets of teams that the bundle does not have count as wrong. `precision` is the share of routed tickets
    that should be right; None: as in the bundle. DataError if the tickets are too few to show it.
    """
    tickets = feedback.select(first_of_each(feedback.text_groups).tolist())
    if len(tickets) < FEWEST_TICKETS:
        raise DataError(
            f"{feedback.file}: {len(tickets):,} tickets with different texts are too few to fit thresholds "
            f"on; at least {FEWEST_TICKETS} are needed"
        )
    config = bundle.config
    answers = answer(bundle, tickets.texts)
    in_scope = np.array([not set(one.reasons) - {"low_confidence"} for one in answers.tickets])
    targets = team_numbers(tickets.teams, config.teams)
    wanted = config.thresholds.precision if precision is None else precision
    fitted = with_thresholds(bundle, answers.logits, targets, in_scope, wanted)
    tradeoff = fitted.config.tradeoff
    assert tradeoff is not None
    if fitted.config.thresholds.confidence is None:
        right = int((answers.logits.argmax(axis=1) == targets).sum())
        raise DataError(
            f"{feedback.file}: {len(tickets):,} tickets, {right:,} of them predicted right, cannot show a "
            f"precision of {wanted:g}; they can: {tradeoff.alternatives(wanted)}. Report every solved "
            "ticket, not only corrections, collect more, or choose a lower one with --precision"
        )
    fitted = fitted.with_config(schema_version=SCHEMA_VERSION, version=_version(fitted))
    new_answers, after = validate(fitted, tickets)
    return Recalibrated(
        with_metrics(fitted, new_answers, after), assess(answers, tickets, config.teams), after
    )


def _version(bundle: Bundle) -> str:
    """The bundle's version with a hash of what was fitted, in place of an earlier such hash."""
    config = bundle.config
    assert config.tradeoff is not None
    fitted = (
        f"{config.temperature} {config.exponent} {config.tradeoff.model_dump_json()} "
        f"{config.thresholds.model_dump_json()}"
    )
    base = re.sub(r"-r[0-9a-f]{8}$", "", config.version)
    return f"{base[:190]}-r{hashlib.sha256(fitted.encode()).hexdigest()[:8]}"


def write(made: Recalibrated, old: Bundle, out: Path, file: str) -> None:
    """Write the new bundle; BundleError if `out` exists.

    The training report is left out, because its thresholds no longer hold.
    """
    require_new(out)
    card = (old.folder / CARD).read_text(encoding="utf-8")
    dictionaries = old.folder / DICTIONARIES
    write_bundle(
        out,
        model=old.folder / MODEL,
        tokenizer_json=(old.folder / TOKENIZER).read_text(encoding="utf-8"),
        config=made.bundle.config,
        model_card=with_section(card, made, old.config.version, file),
        reports={DICTIONARIES: dictionaries.read_text(encoding="utf-8")} if dictionaries.is_file() else None,
    )


def require_new(out: Path) -> None:
    """BundleError if `out` exists."""
    if out.exists() or out.is_symlink():
        raise BundleError(out, "exists and is not overwritten; name another folder with --out")


def with_section(card: str, made: Recalibrated, earlier: str, file: str) -> str:
    """The model card with a section about the feedback as its first one, in place of an earlier such one."""
    config, before, after = made.bundle.config, made.before, made.after
    card = re.sub(rf"^{TITLE}\n.*?(?=^## |\Z)", "", card, flags=re.MULTILINE | re.DOTALL)
    head, mark, sections = card.partition("\n## ")
    _, _, introduction = head.partition("\n")
    section = [
        f"# {config.name}, version {config.version}",
        introduction.rstrip(),
        "",
        TITLE,
        f"On {datetime.now(UTC):%Y-%m-%d}, from version {earlier}: calibration, thresholds and reference for "
        f"drift were fitted on {after.tickets:,} tickets of {file}. The figures further down are of the "
        "training run; calibration and thresholds among them no longer hold.",
        "",
        "| on the feedback | before | after |",
        "|---|---|---|",
        *(f"| {name} | {one} | {other} |" for name, one, other in rows(before, after)),
        "",
        "Thresholds were chosen on the same tickets: expect slightly lower figures on new ones.",
        "",
    ]
    return "\n".join(section) + mark + sections


def rows(before: Evaluation, after: Evaluation) -> list[tuple[str, str, str]]:
    """The figures that a recalibration changes, as (name, before, after)."""

    def right(evaluation: Evaluation) -> str:
        precision = evaluation.routed_precision
        return "none routed" if precision is None else f"{precision:.1%}"

    return [
        ("calibration error", f"{before.calibration_error:.3f}", f"{after.calibration_error:.3f}"),
        ("routed", f"{before.coverage:.1%}", f"{after.coverage:.1%}"),
        ("right of these", right(before), right(after)),
    ]


def summary(made: Recalibrated) -> str:
    """What was fitted on how many tickets, and the new trade-off."""
    config, before, after = made.bundle.config, made.before, made.after
    assert config.tradeoff is not None
    lines = [f"{after.tickets:,} tickets with different texts, {after.correct:,} of them predicted right"]
    lines += [
        f"{counts['tickets']:,} tickets were solved by {team!r}, which this bundle does not know: counted as "
        "wrong; train again to add the team"
        for team, counts in after.unknown_teams.items()
    ]
    lines += ["", f"{'':20} {'before':>12} {'after':>12}"]
    lines += [f"{name:20} {one:>12} {other:>12}" for name, one, other in rows(before, after)]
    lines += ["", *to_text(precision_table(config.tradeoff, config.thresholds.precision))]
    if warning := config.tradeoff.caution(config.thresholds.precision):
        lines.append(f"warning: {warning}")
    return "\n".join(lines)


def unused_folder(bundle: Path) -> Path:
    """The first free of BUNDLE-recalibrated, BUNDLE-recalibrated-2, …"""
    name = f"{bundle.name}-recalibrated"
    free, number = bundle.with_name(name), 1
    while free.exists() or free.is_symlink():
        number += 1
        free = bundle.with_name(f"{name}-{number}")
    return free


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.recalibrate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--feedback",
        dest="data",
        type=Path,
        required=True,
        metavar="FILE",
        help="solved tickets that the bundle was not trained on, as `service.feedback export` writes them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the new bundle, which must not exist yet (default: BUNDLE-recalibrated)",
    )
    parser.add_argument(
        "--precision",
        type=within(LOWEST_PRECISION, HIGHEST_PRECISION),
        metavar="SHARE",
        help="share of routed tickets that should be right (default: as in the bundle)",
    )
    add_column_flags(parser)
    parser.set_defaults(held_out=None, time_column=None, corrections=None)
    options = parser.parse_args(arguments)
    return guarded("training.recalibrate", lambda: command(options), BundleError, DataError)


def command(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    bundle = load_bundle(options.bundle)
    out = options.out or unused_folder(options.bundle.resolve())
    require_new(out)  # before the work, not only after it
    feedback = tickets_of(options, bundle.config.teams)
    made = recalibrate(bundle, feedback, options.precision)
    write(made, bundle, out, feedback.file)
    print(summary(made))
    print(f"bundle: {out}   switch to it: python -m service.reload --bundle {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
