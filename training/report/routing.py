"""The trade-off between precision and coverage as tables, for the console, the report and the card."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.bundle import BundleConfig
from models.tradeoff import DEFAULT_PRECISIONS, REVIEWED_PER_HOUR, Tradeoff

PRECISIONS = (*DEFAULT_PRECISIONS, 0.8)
EXPLANATION = (
    "Precision: the share of routed tickets that should be right, averaged over draws of the validation "
    "tickets. At least: the lower bound of that share; the bounds of all precisions hold at once with a "
    f"probability of 95 %. Review assumes {REVIEWED_PER_HOUR} tickets per hour; one more hour per day would "
    "review the routed tickets with the lowest confidence."
)
TEAM_EXPLANATION = (
    "Threshold: the confidence from which a ticket is routed to the team. Routed: share of the validation "
    "tickets with this predicted team. At least: lower bound of the share of these that are right (95 %, not "
    "simultaneous over the teams)."
)


@dataclass(frozen=True)
class Table:
    """A table of text cells; `chosen` is the row of the bundle's precision."""

    head: list[str]
    rows: list[list[str]]
    chosen: int | None = None


def precision_table(tradeoff: Tradeoff, wanted: float) -> Table:
    """A row for each common precision, and for the chosen one."""
    head = ["precision", "routed", "at least", "review of 1,000 tickets", "one more hour finds"]
    precisions = sorted({*PRECISIONS, wanted}, reverse=True)
    rows = []
    for precision in precisions:
        choice = tradeoff.choice(precision)
        if choice.score is None:
            rows.append([f"{precision:g}", "cannot be shown", "", "", ""])
            continue
        hours = 1000 * (1 - choice.coverage) / REVIEWED_PER_HOUR
        rows.append(
            [
                f"{precision:g}",
                f"{choice.coverage:.1%}",
                f"{choice.at_least:.1%}",
                f"{hours:.0f} h",
                f"{choice.doubtful * REVIEWED_PER_HOUR:.1f} wrong",
            ]
        )
    return Table(head, rows, precisions.index(wanted))


def team_table(config: BundleConfig) -> Table:
    """A row for each team, most tickets first: its threshold, and the share routed at each precision."""
    tradeoff = config.tradeoff
    assert tradeoff is not None
    wanted = config.thresholds.precision
    shown = [
        precision
        for precision in sorted({*PRECISIONS, wanted}, reverse=True)
        if tradeoff.choice(precision).score is not None
    ]
    own = tradeoff.choice(wanted)
    head = ["team", "tickets", "threshold", "at least", *(f"routed at {precision:g}" for precision in shown)]
    rows = []
    for place in sorted(range(len(config.teams)), key=lambda place: -tradeoff.team_tickets[place]):
        threshold, tickets = config.thresholds.of(place), tradeoff.team_tickets[place]
        routed = own.score is not None and own.team_routed[place] > 0
        rows.append(
            [
                config.teams[place],
                f"{tickets:,}",
                "none" if threshold is None else f"{threshold:.3f}",
                f"{own.team_at_least[place]:.1%}" if routed else "",
                *(_share(tradeoff.choice(precision).team_routed[place], tickets) for precision in shown),
            ]
        )
    return Table(head, rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def to_text(table: Table, most_rows: int | None = None) -> list[str]:
    """Aligned columns for a terminal; the chosen row is marked."""
    rows = table.rows[:most_rows]
    widths = [max(len(row[column]) for row in [table.head, *rows]) for column in range(len(table.head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + ("  <- chosen" if number - 1 == table.chosen else "")
        for number, row in enumerate([table.head, *rows])
    ]
    left_out = len(table.rows) - len(rows)
    return [*lines, f"and {left_out} more in the report"] if left_out else lines


def to_markdown(table: Table) -> list[str]:
    """The lines of a Markdown table; the chosen row is in bold."""

    def line(cells: Sequence[str], bold: bool = False) -> str:
        shown = (in_table(cell) for cell in cells)
        return "| " + " | ".join(f"**{cell}**" if bold and cell else cell for cell in shown) + " |"

    rule = "|" + "---|" * len(table.head)
    rows = [line(row, number == table.chosen) for number, row in enumerate(table.rows)]
    return [line(table.head), rule, *rows]


def in_table(name: str) -> str:
    """A name escaped for a Markdown table: no cell separators, no HTML."""
    return name.replace("|", r"\|").replace("<", "&lt;")
