"""The two dashboards as code, on Grafana's library; `python deploy/grafana/dashboards.py` writes the JSON.

Each panel is one line of a table below: title, kind, unit, what it tells and when to worry, expressions.
Grafana reads only `dashboards/*.json`; a test holds that they are what this file writes, and another one
evaluates every expression against a live service.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
Kind = Literal["timeseries", "stacked", "stat", "bars", "heatmap", "table"]
BUILDERS: dict[str, Any] = {
    "timeseries": timeseries.Panel,
    "stacked": timeseries.Panel,
    "stat": stat.Panel,
    "bars": bargauge.Panel,
    "heatmap": heatmap.Panel,
    "table": table.Panel,
}
MINE = 'job="$job", instance=~"$instance"'
ROUTES = 'route=~"/route.*|/feedback"'
PLAIN = 'route="/route", explain="none"'


@dataclass(frozen=True)
class Chart:
    """One panel; `queries` maps a legend to an expression, `width` is of 24 columns."""

    title: str
    kind: Kind
    unit: str
    description: str
    queries: dict[str, str]
    width: int = 8
    thresholds: list[tuple[float | None, str]] = field(default_factory=list)


def quantile(q: float, metric: str, labels: str, by: str = "le") -> str:
    """The q-quantile of a histogram over the scrape-aware interval."""
    return f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


def rate(metric: str, labels: str = "", by: str = "") -> str:
    """Sum of a counter's rate per second."""
    inner = f"rate({metric}{{{MINE}{', ' if labels else ''}{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def in_an_hour(metric: str, labels: str, by: str) -> str:
    """Increase of a counter in the last hour: desks count tickets by the hour, not by the second."""
    return f"sum by ({by}) (increase({metric}{{{MINE}{', ' if labels else ''}{labels}}}[1h]))"


def increase(metric: str, by: str) -> str:
    """Increase of a counter over the time range of the dashboard."""
    return f"sum by ({by}) (increase({metric}{{{MINE}}}[$__range]))"


def ratio(part: str, whole: str) -> str:
    """part / whole, if whole is not 0."""
    return f"{part} / ({whole} > 0)"


