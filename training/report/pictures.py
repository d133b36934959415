"""The report's pictures, drawn from its figures, each with a text description."""

import base64
import io
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, BLUE, ORANGE, GREY = "#1f2933", "#2563a8", "#c2571a", "#9aa5b1"
MOST_TEAMS = 25
LONGEST_LABEL = 28
LETTER = 0.075  # inches
WIDE = 5.0  # inches
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same figures give the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "text.color": INK,
}


@dataclass(frozen=True)
class Picture:
    """An SVG as a data URI, and its description."""

    uri: str
    alt: str
    wide: bool = False  # scrolls on a narrow screen instead of shrinking


def learning_curves(epochs: list[dict[str, Any]]) -> Picture:
    figure, (left, right) = _figure(7.5, 2.6, 2)
    numbers = [epoch["number"] for epoch in epochs]
    for axes, kind in ((left, "loss"), (right, "accuracy")):
        axes.plot(numbers, [epoch[kind] for epoch in epochs], ".-", color=GREY, label="training")
        axes.plot(numbers, [epoch[f"valid_{kind}"] for epoch in epochs], ".-", color=BLUE, label="validation")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("epoch")
        axes.set_title(kind, loc="left")
        axes.legend(frameon=False)
    first, last = epochs[0], epochs[-1]
    return _picture(
        figure,
        f"Learning curves over {len(epochs)} epochs: validation accuracy from {first['valid_accuracy']:.3f} "
        f"to {last['valid_accuracy']:.3f}, training loss from {first['loss']:.3f} to {last['loss']:.3f}.",
    )


def confusion(teams: list[str], mistakes: list[list[Any]], counts: dict[str, int]) -> Picture:
    """Confusions of the teams with most mistakes; `mistakes` are [team, predicted team, tickets]."""
    involved: dict[str, int] = dict.fromkeys(teams, 0)
    for actual, predicted, number in mistakes:
        for team in (actual, predicted):
            if team in involved:
                involved[team] += number
    shown = sorted(sorted(teams, key=lambda team: -involved[team])[:MOST_TEAMS])
    if len(teams) > MOST_TEAMS and any(involved.values()):
        shown = [team for team in shown if involved[team]]
    place = {team: index for index, team in enumerate(shown)}
    matrix = np.zeros((len(shown), len(shown)), dtype=int)
    for actual, predicted, number in mistakes:
        if actual in place and predicted in place:
            matrix[place[actual], place[predicted]] = number
    for team, at in place.items():
        wrong = sum(number for actual, _, number in mistakes if actual == team)
        matrix[at, at] = counts.get(team, 0) - wrong
    size = 1.6 + 0.33 * len(shown)
    beside = LETTER * max(len(_label(team)) for team in shown)
    figure, (axes,) = _figure(size + 1 + beside, size + beside, 1)
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(matrix):
        colour = "white" if shares[row, column] > 0.35 else INK
        axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=7)
    axes.set_xticks(range(len(shown)), map(_label, shown), rotation=90)
    axes.set_yticks(range(len(shown)), map(_label, shown))
    axes.set_xlabel("predicted")
    axes.set_ylabel("team that solved it")
    top = sorted(mistakes, key=lambda entry: -entry[2])[:3]
    worst = "; ".join(f"{number} of {actual} sent to {predicted}" for actual, predicted, number in top)
    which = "all teams" if len(shown) == len(teams) else f"the {len(shown)} teams with most mistakes"
    return _picture(figure, f"Confusion matrix of {which}. Most frequent mistakes: {worst or 'none'}.")


def reliability(bins: list[dict[str, float]], error: float) -> Picture:
    figure, (axes,) = _figure(3.6, 3.4, 1)
    tickets = max(bin["tickets"] for bin in bins)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    for bin in bins:
        width = bin["high"] - bin["low"]
        axes.bar(bin["low"], bin["accuracy"], width, align="edge", color=BLUE, alpha=0.35, edgecolor="white")
    axes.scatter(
        [bin["confidence"] for bin in bins],
        [bin["accuracy"] for bin in bins],
        [8 + 90 * bin["tickets"] / tickets for bin in bins],
        color=BLUE,
        zorder=3,
    )
    axes.set(xlim=(0, 1.02), ylim=(0, 1.05), xlabel="confidence", ylabel="share right")
    return _picture(
        figure,
        f"Reliability diagram: share of right answers against confidence in {len(bins)} bins; the dot's size "
        f"is the number of tickets, the dotted line is perfect calibration. Calibration error {error:.4f}.",
    )


