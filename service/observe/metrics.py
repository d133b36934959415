"""The Prometheus metrics of the service, summed over its workers.

Workers share a folder of memory-mapped files (prometheus_client's multiprocess mode). A file belongs to a
worker's number, not to its process id: a replacement worker continues the counters of the one that ended. Its
gauges start again.

Label values come from the bundle and from the code, never from a ticket.
"""

from __future__ import annotations

import errno
import os
import shutil
from bisect import bisect_left
from pathlib import Path
from typing import Any, get_args

import prometheus_client
import prometheus_client.values
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from models.decision import Reason
from service.observe.temporary_folder import TemporaryFolder

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
PREFIX = "larkfield-metrics-"

_SPACE_BYTES = 16 << 20  # more than the files of one worker need

# Bounds of the histograms' buckets.
_REQUEST_SECONDS = [1e-4 * x for x in (1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 350, 500)]
_REQUEST_SECONDS += [0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0]
_STAGE_SECONDS = [5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3]
_STAGE_SECONDS += [0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0]
_CONFIDENCE = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0]
_TOKENS = [4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024]
_BATCH_TICKETS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512]
_BATCH_TOKENS = [16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536]
_RATIO = [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0]


REFUSALS = (
    "queue_full",
    "explanations_full",
    "long_texts_full",
    "bytes_full",
    "feedback_full",
    "deadline",
    "connections",
    "slow",
    "unauthorized",
)
RELOADS = ("switched", "refused")