SERVICE: dict[str, list[Chart]] = {
    "At a glance": [
        Chart(
            "Replicas up",
            "stat",
            "short",
            "Replicas whose metrics were scraped. Fewer than deployed: LarkfieldDown in the runbook.",
            {"up": 'sum(up{job="$job"})'},
            4,
            [(None, "red"), (1, "green")],
        ),
        Chart(
            "Workers ready",
            "stat",
            "short",
            "Worker processes that answer tickets. 0 on a replica: LarkfieldNotReady in the runbook.",
            {"ready": f"sum(larkfield_ready_workers{{{MINE}}})"},
            4,
            [(None, "red"), (1, "green")],
        ),
        Chart(
            "Requests",
            "stat",
            "reqps",
            "Requests a second on all routes for tickets and feedback.",
            {"requests": rate("larkfield_requests_total", ROUTES)},
            4,
        ),
        Chart(
            "Errors",
            "stat",
            "percentunit",
            "Share of answers with a 5xx status over 5 minutes. The objective is 0.1 %.",
            {"errors": 'max(job:larkfield_errors:ratio_rate5m{job="$job"})'},
            4,
            [(None, "green"), (0.001, "orange"), (0.0144, "red")],
        ),
        Chart(
            "p99 latency",
            "stat",
            "s",
            "99th percentile of /route without explanation. The objective: 99 % within 50 ms.",
            {"p99": quantile(0.99, "larkfield_request_seconds", f"{MINE}, {PLAIN}")},
            4,
            [(None, "green"), (0.05, "orange"), (0.25, "red")],
        ),
        Chart(
            "Bundle",
            "table",
            "short",
            "Workers by bundle and provider. More than one version for long: LarkfieldBundleMismatch.",
            {"workers": f"sum by (name, version, provider) (larkfield_bundle_info{{{MINE}}}) > 0"},
            4,
        ),
    ],
    "Rate and errors": [
        Chart(
            "Requests by status",
            "stacked",
            "reqps",
            "Answers a second by HTTP status. 503: queue full; 504: deadline passed; 401, 429: client error.",
            {"{{status}}": rate("larkfield_requests_total", ROUTES, "status")},
        ),
        Chart(
            "Requests by route",
            "stacked",
            "reqps",
            "Answers a second by route.",
            {"{{route}}": rate("larkfield_requests_total", "", "route")},
        ),
        Chart(
            "Error budget burn",
            "timeseries",
            "none",
            "How many times faster than allowed the error budget is used; above 14.4 someone is paged.",
            {
                "errors, 5 min": 'max(job:larkfield_errors:ratio_rate5m{job="$job"}) / 0.001',
                "errors, 1 h": 'max(job:larkfield_errors:ratio_rate1h{job="$job"}) / 0.001',
                "slow, 5 min": 'max(job:larkfield_slow:ratio_rate5m{job="$job"}) / 0.01',
                "slow, 1 h": 'max(job:larkfield_slow:ratio_rate1h{job="$job"}) / 0.01',
            },
            thresholds=[(None, "green"), (6, "orange"), (14.4, "red")],
        ),
    ],
    "Latency": [
        Chart(
            "Latency of /route",
            "timeseries",
            "s",
            "From headers read to answer sent, without explanation.",
            {
                f"p{int(q * 100)}": quantile(q, "larkfield_request_seconds", f"{MINE}, {PLAIN}")
                for q in (0.5, 0.9, 0.99)
            },
        ),
        Chart(
            "p99 by explain level",
            "timeseries",
            "s",
            "Explanations cost more and have their own limit and deadline.",
            {
                "{{explain}}": quantile(
                    0.99, "larkfield_request_seconds", f'{MINE}, route="/route"', "le, explain"
                )
            },
        ),
        Chart(
            "Latency by stage",
            "timeseries",
            "s",
            "90th percentile of each processing stage. If queue is long, there are too few workers.",
            {"{{stage}}": quantile(0.9, "larkfield_stage_seconds", MINE, "le, stage")},
        ),
        Chart(
            "Latency distribution",
            "heatmap",
            "s",
            "How many /route answers took how long.",
            {"{{le}}": rate("larkfield_request_seconds_bucket", PLAIN, "le")},
            12,
        ),
        Chart(
            "Mean time by stage",
            "stacked",
            "s",
            "Where an average ticket's time goes.",
            {
                "{{stage}}": ratio(
                    rate("larkfield_stage_seconds_sum", "", "stage"),
                    rate("larkfield_stage_seconds_count", "", "stage"),
                )
            },
            12,
        ),
    ],
    "Saturation": [
        Chart(
            "Queue",
            "timeseries",
            "short",
            "Tickets that wait, and how many may. Near the limit: LarkfieldQueueFull in the runbook.",
            {
                "{{instance}} waiting": f"sum by (instance) (larkfield_queue_tickets{{{MINE}}})",
                "{{instance}} limit": f"sum by (instance) (larkfield_queue_limit_tickets{{{MINE}}})",
            },
        ),
        Chart(
            "In flight and connections",
            "timeseries",
            "short",
            "Requests accepted and not yet answered; connections that clients hold open.",
            {
                "in flight": f"sum(larkfield_in_flight_requests{{{MINE}}})",
                "connections": f"sum(larkfield_open_connections{{{MINE}}})",
            },
        ),
        Chart(
            "Refused requests",
            "stacked",
            "reqps",
            "Refused requests by reason, beside all answered ones. queue_full: add workers or replicas.",
            {
                "{{reason}}": rate("larkfield_refused_total", "", "reason"),
                "answered": rate("larkfield_requests_total", ROUTES),
            },
        ),
        Chart(
            "Tickets in one run",
            "timeseries",
            "short",
            "Mean and 99th percentile of the batch size, which grows under load.",
            {
                "mean": ratio(rate("larkfield_batch_tickets_sum"), rate("larkfield_batch_tickets_count")),
                "p99": quantile(0.99, "larkfield_batch_tickets", MINE),
            },
        ),
        Chart(
            "Tokens in one run",
            "timeseries",
            "short",
            "Padded tokens in one run of the graph.",
            {
                "mean": ratio(rate("larkfield_batch_tokens_sum"), rate("larkfield_batch_tokens_count")),
                "p99": quantile(0.99, "larkfield_batch_tokens", MINE),
            },
        ),
        Chart(
            "Memory of the workers",
            "timeseries",
            "bytes",
            "Resident memory of each worker; it must stay flat. Growing: LarkfieldMemoryHigh.",
            {"{{instance}} {{pid}}": f"larkfield_worker_memory_bytes{{{MINE}}}"},
        ),
    ],
    "Bundle and logs": [
        Chart(
            "Workers by bundle version",
            "timeseries",
            "short",
            "Workers by bundle version; there should be two versions only during a rollout.",
            {
                "{{name}} {{version}} on {{provider}}": (
                    f"sum by (name, version, provider) (larkfield_bundle_info{{{MINE}}})"
                )
            },
        ),
        Chart(
            "Reloads",
            "bars",
            "short",
            "Bundles loaded and refused in the time range.",
            {"{{outcome}}": increase("larkfield_reloads_total", "outcome")},
        ),
        Chart(
            "Lost lines and records",
            "timeseries",
            "short",
            "Log lines and decisions that were dropped, and database failures. Should be 0.",
            {
                "log lines": rate("larkfield_log_lines_dropped_total"),
                "decisions": rate("larkfield_decisions_dropped_total"),
                "database failures": rate("larkfield_store_failures_total"),
            },
        ),
    ],
}

