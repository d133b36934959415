"""The service object of a worker; `Service.answer` takes a ticket through all stages.

`routes` (HTTP) calls `Service.answer`: clean, tokenize, run, decide, explain. Explanations, feedback and the
shadow are registered in `explainers` and `observers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from models.decision import Decision, decide
from models.text import Joined, join
from models.tokenizer import Encoding
from service.api.keys import Keys
from service.api.problems import Problem, unavailable
from service.api.schema import RouteRequest
from service.inference.admission import LONG_TEXT, Admission, Permit
from service.inference.queue import Engine
from service.inference.runtime import Runtime
from service.observe.logs import Writer
from service.observe.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("larkfield")


@dataclass(slots=True, eq=False)
class Answer:
    """All data of one routed ticket, for observers and explainers, which must not change it.

    `stages` maps a stage's name to seconds; `logits` is (teams,).
    """

    request_id: str
    ticket: RouteRequest
    runtime: Runtime
    joined: Joined
    encoding: Encoding
    logits: np.ndarray
    decision: Decision
    stages: dict[str, float]
    urgent_words: list[str]
    explanation: dict[str, Any] | None = None
    source: str = "route"
    traceparent: str | None = None

    @property
    def language(self) -> str | None:
        """The code of the ticket's language, as far as the bundle's dictionaries tell; None: unknown."""
        if self.encoding.language is not None:
            return self.encoding.language
        dictionaries = self.runtime.tokenizer.dictionaries
        if dictionaries is None or "unknown_language" in self.decision.reasons:
            return None
        return dictionaries.native

    def document(self) -> dict[str, Any]:
        """The answer as POST /route sends it."""
        encoding, decision = self.encoding, self.decision
        document = {
            "ticket_id": self.ticket.ticket_id,
            "team": decision.team,
            "confidence": decision.confidence,
            "threshold": decision.threshold,
            "precision": self.runtime.config.thresholds.precision,
            "decision": decision.decision,
            "reasons": decision.reasons,
            "language": self.language,
            "urgent": bool(self.urgent_words),
            "urgent_words": self.urgent_words,
            "probabilities": decision.probabilities,
            "tokens": {
                "count": len(encoding.ids),
                "unknown": encoding.unknown,
                "truncated": encoding.truncated,
            },
            "model": {"name": self.runtime.name, "version": self.runtime.version},
        }
        if self.explanation is not None:
            document["explanation"] = self.explanation
        return document


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def read(ticket: RouteRequest, runtime: Runtime) -> tuple[Joined, Encoding, float, float, float]:
    """Clean and tokenize a ticket; also the times (perf_counter) before, between and after."""
    t0 = perf_counter()
    joined = join(ticket.subject, ticket.text)
    t1 = perf_counter()
    return joined, runtime.tokenizer.encode(joined.text), t0, t1, perf_counter()


Explainer = Callable[[Answer], dict[str, Any]]
Observer = Callable[[Answer], None]


@dataclass
class Service:
    """The state of one worker. `runtime` is None until the first bundle is loaded."""

    settings: Settings
    metrics: Metrics
    writer: Writer | None = None
    runtime: Runtime | None = None
    previous: Runtime | None = None
    draining: bool = False
    missing_workers: int = 0  # of the whole service
    explainers: dict[str, Explainer] = field(default_factory=dict)
    observers: list[Observer] = field(default_factory=list)
    on_swap: list[Callable[[Runtime], None]] = field(default_factory=list)
    on_start: list[Callable[[], None]] = field(default_factory=list)
    on_stop: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings, self.metrics)
        self.engine = Engine(self.settings, self.metrics)
        self.keys = Keys(self.settings.api_keys, self.settings.api_keys_file)
        self.admin_keys = Keys(self.settings.admin_key, self.settings.admin_key_file)
        self.in_flight = 0
        # The server's running requests, if there is a server: a single request does not need the queue.
        self.requests: Sized | None = None
        self._lines_dropped = 0
        self._first = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.runtime is not None and not self.draining

    def load(self, folder: Path) -> Runtime:
        """Verify, open and warm up a bundle; blocking. BundleError if it is not valid."""
        return Runtime.load(folder, self.settings)

    def swap(self, runtime: Runtime) -> None:
        """Use this runtime from the next ticket on; tickets in flight finish with the old one."""
        self.previous, self.runtime = self.runtime, runtime
        self._first.set()
        info = self.metrics.bundle_info
        if self.previous is not None:
            info.labels(self.previous.name, self.previous.version, self.previous.provider).set(0)
        info.labels(runtime.name, runtime.version, runtime.provider).set(1)
        self.metrics.expect(runtime.config.teams)
        self.metrics.ready.set(int(self.ready))
        for hook in self.on_swap:
            hook(runtime)

    def publish(self) -> None:
        """Update the gauges of this worker."""
        metrics = self.metrics
        metrics.in_flight.set(self.in_flight)
        metrics.queue_depth.set(self.engine.depth)
        metrics.queue_limit.set(self.settings.max_queue)
        metrics.ready.set(int(self.ready))
        metrics.missing.set(self.missing_workers)
        metrics.memory.set(resident_bytes())
        metrics.connections.set(self.admission.taken["connections"])
        if self.writer is not None and self.writer.dropped > self._lines_dropped:
            metrics.logs_dropped.inc(self.writer.dropped - self._lines_dropped)
            self._lines_dropped = self.writer.dropped

    def drain(self) -> None:
        """Make /readyz answer 503; requests are still answered."""
        self.draining = True
        self.metrics.ready.set(0)

    def loaded(self) -> Runtime:
        """The present runtime; Problem 503 while none is loaded."""
        if self.runtime is None:
            raise unavailable("The bundle is being loaded.", self.settings.retry_after_seconds)
        return self.runtime

    async def first_loaded(self) -> Runtime:
        """The present runtime; waits for the first one to be loaded, at most until the deadline."""
        if self.runtime is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._first.wait(), self.settings.deadline_seconds)
        return self.loaded()

    async def answer(
        self,
        ticket: RouteRequest,
        request_id: str,
        permit: Permit,
        *,
        began: float,
        source: str = "route",
        traceparent: str | None = None,
    ) -> Answer:
        """Route one ticket. Its deadline is counted from `began` (perf_counter seconds).

        Problem 422 for an explanation that is not available, 503 while no bundle is loaded, 504 after the
        deadline.
        """
        runtime = self.runtime or await self.first_loaded()
        if ticket.explain != "none" and ticket.explain not in self.explainers:
            raise self._no_such_explanation(ticket.explain)
        if len(ticket.text) <= LONG_TEXT:
            joined, encoding, t0, t1, t2 = read(ticket, runtime)
        else:
            joined, encoding, t0, t1, t2 = await self.engine.read_long_text(
                partial(read, ticket, runtime), began + self.settings.deadline_seconds, permit
            )
        alone = self.requests is not None and len(self.requests) <= 1
        job = self.engine.run_now(runtime, encoding) if alone else None
        if job is None:
            job = self.engine.submit(runtime, encoding, began + self.settings.deadline_seconds)
        logits = await job.done
        t3 = perf_counter()
        decision = decide(logits, encoding, runtime.config)
        t4 = perf_counter()
        stages = {
            "clean": t1 - t0,
            "tokenize": t2 - t1,
            "queue": job.began - job.submitted,
            "infer": job.ended - job.began,
            "decide": t4 - t3,
        }
        answer = Answer(
            request_id,
            ticket,
            runtime,
            joined,
            encoding,
            logits,
            decision,
            stages,
            runtime.urgent_words(encoding),
            source=source,
            traceparent=traceparent,
        )
        if ticket.explain != "none":
            await self._explain(answer, began, alone, permit)
        self._count(answer)
        return answer

    async def _explain(self, answer: Answer, began: float, alone: bool, permit: Permit) -> None:
        """Add the explanation, computed in the thread for explanations.

        If the server is idle, the level `tokens` of a short ticket is computed on the event loop's thread: it
        takes no longer than the largest batch that runs there.
        """
        level = answer.ticket.explain
        explainer = self.explainers[level]
        deadline = began + self.settings.explain_deadline_seconds
        t0 = perf_counter()
        soon = level == "tokens" and len(answer.encoding.ids) <= self.settings.inline_tokens // 4
        if alone and soon and answer.runtime.provider == "CPU":
            answer.explanation = explainer(answer)
        else:
            answer.explanation = await self.engine.explain(lambda: explainer(answer), deadline, permit)
        answer.stages["explain"] = perf_counter() - t0

    def _count(self, answer: Answer) -> None:
        metrics, decision, encoding = self.metrics, answer.decision, answer.encoding
        for stage, seconds in answer.stages.items():
            metrics.stage_seconds.observe(seconds, stage)
        metrics.predictions.inc(decision.team, decision.decision)
        metrics.confidence.observe(decision.confidence)
        count = len(encoding.ids)
        metrics.ticket_tokens.observe(count)
        metrics.unknown_ratio.observe(encoding.unknown / count if count else 0.0)
        for reason in decision.reasons:
            metrics.review_reasons.inc(reason)
        if answer.urgent_words:
            metrics.urgent.inc()
        if encoding.language is not None:
            metrics.transferred.inc(encoding.language, decision.decision)
        for observe in self.observers:
            try:
                observe(answer)
            except Exception:
                log.exception("an observer failed", extra={"request_id": answer.request_id})

    def _no_such_explanation(self, level: str) -> Problem:
        offered = ", ".join(["none", *self.explainers])
        message = f"this level is not available; available: {offered}"
        return Problem(422, f"explain: {message}", errors=[{"field": "explain", "message": message}])
