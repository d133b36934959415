"""The report as a self-contained HTML page, without scripts or external files; pictures have descriptions."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from training.report import pictures
from training.report.pictures import Picture
from training.report.routing import EXPLANATION, TEAM_EXPLANATION

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --paper: #fff; --faint: #52606d; --line: #d9e2ec;
  --strong-line: #9aa5b1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #14191f; --faint: #a6b1bd;
  --line: #323f4b; --strong-line: #616e7c; } figure img { border-radius: 6px; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; max-width: 20rem; }
th { border-bottom: 1px solid var(--strong-line); font-weight: 600; } td.n, th.n { text-align: right; }
td { overflow-wrap: break-word; } td:first-child { white-space: nowrap; max-width: none; }
figure { margin: 1rem 1rem 1rem 0; display: inline-block; vertical-align: top; max-width: 100%;
  overflow-x: auto; }
figure img { max-width: 100%; background: #fff; } figure.wide img { max-width: max(100%, 40rem); }
figcaption { color: var(--faint); font-size: .85rem; width: 0; min-width: 100%; }
.big { font-size: 1.25rem; }
td.text { white-space: pre-wrap; min-width: 16rem; max-width: 34rem; } tr.best td { font-weight: 600; }
summary { cursor: pointer; }
pre { overflow-x: auto; border: 1px solid var(--line); padding: .3rem .6rem; margin: .2rem 0 .8rem; }
"""


def page(report: dict[str, Any]) -> str:
    """The whole page for a report made by `training.report.figures`."""
    bundle = report["bundle"]
    title = f"{bundle['name']}, version {bundle['version']}"
    sections = [
        _summary(report),
        _steps(report),
        _routers(report),
        _data(report),
        _learning(report),
        _teams(report),
        _groups(report),
        _confidence(report),
        _robustness(report),
        _long_tickets(report),
        _mistakes(report),
        _suspects(report),
        _made_with(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(filter(None, sections)) + "\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], best: int | None = None) -> str:
    """An HTML table with right-aligned numbers and the row number `best` in bold."""

    def cell(value: Any, name: str) -> str:
        if isinstance(value, float):
            return f'<td class="n">{value:.4f}</td>'
        if isinstance(value, int):
            return f'<td class="n">{value:,}</td>'
        return f"<td{' class=text' if name == 'text' else ''}>{escape(str(value))}</td>"

    lines = [list(row) for row in rows]
    body = [
        f"<tr{' class=best' if number == best else ''}>{''.join(map(cell, row, head))}</tr>"
        for number, row in enumerate(lines)
    ]
    numeric = [bool(lines) and isinstance(value, int | float) for value in (lines[0] if lines else head)]
    heads = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{escape(name)}</th>'
        for name, right in zip(head, numeric, strict=True)
    )
    inside = "<thead><tr>" + heads + "</tr></thead><tbody>" + "".join(body) + "</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def figure(picture: Picture) -> str:
    alt = escape(picture.alt, quote=True)
    kind = ' class="wide"' if picture.wide else ""
    return f'<figure{kind}><img src="{picture.uri}" alt="{alt}"><figcaption>{alt}</figcaption></figure>'


def folded(label: str, content: str) -> str:
    return f"<details><summary>{escape(label)}</summary>{content}</details>"


def _summary(report: dict[str, Any]) -> str:
    figures, data = report["validation"], report["data"]
    return (
        f'<p class="big">{figures["correct"]:,} of {figures["tickets"]:,} validation tickets right '
        f"({figures['accuracy']:.2%}; at 95 % certainty at least {report['accuracy_at_least']:.1%} of all "
        f"such tickets). {figures['coverage']:.1%} are routed without a person"
        + (f", {figures['routed_precision']:.2%} of those correctly" if figures["routed_precision"] else "")
        + f".</p><p>Trained on {data['train']['tickets']:,} tickets of {escape(data['train']['file'])} "
        f"with the recipe {escape(report['recipe']['name'])}.</p>"
    )


def _steps(report: dict[str, Any]) -> str:
    if not report["next_steps"]:
        return ""
    items = "".join(
        f"<li>{escape(step['reason'])}<pre><code>{escape(step['command'])}</code></pre></li>"
        for step in report["next_steps"]
    )
    return f"<h2>What to do next</h2><ol>{items}</ol>"


def _routers(report: dict[str, Any]) -> str:
    routers = report["routers"]
    if len(routers) == 1:
        return ""
    best = max(range(len(routers)), key=lambda number: routers[number]["correct"])
    rows = [
        [
            one["router"],
            one["correct"],
            one["accuracy"],
            one["macro_f1"],
            one["train_tickets"],
            round(one["seconds"], 1),
        ]
        for one in routers
    ]
    for row in rows:
        row[5] = f"{row[5]:.1f} s"
    head = ["router", "right", "accuracy", "macro-F1", "trained on", "training time"]
    return "<h2>Compared with word counts, on the same split</h2>" + table(head, rows, best)


def _data(report: dict[str, Any]) -> str:
    train, valid = report["data"]["train"], report["data"]["valid"]
    faults = [
        [fault["file"], fault["kind"], fault["effect"], fault["count"], fault["detail"], _some(fault["rows"])]
        for fault in report["data"]["faults"]
    ]
    head = ["file", "fault", "effect", "rows", "what", "which"]
    counts = [[team, count, valid["teams"].get(team, 0)] for team, count in train["teams"].items()]
    return (
        "<h2>The data</h2>"
        + table(
            ["", "file", "tickets", "median words", "longest"],
            [
                [name, part["file"], part["tickets"], int(part["words"]["median"]), part["words"]["longest"]]
                for name, part in (("training", train), ("validation", valid))
            ],
        )
        + _repetition(train, report["validation"])
        + (table(head, faults) if faults else "<p>No faults found.</p>")
        + figure(pictures.lengths(train, valid))
        + folded("tickets of each team", table(["team", "training", "validation"], counts))
    )


def _repetition(train: dict[str, Any], validation: dict[str, Any]) -> str:
    repeated = train["repetition"]
    return (
        f"<p>{repeated['same_text']:,} of {repeated['tickets']:,} training tickets have the text of an "
        f"earlier one, and {repeated['same_template']:,} its template (the same words with other numbers, "
        f"ids or dates). The most frequent template has {repeated['largest_template']:,} "
        "tickets. With each template counted once, "
        f"{validation['template_accuracy']:.2%} of the validation tickets are "
        "right.</p>"
    )


def _some(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:20])) + (" …" if len(rows) > 20 else "")


