"""The model card: what a bundle was trained on, how good it is and where it fails (Mitchell et al., 2019)."""

import numpy as np

from models.bundle import BundleConfig
from training.assess.checks import Checks
from training.assess.evaluation import Evaluation
from training.assess.thresholds import precision_bound
from training.data.dataset import Dataset
from training.report.routing import (
    EXPLANATION,
    TEAM_EXPLANATION,
    in_table,
    precision_table,
    team_table,
    to_markdown,
)


def model_card(config: BundleConfig, dataset: Dataset, evaluation: Evaluation, checks: Checks) -> str:
    """The model card in Markdown."""
    at_least = float(precision_bound(np.array(evaluation.correct), np.array(evaluation.tickets)))
    warning = config.tradeoff.caution(config.thresholds.precision) if config.tradeoff else ""
    faults = [f"- {fault}" for fault in dataset.faults] or ["- none found"]
    parts = [
        f"# {config.name}, version {config.version}",
        "",
        "Predicts from the first message of a support ticket which team should answer it: "
        + ", ".join(config.teams[:20])
        + (f" and {len(config.teams) - 20} more" if len(config.teams) > 20 else "")
        + ". The model is a transformer encoder with two blocks.",
        "",
        "## Trained on",
        f"- {len(dataset.train):,} tickets of {dataset.train.file}, sha256 of ids, texts and teams "
        f"`{config.fingerprint[:16]}`",
        f"- {len(dataset.valid):,} tickets of {dataset.valid.file} to validate and calibrate with",
        f"- recipe `{config.recipe['name']}`, seed {config.recipe['seed']}",
        "",
        "Faults of the data:",
        *faults,
        "",
        "## How good it is",
        f"- {evaluation.correct:,} of {evaluation.tickets:,} validation tickets right "
        f"({evaluation.accuracy:.2%}; at 95 % certainty at least {at_least:.1%} of all such tickets), "
        f"macro-F1 {evaluation.macro_f1:.4f}",
        f"- calibration error {evaluation.calibration_error:.4f} (cross-fitted, 15 groups, "
        f"temperature {config.temperature:.3f}, exponent {config.exponent:.3f})",
        f"- routed without a person: {evaluation.coverage:.1%} of them, for a precision of "
        f"{config.thresholds.precision:g}; at least {config.thresholds.at_least or 0:.1%} of these are right "
        "(lower bound at 95 %)",
        *([f"- {warning}"] if warning else []),
        "",
        "Temperature and thresholds were chosen on the same validation tickets as these figures: expect "
        "slightly lower figures on new tickets.",
        "",
        *_routing(config),
        "",
        "| team | tickets | precision | recall |",
        "|---|---|---|---|",
        *(
            f"| {in_table(team)} | {score.tickets:,} | {score.precision:.3f} | {score.recall:.3f} |"
            for team, score in evaluation.per_team.items()
        ),
        "",
        *_baselines(evaluation, checks),
        "## Where it fails",
        *_weak_spots(evaluation),
        "- Tickets that no team above answers, and languages that are not in the training data.",
        f"- Text after the first {config.max_tokens} tokens is not read.",
        "- Attention weights show from where a token takes information, not why the model chose a team.",
    ]
    return "\n".join(parts) + "\n"


def _routing(config: BundleConfig) -> list[str]:
    """The trade-off of precision and coverage, for all and for each team."""
    if config.tradeoff is None:
        return []
    return [
        "### Precision and coverage",
        EXPLANATION,
        "",
        *to_markdown(precision_table(config.tradeoff, config.thresholds.precision)),
        "",
        TEAM_EXPLANATION,
        "",
        *to_markdown(team_table(config)),
        "",
        "### Each team",
    ]


def _baselines(evaluation: Evaluation, checks: Checks) -> list[str]:
    """A table of the router and the baselines of the same run."""
    if not checks.baselines:
        return []
    measured = {one.router: one for one in checks.robustness}
    rows = [("transformer", evaluation.correct, evaluation.macro_f1)]
    rows += [(one.name, one.correct, one.macro_f1) for one in checks.baselines]
    lines = [
        "Compared with word counts on the same tickets. Typing errors: in every fifth word. Long: with the "
        "request at the start, in the middle and at the end of 2,000 words of other text.",
        "",
        f"| router | right of {evaluation.tickets:,} | macro-F1 | typing errors | long |",
        "|---|---|---|---|---|",
    ]
    for name, correct, macro_f1 in rows:
        long = ", ".join(f"{share:.2f}" for share in measured[name].long.values())
        lines.append(f"| {name} | {correct:,} | {macro_f1:.4f} | {measured[name].typos:.4f} | {long} |")
    lines.append("")
    count = f"{len(checks.suspects):,}" if checks.suspects else "No"
    verb = "tickets are" if len(checks.suspects) > 1 else "ticket is"
    return [*lines, f"{count} training {verb} probably labelled with the wrong team.", ""]


def _weak_spots(evaluation: Evaluation) -> list[str]:
    """The three weakest teams and styles, worst first."""
    weak = [
        f"- team {team}: {1 - score.recall:.1%} of its {score.tickets} validation tickets go to another team"
        for team, score in sorted(evaluation.per_team.items(), key=lambda item: item[1].recall)[:3]
        if score.tickets and score.recall < 1
    ]
    weak += [
        f"- style {style}: {figures['accuracy']:.1%} right of {figures['tickets']:.0f}"
        for style, figures in sorted(evaluation.per_style.items(), key=lambda item: item[1]["accuracy"])[:3]
        if figures["accuracy"] < 1
    ]
    return weak