def coverage(curve: list[dict[str, float]], routed: float, precision: float | None) -> Picture:
    figure, (axes,) = _figure(3.9, 3.4, 1)
    axes.plot([p["coverage"] for p in curve], [p["precision"] for p in curve], color=BLUE)
    lowest = min(point["precision"] for point in curve)
    axes.set(xlim=(0, 1.01), ylim=(min(0.95, lowest) - 0.005, 1.003), xlabel="routed without a person")
    axes.set_ylabel("of those, right")
    if precision is not None:
        axes.scatter([routed], [precision], color=ORANGE, zorder=3)
        side = ("right", -6) if routed > 0.5 else ("left", 6)
        axes.annotate("chosen", (routed, precision), (side[1], -14), textcoords="offset points", ha=side[0])
    shown = (
        "none is routed" if precision is None else f"{routed:.1%} are routed, {precision:.2%} of them right"
    )
    return _picture(
        figure,
        f"Precision of routed tickets against the share that is routed. With the chosen thresholds, "
        f"{shown}; routing everything, {curve[-1]['precision']:.2%} are right.",
    )


def lengths(train: dict[str, Any], valid: dict[str, Any]) -> Picture:
    figure, (axes,) = _figure(4.6, 2.4, 1)
    edges = train["length_edges"]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    for part, colour, name in ((train, GREY, "training"), (valid, BLUE, "validation")):
        shares = np.array(part["length_counts"]) / max(1, sum(part["length_counts"]))
        axes.step(middles, shares, where="mid", color=colour, label=name)
    axes.set(xlabel="words of a ticket (the last bin holds all longer ones)", ylabel="share of tickets")
    axes.legend(frameon=False)
    words = train["words"]
    return _picture(
        figure,
        f"Length of the tickets: training median {words['median']:.0f} words, 95 % below "
        f"{words['percentile_95']:.0f}, longest {words['longest']:.0f}.",
    )


def routers(rows: list[dict[str, Any]]) -> Picture:
    """`rows`: {"router", "clean", "typos", "start", "middle", "end"} shares of right answers."""
    kinds = ("clean", "typos", "start", "middle", "end")
    names = (
        "as written",
        "typing errors",
        "long, request\nfirst",
        "long, request\nin the middle",
        "long, request\nlast",
    )
    figure, (axes,) = _figure(7.5, 2.7, 1)
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        colour = (BLUE, GREY, ORANGE)[index % 3]
        places = np.arange(len(kinds)) + (index - (len(rows) - 1) / 2) * width
        axes.bar(places, [row[kind] for kind in kinds], width * 0.92, color=colour, label=row["router"])
    axes.set_xticks(range(len(kinds)), names)
    axes.set(ylim=(0, 1.02), ylabel="share right")
    axes.legend(frameon=False, ncols=len(rows), loc="lower center", bbox_to_anchor=(0.5, 1))
    told = "; ".join(
        f"{row['router']}: {row['clean']:.3f} as written, {row['typos']:.3f} with typing errors, "
        f"{row['end']:.3f} with the request at the end of a long ticket"
        for row in rows
    )
    return _picture(figure, f"Share of right answers of each router. {told}.")


def dots(values: dict[str, float], title: str) -> Picture:
    """A dot plot of shares: the MOST_TEAMS lowest, lowest first."""
    worst = sorted(values.items(), key=lambda item: item[1])[:MOST_TEAMS]
    figure, (axes,) = _figure(4.4, 0.7 + 0.2 * len(worst), 1)
    axes.grid(axis="y", color="#d9e2ec")
    axes.scatter([value for _, value in worst], range(len(worst)), color=BLUE, zorder=3)
    axes.set_yticks(range(len(worst)), [_label(name) for name, _ in worst])
    axes.set_ylim(len(worst) - 0.5, -0.5)
    axes.set(xlim=(min(0.8, worst[0][1]) - 0.02, 1.02), title=title)
    told = ", ".join(f"{name} {value:.3f}" for name, value in worst[:3])
    return _picture(figure, f"{title.capitalize()}, lowest first: {told}.")


def _label(name: str) -> str:
    """A team's or style's name, shortened; `$` is escaped because it begins a formula."""
    short = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
    return short.replace("$", r"\$")


def _figure(width: float, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, [figure.add_subplot(1, columns, number + 1) for number in range(columns)]


def _picture(figure: Figure, alt: str) -> Picture:
    file = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Missing glyphs do not matter: the SVG contains text, which is drawn with the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format="svg", metadata={"Date": None})
    uri = "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
    return Picture(uri, alt, figure.get_figwidth() > WIDE)