def _learning(report: dict[str, Any]) -> str:
    if not report["epochs"]:
        return ""
    return "<h2>Learning</h2>" + figure(pictures.learning_curves(report["epochs"]))


def _teams(report: dict[str, Any]) -> str:
    figures = report["validation"]
    scores = [
        [team, one["tickets"], one["precision"], one["recall"], one["f1"]]
        for team, one in figures["per_team"].items()
    ]
    per_team = table(["team", "tickets", "precision", "recall", "F1"], scores)
    parts = ["<h2>Teams</h2>"]
    counts = {team: one["tickets"] for team, one in figures["per_team"].items()}
    parts.append(figure(pictures.confusion(list(counts), report["confusions"], counts)))
    recalls = {team: one["recall"] for team, one in figures["per_team"].items() if one["tickets"]}
    parts.append(figure(pictures.dots(recalls, "recall by team")))
    parts.append(folded(f"all {len(scores)} teams", per_team))
    if figures["per_style"]:
        styles = {style: one["accuracy"] for style, one in figures["per_style"].items()}
        rows = [[style, one["tickets"], one["accuracy"]] for style, one in figures["per_style"].items()]
        parts += ["<h2>Styles</h2>", figure(pictures.dots(styles, "accuracy by style"))]
        parts.append(table(["style", "tickets", "accuracy"], rows))
    return "".join(parts)


def _groups(report: dict[str, Any]) -> str:
    figures = report["validation"]
    head = ["tickets", "right", "routed", "of those right"]

    def rows(groups: dict[str, dict[str, Any]]) -> list[list[str | int]]:
        return [
            [
                name,
                one["tickets"],
                *(_share(one[key]) for key in ("accuracy", "coverage", "routed_precision")),
            ]
            for name, one in groups.items()
        ]

    return (
        "<h2>Languages and lengths</h2><p>Validation tickets. A ticket's language is told by its function "
        "words; a ticket without any, or of a language with very few tickets, is in the last row.</p>"
        + table(["language", *head], rows(figures["per_language"]))
        + table(["length", *head], rows(figures["per_length"]))
    )


def _share(share: float | None) -> str:
    return "none routed" if share is None else f"{share:.1%}"


def _confidence(report: dict[str, Any]) -> str:
    figures = report["validation"]
    reasons = [[reason, count] for reason, count in report["review_reasons"].items()]
    return (
        "<h2>When a person reviews</h2>"
        f"<p>Temperature {report['temperature']:.3f}, exponent {report['exponent']:.3f}. {_asked(report)} "
        "All were chosen on these validation tickets. The calibration error is cross-fitted: each ticket is "
        f"measured with a calibration that was fitted on others.</p><p>{escape(EXPLANATION)}</p>"
        + _shown(report["precision_table"])
        + folded("each team", f"<p>{escape(TEAM_EXPLANATION)}</p>" + _shown(report["team_table"]))
        + figure(pictures.reliability(report["reliability"], figures["calibration_error"]))
        + figure(pictures.coverage(report["coverage"], figures["coverage"], figures["routed_precision"]))
        + (table(["reason for review", "validation tickets"], reasons) if reasons else "")
    )