class Metrics:
    """The metrics of one worker, and the Prometheus text of all workers."""

    def __init__(self, folder: Path | None = None, worker: int = 0) -> None:
        self._own = TemporaryFolder(PREFIX) if folder is None else None
        self.folder = self._own.path if self._own else Path(folder or "")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.worker = worker
        _require_space(self.folder)
        clear_gauges(self.folder, worker)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self.folder)
        prometheus_client.values.ValueClass = prometheus_client.values.MultiProcessValue(lambda: worker)
        self._define_requests()
        self._define_engine()
        self._define_routing()

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter `larkfield_{name}_total`."""
        return Counter(f"larkfield_{name}", text, labels, registry=None)

    def gauge(self, name: str, text: str, *labels: str, across: Any = "livesum") -> Gauge:
        """A gauge; `across` is how the workers' values are combined (livesum, livemax, liveall, …)."""
        return Gauge(f"larkfield_{name}", text, labels, registry=None, multiprocess_mode=across)

    def histogram(self, name: str, text: str, buckets: list[float], *labels: str) -> Histogram:
        """A histogram; a value equal to a bound belongs to that bound's bucket."""
        return Histogram(f"larkfield_{name}", text, labels, registry=None, buckets=buckets)

    def _define_requests(self) -> None:
        self.requests = DirectMetric(self.counter("requests", "Requests answered.", "route", "status"))
        self.request_seconds = DirectMetric(
            self.histogram(
                "request_seconds",
                "Time from reading the headers to sending the answer.",
                _REQUEST_SECONDS,
                "route",
                "explain",
            )
        )
        self.stage_seconds = DirectMetric(
            self.histogram("stage_seconds", "Time of one stage of a ticket.", _STAGE_SECONDS, "stage")
        )
        self.refused = DirectMetric(
            self.counter("refused", "Requests refused by a limit, a deadline or a missing key.", "reason")
        )
        self.refused.start(*((reason,) for reason in REFUSALS))
        self.threads_replaced = self.counter(
            "threads_replaced", "Threads that were still busy after their work's deadline.", "kind"
        )
        for kind in ("explanations", "long_texts", "feedback"):
            self.threads_replaced.labels(kind)
        self.in_flight = self.gauge("in_flight_requests", "Requests accepted and not yet answered.")
        self.connections = self.gauge("open_connections", "Open client connections.")

    def _define_engine(self) -> None:
        self.queue_depth = self.gauge("queue_tickets", "Tickets waiting for inference.")
        self.queue_limit = self.gauge("queue_limit_tickets", "Tickets that may be accepted and unanswered.")
        self.batch_tickets = DirectMetric(
            self.histogram("batch_tickets", "Tickets in one run of the graph.", list(_BATCH_TICKETS))
        )
        self.batch_tokens = DirectMetric(
            self.histogram(
                "batch_tokens", "Tokens, padding included, in one run of the graph.", list(_BATCH_TOKENS)
            )
        )
        self.bundle_info = self.gauge(
            "bundle_info",
            "1 for the bundle and provider in use.",
            "name",
            "version",
            "provider",
            across="livesum",
        )
        self.reloads = self.counter("reloads", "Reloads that switched the bundle or were refused.", "outcome")
        for outcome in RELOADS:
            self.reloads.labels(outcome)
        self.ready = self.gauge("ready_workers", "Workers that answer tickets.")
        self.missing = self.gauge(
            "missing_workers", "Workers that ended and are not yet replaced.", across="livemax"
        )
        self.memory = self.gauge("worker_memory_bytes", "Resident memory of a worker.", across="liveall")
        self.logs_dropped = self.counter("log_lines_dropped", "Log lines dropped because too many waited.")

    def _define_routing(self) -> None:
        self.predictions = DirectMetric(self.counter("predictions", "Tickets by team.", "team", "decision"))
        self.review_reasons = DirectMetric(
            self.counter("review_reasons", "Reasons for review; a ticket may have several.", "reason")
        )
        self.review_reasons.start(*((reason,) for reason in get_args(Reason)))
        self.urgent = DirectMetric(
            self.counter("urgent_tickets", "Tickets that name a danger or a legal threat.")
        )
        self.transferred = DirectMetric(
            self.counter(
                "transferred_tickets", "Tickets read word by word in English.", "language", "decision"
            )
        )
        self.confidence = DirectMetric(
            self.histogram("confidence", "Calibrated confidence of the answers.", _CONFIDENCE)
        )
        self.ticket_tokens = DirectMetric(
            self.histogram("ticket_tokens", "Tokens per ticket that the network read.", list(_TOKENS))
        )
        self.unknown_ratio = DirectMetric(
            self.histogram("unknown_token_ratio", "Share of a ticket's tokens that are unknown.", _RATIO)
        )

    def reserve_space(self) -> None:
        """Allocate disk blocks for this worker's mapped files.

        If the disk is full, a write to a page without a block ends the process with SIGBUS.
        """
        for path in self.folder.glob(f"*_{self.worker}.db"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)

    def expect(self, teams: list[str]) -> None:
        """Start the counters of each team at 0, so that `increase` includes its first ticket."""
        self.predictions.start(*((team, decision) for team in teams for decision in ("route", "review")))

    def render(self) -> bytes:
        """All workers' metrics in the Prometheus text format."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self.folder))
        return prometheus_client.generate_latest(registry)


def clear_gauges(folder: Path, worker: int | str = "*") -> None:
    """Clear the gauges of a worker that ended, or of all workers; counters stay.

    The files are zeroed and not deleted, because there may be no disk space for new ones.
    """
    for path in folder.glob(f"gauge_*_{worker}.db"):
        with path.open("r+b") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))


def _require_space(folder: Path) -> None:
    """OSError if the disk has no space for the metrics files."""
    if not any(folder.glob("*.db")) and shutil.disk_usage(folder).free < _SPACE_BYTES:
        raise OSError(errno.ENOSPC, f"the metrics need {_SPACE_BYTES >> 20} MB of disk space", str(folder))


class DirectMetric:
    """Writes a metric directly into the mapped file of prometheus_client, and caches where its labels are.

    `labels().observe()` takes several microseconds in Python. A ticket needs a dozen of them, which would be
    a tenth of its time.
    """

    def __init__(self, metric: Counter | Histogram) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Any] = {}
        if not metric._labelnames:
            self._children[()] = self._child(())

    def start(self, *children: tuple[str, ...]) -> None:
        """Create these labels, at 0."""
        for labels in children:
            self._child(labels)

    def inc(self, *labels: str) -> None:
        """Count one."""
        doubles, at = self._children.get(labels) or self._child(labels)
        doubles[at] += 1.0

    def observe(self, value: float, *labels: str) -> None:
        """Put a value into its bucket and add it to the sum."""
        bounds, (total, at), buckets = self._children.get(labels) or self._child(labels)
        total[at] += value
        doubles, at = buckets[bisect_left(bounds, value)]
        doubles[at] += 1.0

    def _child(self, labels: tuple[str, ...]) -> Any:
        metric = self._metric.labels(*labels) if labels else self._metric
        if isinstance(metric, Histogram):
            buckets = [_slot(bucket) for bucket in metric._buckets]
            child: Any = (metric._upper_bounds, _slot(metric._sum), buckets)
        else:
            child = _slot(metric._value)
        self._children[labels] = child
        return child


def _slot(value: Any) -> tuple[Any, int]:
    """The place of a value of prometheus_client: its mapped file as doubles, and the index.

    The library does not write values that are only written here. If the file grows, the library maps it
    again; this view stays valid, because both map the same pages.
    """
    file = value._file
    return memoryview(file._m).cast("d"), file._positions[value._key] // 8
