"""What the connector counts. Labels are names of desks and words of the code, never of a ticket."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from service.connect.events import EventStore

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# What became of an event that was handled.
OUTCOMES = (
    "moved",
    "noted",
    "reported",
    "left_to_agent",  # a person moved it or owns it
    "already_handled",
    "nothing_to_do",
    "not_sorted",  # solved in an entry queue: no team to report
    "gone",
    "parked",  # given up, until a person replays it
)
REFUSALS = ("unknown_desk", "signature", "too_large", "not_json", "unknown_event", "slow", "store")
REASONS = ("router_away", "desk_away", "denied", "conflict", "error")


class Metrics:
    """The connector's metrics, by desk."""

    def __init__(self, store: EventStore, desks: list[str]) -> None:
        self.registry = CollectorRegistry()
        self._store, self._desks = store, desks
        self.events = self._counter("events", "Events stored, or repeated.", "origin", "result")
        self.handled = self._counter("handled", "Events handled, by what became of them.", "outcome")
        self.retries = self._counter("retries", "Tries of an event that failed.", "reason")
        self.sweeps_failed = self._counter("sweeps_failed", "Searches for changed tickets that failed.")
        self.write_backs = self._counter("write_backs", "Tickets moved and notes written.", "kind")
        self.refused = self._counter("refused", "Webhooks refused.", "reason")
        self._waiting = self._gauge("waiting", "Events that wait to be handled.")
        self._parked = self._gauge("parked", "Events that were given up and wait for a person.")
        self._behind = self._gauge("seconds_behind", "Age of the oldest event that waits.")
        for desk in desks:
            self._start(desk)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"larkfield_connect_{name}", text, ["desk", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"larkfield_connect_{name}", text, ["desk"], registry=self.registry)

    def _start(self, desk: str) -> None:
        """Begin at 0, so that the first event is seen as a growth."""
        for outcome in OUTCOMES:
            self.handled.labels(desk, outcome)
        for reason in REASONS:
            self.retries.labels(desk, reason)
        for kind in ("move", "note"):
            self.write_backs.labels(desk, kind)
        for reason in REFUSALS[1:]:
            self.refused.labels(desk, reason)
        for origin in ("webhook", "sweep"):
            self.events.labels(desk, origin, "new")
        self.sweeps_failed.labels(desk)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format; sqlite3.Error if the store cannot be read."""
        counts = self._store.counts()
        for desk in self._desks:
            self._waiting.labels(desk).set(counts.get((desk, "waiting"), 0))
            self._parked.labels(desk).set(counts.get((desk, "parked"), 0))
            self._behind.labels(desk).set(self._store.seconds_behind(desk))
        return generate_latest(self.registry)