def _asked(report: dict[str, Any]) -> str:
    """A sentence about the chosen precision."""
    thresholds = report["thresholds"]
    if thresholds["confidence"] is None:
        return f"Nothing is routed: {escape(report['caution'])}."
    return (
        f"The chosen precision is {thresholds['precision']:g}; at least {thresholds['at_least']:.1%} of the "
        "routed tickets are right (lower bound at 95 %)."
        + (f" Note: {escape(report['caution'])}." if report["caution"] else "")
    )


def _shown(values: dict[str, Any]) -> str:
    return table(values["head"], values["rows"], values["chosen"])


def _robustness(report: dict[str, Any]) -> str:
    measured = report["robustness"]
    if not measured:
        return ""
    rows = [
        {"router": one["router"], "clean": one["clean"], "typos": one["typos"], **one["long"]}
        for one in measured
    ]
    lengths = [[one["router"], *(quarter["accuracy"] for quarter in one["by_length"])] for one in measured]
    quarters = [
        f"{quarter['fewest_words']} to {quarter['most_words']} words" for quarter in measured[0]["by_length"]
    ]
    return (
        "<h2>Typing errors and long tickets</h2>"
        "<p>Typing errors: in every fifth word. Long: the ticket is inside unrelated text of 2,000 words "
        f"({measured[0]['long_tickets']} tickets).</p>"
        + figure(pictures.routers(rows))
        + table(
            ["router", "as written", "typing errors", "request first", "in the middle", "last"],
            [
                [row["router"], *(row[kind] for kind in ("clean", "typos", "start", "middle", "end"))]
                for row in rows
            ],
        )
        + table(["router, by length", *quarters], lengths)
    )


def _long_tickets(report: dict[str, Any]) -> str:
    sentence, compared = report["reading"]["chosen"], report["reading"]["compared"]
    rows = [
        [f"{one['longest']:.0f} tokens", int(one["tickets"]), int(one["whole"]), int(one["windows"])]
        for one in compared
        if one["tickets"]
    ]
    head = ["longer than the limit so far, up to", "validation tickets", "right, whole", "right, in windows"]
    return f"<h2>Long tickets</h2><p>{escape(sentence[:1].upper() + sentence[1:])}.</p>" + (
        table(head, rows) if rows else ""
    )


def _mistakes(report: dict[str, Any]) -> str:
    mistakes = report["mistakes"]
    if not mistakes:
        return "<h2>The worst mistakes</h2><p>None on the validation tickets.</p>"
    return "<h2>The worst mistakes</h2>" + _ticket_table(
        mistakes,
        {"team": "solved by", "predicted": "predicted", "confidence": "confidence", "decision": "decision"},
    )


def _suspects(report: dict[str, Any]) -> str:
    suspects = report["suspected_label_errors"]
    if not suspects["looked_for"]:
        return ""
    heading = "<h2>Training tickets whose label is probably wrong</h2>"
    if not suspects["count"]:
        return heading + "<p>None.</p>"
    return (
        f"{heading}<p>{suspects['count']:,} suspects, most probable first; {suspects['expected']:.0f} "
        "of them are expected to be labelled wrongly. The CSV beside the bundle lists all: fill in "
        "<code>corrected_team</code> and train again with <code>--corrections</code>.</p>"
        + (
            f"<p>Check each ticket before you correct it: {escape(suspects['doubt'])}.</p>"
            if suspects["doubt"]
            else ""
        )
        + folded(
            "show them",
            _ticket_table(
                suspects["first"],
                {"team": "labelled", "suggested_team": "suggested", "probability": "probability wrong"},
            ),
        )
    )


def _ticket_table(tickets: list[dict[str, Any]], columns: dict[str, str]) -> str:
    with_text = "text" in tickets[0]
    rows = [
        [one["ticket_id"], *(one[key] for key in columns), *([one["text"]] if with_text else [])]
        for one in tickets
    ]
    return table(["ticket", *columns.values(), *(["text"] if with_text else [])], rows)


def _made_with(report: dict[str, Any]) -> str:
    libraries = [[name, version] for name, version in report["bundle"]["libraries"].items()]
    recipe = [[name, str(value)] for name, value in report["recipe"].items()]
    return (
        "<h2>Recipe and versions</h2>"
        + folded("recipe", table(["setting", "value"], recipe))
        + folded("libraries", table(["library", "version"], libraries))
        + "<p>Training data, sha256 of ids, texts and teams: "
        f"<code>{report['data']['fingerprint']}</code></p>"
    )