SHADOW = "Shadow bundle (open this row while one is compared)"
PSI = [(None, "green"), (0.1, "orange"), (0.25, "red")]
ROUTER: dict[str, list[Chart]] = {
    "Decisions": [
        Chart(
            "Tickets by team",
            "stacked",
            "short",
            "Tickets in the hour before, by the team they were predicted for.",
            {"{{team}}": in_an_hour("larkfield_predictions_total", 'team=~"$team"', "team")},
        ),
        Chart(
            "Time saved in a day",
            "stat",
            "h",
            "Hours of people's work in the day before, if to read and move a ticket takes two minutes. Only "
            "routed tickets count. Change the 2 in the query to the minutes that it takes on your desk.",
            {
                "saved": (
                    f'sum(increase(larkfield_predictions_total{{{MINE}, decision="route"}}[1d])) * 2 / 60'
                )
            },
        ),
        Chart(
            "Share of teams",
            "bars",
            "percentunit",
            "Share of each team in the time range. If it jumps, look at the drift below.",
            {
                "{{team}}": (
                    f"sum by (team) (increase(larkfield_predictions_total{{{MINE}}}[$__range])) "
                    f"/ scalar(sum(increase(larkfield_predictions_total{{{MINE}}}[$__range])) > 0)"
                )
            },
        ),
        Chart(
            "Sent to review",
            "timeseries",
            "percentunit",
            "Share of tickets a person looks at first. A jump: LarkfieldReviewRateJump in the runbook.",
            {
                "now": ratio(
                    rate("larkfield_predictions_total", 'decision="review"'),
                    rate("larkfield_predictions_total"),
                ),
                "30 min": 'max(job:larkfield_review:ratio_rate30m{job="$job"})',
                "1 day": 'max(job:larkfield_review:ratio_rate1d{job="$job"})',
            },
        ),
        Chart(
            "Why to review",
            "stacked",
            "short",
            "Reasons in the hour before; one ticket may have several.",
            {"{{reason}}": in_an_hour("larkfield_review_reasons_total", "", "reason")},
        ),
        Chart(
            "Review share by team",
            "timeseries",
            "percentunit",
            "A team far above the others: its tickets changed, or it needs more training tickets.",
            {
                "{{team}}": ratio(
                    rate("larkfield_predictions_total", 'decision="review", team=~"$team"', "team"),
                    rate("larkfield_predictions_total", 'team=~"$team"', "team"),
                )
            },
        ),
        Chart(
            "Confidence",
            "heatmap",
            "percentunit",
            "Distribution of the confidence. If it moves down, tickets differ from the training tickets.",
            {"{{le}}": rate("larkfield_confidence_bucket", "", "le")},
        ),
    ],
    "Incoming tickets": [
        Chart(
            "Unknown words",
            "timeseries",
            "percentunit",
            "Share of a ticket's tokens outside the vocabulary. Rising: new products or another language.",
            {
                "median": quantile(0.5, "larkfield_unknown_token_ratio", MINE),
                "p90": quantile(0.9, "larkfield_unknown_token_ratio", MINE),
                "mean": ratio(
                    rate("larkfield_unknown_token_ratio_sum"), rate("larkfield_unknown_token_ratio_count")
                ),
            },
        ),
        Chart(
            "Length of tickets",
            "timeseries",
            "short",
            "Tokens that the network read; longer tickets are cut at the bundle's limit.",
            {
                "median": quantile(0.5, "larkfield_ticket_tokens", MINE),
                "p90": quantile(0.9, "larkfield_ticket_tokens", MINE),
            },
        ),
        Chart(
            "Median confidence",
            "timeseries",
            "percentunit",
            "Median and 10th percentile of the confidence.",
            {
                "median": quantile(0.5, "larkfield_confidence", MINE),
                "p10": quantile(0.1, "larkfield_confidence", MINE),
            },
        ),
    ],
    "Drift": [
        Chart(
            "Drift by feature",
            "timeseries",
            "none",
            "Population stability index against the bundle's validation tickets: below 0.1 no drift, "
            "above 0.25 LarkfieldDrift in the runbook.",
            {"{{feature}}": f"max by (feature) (larkfield_drift_psi{{{MINE}}})"},
            12,
            PSI,
        ),
        Chart(
            "Drift now",
            "bars",
            "none",
            "The same, now.",
            {"{{feature}}": f"max by (feature) (larkfield_drift_psi{{{MINE}}})"},
            6,
            PSI,
        ),
        Chart(
            "Tickets in the window",
            "stat",
            "short",
            "Drift and accuracy are over this many tickets of the served version; too few give no figure.",
            {
                "decisions": f"max(larkfield_drift_tickets{{{MINE}}})",
                "with feedback": f"max(larkfield_feedback_tickets{{{MINE}}})",
            },
            6,
        ),
    ],
    "Accuracy by feedback": [
        Chart(
            "Accuracy",
            "timeseries",
            "percentunit",
            "Share of right teams: all, routed and reviewed tickets; and the precision that the bundle "
            "states for routed ones. If lower: LarkfieldAccuracyDrop in the runbook.",
            {
                "{{decision}}": f"min by (decision) (larkfield_feedback_accuracy{{{MINE}}})",
                "stated": f"min(larkfield_bundle_precision{{{MINE}}})",
            },
        ),
        Chart(
            "Calibration",
            "timeseries",
            "percentunit",
            "Expected calibration error, and mean confidence minus accuracy (above 0: too sure).",
            {
                "calibration error": f"max(larkfield_calibration_error{{{MINE}}})",
                "overconfidence": f"max(larkfield_overconfidence{{{MINE}}})",
            },
        ),
        Chart(
            "Feedback",
            "stacked",
            "cpm",
            "Feedback per minute by the team that solved the ticket.",
            {"{{actual}}": "60 * " + rate("larkfield_feedback_total", 'actual=~"$team"', "actual")},
        ),
        Chart(
            "Confusion",
            "table",
            "short",
            "Feedback by predicted and actual team; `unknown`: no decision on the ticket was found.",
            {"feedbacks": (increase("larkfield_feedback_total", "predicted, actual"))},
            12,
        ),
        Chart(
            "Teams unknown to the bundle",
            "bars",
            "short",
            "Tickets in the window that were solved by a team the bundle does not know: train again.",
            {"{{team}}": f"max by (team) (larkfield_feedback_unknown_team{{{MINE}}})"},
            12,
        ),
        Chart(
            "Wrong by predicted team",
            "bars",
            "percentunit",
            "Share of feedback that names another team, by predicted team, in the time range.",
            {
                "{{predicted}}": ratio(
                    increase("larkfield_feedback_wrong_total", "predicted"),
                    increase("larkfield_feedback_total", "predicted"),
                )
            },
            12,
        ),
    ],
    SHADOW: [
        Chart(
            "Agreement",
            "timeseries",
            "percentunit",
            "Share of live tickets that the shadow bundle gives to the same team.",
            {
                "same team": ratio(
                    rate("larkfield_shadow_tickets_total", 'outcome!="other_team"'),
                    rate("larkfield_shadow_tickets_total"),
                ),
                "same team and decision": ratio(
                    rate("larkfield_shadow_tickets_total", 'outcome="same"'),
                    rate("larkfield_shadow_tickets_total"),
                ),
            },
        ),
        Chart(
            "Where they differ",
            "table",
            "short",
            "Tickets in the time range by served and shadow team.",
            {"tickets": (increase("larkfield_shadow_changes_total", "team, shadow_team"))},
        ),
        Chart(
            "Shadow load",
            "timeseries",
            "reqps",
            "Tickets a second that were compared, and skipped because the service was busy.",
            {
                "compared": rate("larkfield_shadow_tickets_total"),
                "skipped: {{reason}}": rate("larkfield_shadow_skipped_total", "", "reason"),
            },
        ),
    ],
}


