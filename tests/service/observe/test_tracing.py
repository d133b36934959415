"""Spans of a ticket: its caller's trace, its stages, none of its text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

import pytest

from service.api.schema import RouteRequest
from service.app import create_app
from service.observe.tracing import install
from service.settings import Settings

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def test_a_ticket_is_a_span_with_its_stages(bundle: Path) -> None:
    app = create_app(Settings(feedback_url="off"))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service = app.state.service
    service.settings = service.settings.model_copy(update={"tracing": True})
    install(app, service, provider)
    service.swap(service.load(bundle))

    ticket = RouteRequest(text="secret parcel late")
    permit = service.admission.ticket(ticket)
    asyncio.run(service.answer(ticket, "r-1", permit, began=perf_counter(), traceparent=CALLER))
    *stages, whole = exporter.get_finished_spans()
    assert whole.name == "route ticket"
    assert f"{whole.context.trace_id:032x}" == CALLER.split("-")[1]
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == CALLER.split("-")[2]
    assert whole.attributes is not None
    assert whole.attributes["larkfield.team"] == "delivery"
    assert [span.name for span in stages] == ["clean", "tokenize", "queue", "infer", "decide"]
    assert all(span.parent and span.parent.span_id == whole.context.span_id for span in stages)
    assert whole.start_time == stages[0].start_time
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_a_strange_traceparent_starts_a_new_trace(bundle: Path) -> None:
    app = create_app(Settings(feedback_url="off"))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service = app.state.service
    service.settings = service.settings.model_copy(update={"tracing": True})
    install(app, service, provider)
    service.swap(service.load(bundle))
    ticket = RouteRequest(text="x")
    permit = service.admission.ticket(ticket)
    asyncio.run(service.answer(ticket, "r", permit, began=perf_counter(), traceparent="nonsense"))
    assert exporter.get_finished_spans()[-1].parent is None


def test_off_by_default(bundle: Path) -> None:
    service = create_app(Settings(feedback_url="off")).state.service
    assert not any("Tracer" in getattr(o, "__qualname__", "") for o in service.observers)
