"""The model card: what a bundle was trained on, how good it is and where it fails (Mitchell et al., 2019)."""

from models.bundle import BundleConfig
from training.data import Dataset
from training.evaluate import Evaluation


def model_card(config: BundleConfig, dataset: Dataset, evaluation: Evaluation) -> str:
    """Markdown for a reader who has to decide whether to use the bundle."""
    faults = [f"- {fault}" for fault in dataset.faults] or ["- none found"]
    parts = [
        f"# {config.name}, version {config.version}",
        "",
        "Reads the first message of a support ticket and names the team that should answer it: "
        + ", ".join(config.teams[:20])
        + (f" and {len(config.teams) - 20} more" if len(config.teams) > 20 else "")
        + ". A two-block transformer encoder; it was trained on the tickets below and knows nothing else.",
        "",
        "## Trained on",
        f"- {len(dataset.train):,} tickets of {dataset.train.file}, sha256 of ids, texts and teams "
        f"`{config.fingerprint[:16]}`",
        f"- {len(dataset.valid):,} tickets of {dataset.valid.file} to validate, calibrate and choose the "
        "threshold",
        f"- recipe `{config.recipe['name']}`, seed {config.recipe['seed']}",
        "",
        "Faults of the data:",
        *faults,
        "",
        "## How good it is",
        f"- {evaluation.correct:,} of {evaluation.tickets:,} validation tickets right "
        f"({evaluation.accuracy:.2%}), macro-F1 {evaluation.macro_f1:.4f}",
        f"- calibration error {evaluation.calibration_error:.4f} (15 bins, "
        f"temperature {config.temperature:.3f})",
        f"- routed without a person: {evaluation.coverage:.1%} of them, those whose confidence is at least "
        f"{config.thresholds.confidence:.4f}; at least {config.thresholds.precision:.1%} of these are right "
        "(lower bound at 95 %)",
        "",
        "The temperature and the threshold were chosen on the same validation tickets that these figures "
        "come from: expect slightly less on new ones.",
        "",
        "| team | tickets | precision | recall |",
        "|---|---|---|---|",
        *(
            f"| {team} | {score.tickets:,} | {score.precision:.3f} | {score.recall:.3f} |"
            for team, score in evaluation.per_team.items()
        ),
        "",
        "## Where it fails",
        *_weak_spots(evaluation),
        "- Tickets about anything that no team above answers, and languages that the training data lacks.",
        f"- Text after the first {config.max_tokens} tokens is not read.",
        "- Attention weights show where a token took its information from, not why the model chose a team.",
    ]
    return "\n".join(parts) + "\n"


def _weak_spots(evaluation: Evaluation) -> list[str]:
    """The three weakest teams and styles, worst first."""
    weak = [
        f"- team {team}: {1 - score.recall:.1%} of its {score.tickets} validation tickets go elsewhere"
        for team, score in sorted(evaluation.per_team.items(), key=lambda item: item[1].recall)[:3]
        if score.tickets and score.recall < 1
    ]
    weak += [
        f"- style {style}: {figures['accuracy']:.1%} right of {figures['tickets']:.0f}"
        for style, figures in sorted(evaluation.per_style.items(), key=lambda item: item[1]["accuracy"])[:3]
        if figures["accuracy"] < 1
    ]
    return weak