def panel(chart: Chart) -> Any:
    """A chart as a panel builder of the library."""
    built = BUILDERS[chart.kind]().title(chart.title).description(chart.description).unit(chart.unit)
    built = built.datasource(SOURCE).span(chart.width).height(4 if chart.width == 4 else 8)
    instant = chart.kind in ("stat", "bars", "table")
    for letter, (legend, expression) in zip("ABCDEFGH", chart.queries.items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)
        query = query.datasource(SOURCE)
        query = query.instant() if instant else query.range()
        if chart.kind in ("heatmap", "table"):
            shape = prometheus_models.PromQueryFormat
            query = query.format(shape.HEATMAP if chart.kind == "heatmap" else shape.TABLE)
        built = built.with_target(query)
    if chart.thresholds:
        steps = [models.Threshold(value=value, color=color) for value, color in chart.thresholds]
        built = built.thresholds(
            dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    return decorate(built, chart)


def decorate(built: Any, chart: Chart) -> Any:
    """Set the options that only some kinds of panel have."""
    if chart.kind in ("timeseries", "stacked"):
        built = built.min(0) if chart.title != "Calibration" else built
        built = built.fill_opacity(25 if chart.kind == "stacked" else 5).show_points(
            common.VisibilityMode.NEVER
        )
        built = built.tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        built = built.legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    if chart.kind == "stacked":
        built = built.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if chart.kind == "heatmap":
        built = built.calculate(False).y_axis(heatmap.YAxisConfig().unit(chart.unit))
        built = built.color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .steps(64)
        )
    if chart.kind == "table":
        hidden = models.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
        built = built.with_transformation(hidden)
    return built


