"""OpenTelemetry traces: one span per ticket and one per stage, if LARKFIELD_TRACING is set.

Needs the extra `tracing`. A caller's `traceparent` is continued. OpenTelemetry's own variables configure the
export (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, …). Spans contain no ticket text.
"""

from __future__ import annotations

import logging
from time import time_ns
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from service.inference.service import Answer, Service

log = logging.getLogger("larkfield.tracing")

_ORDER = ("clean", "tokenize", "queue", "infer", "decide", "explain")


def install(app: FastAPI, service: Service, provider: TracerProvider | None = None) -> None:
    """Trace every answered ticket if the setting is on; RuntimeError if the extra is not installed."""
    if not service.settings.tracing:
        return
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise RuntimeError(
            "LARKFIELD_TRACING needs the extra: pip install 'larkfield-router[tracing]'"
        ) from None
    provider = provider or _exporting()
    service.observers.append(Tracer(provider, TraceContextTextMapPropagator()).record)
    service.on_stop.append(provider.shutdown)


def _exporting() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "larkfield-router"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracer:
    """Creates spans from an answer and the times of its stages."""

    def __init__(self, provider: TracerProvider, propagator: Any) -> None:
        self._tracer = provider.get_tracer("larkfield")
        self._propagator = propagator

    def record(self, answer: Answer) -> None:
        """Create one span for the ticket and one for each stage, ending now."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        carrier = {"traceparent": answer.traceparent} if answer.traceparent else {}
        stages = [(name, answer.stages[name]) for name in _ORDER if name in answer.stages]
        end = time_ns()
        at = end - int(sum(seconds for _, seconds in stages) * 1e9)
        span = self._tracer.start_span(
            f"{answer.source} ticket",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=at,
            attributes={
                "larkfield.request_id": answer.request_id,
                "larkfield.team": answer.decision.team,
                "larkfield.decision": answer.decision.decision,
                "larkfield.tokens": len(answer.encoding.ids),
                "larkfield.bundle": answer.runtime.version,
                "larkfield.explain": answer.ticket.explain,
            },
        )
        inside = set_span_in_context(span)
        for name, seconds in stages:
            child = self._tracer.start_span(name, context=inside, start_time=at)
            at += int(seconds * 1e9)
            child.end(at)
        span.end(end)
