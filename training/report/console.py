"""The figures of a training run as text for the console."""

from models.bundle import Bundle, BundleConfig
from training.assess.checks import Checks
from training.assess.evaluation import Evaluation
from training.assess.label_errors import expected_errors
from training.assess.reading import described
from training.data.dataset import Dataset
from training.report.routing import precision_table, team_table, to_text

SHOWN_TEAMS = 20


def summary(bundle: Bundle, dataset: Dataset, evaluation: Evaluation, checks: Checks, table: str) -> str:
    """The figures that are printed at the end of a run; `table` is the file name of the suspects' table."""
    lines = [
        f"{'':30} {'right':>7} {'accuracy':>9} {'macro-F1':>9}",
        f"{'transformer':30} {evaluation.correct:7,} {evaluation.accuracy:9.4f} {evaluation.macro_f1:9.4f}",
    ]
    for baseline in checks.baselines:
        shown = f"{baseline.correct:7,} {baseline.accuracy:9.4f} {baseline.macro_f1:9.4f}"
        lines.append(f"{baseline.name:30} {shown}")
    for router in checks.robustness:
        long = ", ".join(f"{place} {share:.2f}" for place, share in router.long.items())
        lines.append(f"{router.router}: {router.typos:.4f} with typing errors, long tickets: request {long}")
    repeated = dataset.train.repetition
    if repeated.same_template:
        lines.append(
            f"{repeated.same_template / repeated.tickets:.1%} of the training tickets repeat an earlier one "
            f"or its template; each template counted once: accuracy {evaluation.template_accuracy:.4f}"
        )
    precision = evaluation.routed_precision
    lines.append(
        f"calibration error {evaluation.calibration_error:.4f}; {evaluation.coverage:.1%} routed"
        + (f", {precision:.2%} of those right" if precision is not None else "")
    )
    lines.append(described(bundle.config))
    lines += _routing(bundle.config)
    if checks.suspects:
        lines.append(
            f"{len(checks.suspects):,} tickets are probably labelled wrongly "
            f"({expected_errors(checks.suspects):.0f} expected): "
            f"{table}" + (f" ({checks.doubt})" if checks.doubt else "")
        )
    elif checks.baselines:
        lines.append("no suspected label errors in the training tickets")
    return "\n".join(lines)


def _routing(config: BundleConfig) -> list[str]:
    """Tables of what the chosen and other precisions route."""
    tradeoff, wanted = config.tradeoff, config.thresholds.precision
    if tradeoff is None:
        return []
    warning = tradeoff.caution(wanted)
    return [
        "",
        *to_text(precision_table(tradeoff, wanted)),
        "",
        *to_text(team_table(config), SHOWN_TEAMS),
        "",
        *([f"{warning}. Choose another with LARKFIELD_PRECISION when serving."] if warning else []),
    ]