def build(uid: str, title: str, description: str, rows: dict[str, list[Chart]], teams: bool) -> Any:
    """One dashboard with the variables data source, job, instance and, if `teams`, team."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags(["larkfield"])
    made = made.timezone("browser").refresh("30s").time("now-3h", "now").readonly()
    made = made.tooltip(models.DashboardCursorSync.CROSSHAIR)
    made = made.link(
        dashboard.DashboardLink("Larkfield dashboards")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["larkfield"])
        .keep_time(True)
        .include_vars(True)
    )
    made = made.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    made = made.with_variable(variable("job", "Job", "label_values(larkfield_ready_workers, job)"))
    instances = 'label_values(larkfield_ready_workers{job="$job"}, instance)'
    made = made.with_variable(
        variable("instance", "Replica", instances).multi(True).include_all(True).all_value(".*")
    )
    if teams:
        known = 'label_values(larkfield_predictions_total{job="$job"}, team)'
        made = made.with_variable(
            variable("team", "Team", known).multi(True).include_all(True).all_value(".*")
        )
    number = itertools.count(1)  # links to a panel use its id
    for name, charts in rows.items():
        row = dashboard.Row(name).id(next(number))
        panels = [panel(chart).id(next(number)) for chart in charts]
        if name == SHADOW:
            made = made.with_row(nested(row.collapsed(True), panels))
            continue
        made = made.with_row(row)
        for each in panels:
            made = made.with_panel(each)
    return made


def nested(row: dashboard.Row, panels: list[Any]) -> dashboard.Row:
    """A collapsed row with its panels side by side."""
    for column, each in enumerate(panels):
        row = row.with_panel(each.grid_pos(models.GridPos(h=8, w=8, x=8 * column, y=1000)))
    return row


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable whose values come from Prometheus, read again when the time range changes."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def files() -> dict[str, str]:
    """File name -> content of each dashboard."""
    boards = {
        "service.json": build(
            "larkfield-service",
            "Larkfield: Service",
            "Health of the service: rate, errors, latency, saturation, bundle versions.",
            SERVICE,
            teams=False,
        ),
        "router.json": build(
            "larkfield-router",
            "Larkfield: Router",
            "Quality of the routing: teams, decisions, confidence, drift, accuracy by feedback.",
            ROUTER,
            teams=True,
        ),
    }
    return {
        name: JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"
        for name, board in boards.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
        print(FOLDER / name)
