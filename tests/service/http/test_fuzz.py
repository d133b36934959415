"""For any request the service neither fails nor hangs, and its memory does not grow."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.service.conftest import Running

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
CALM = settings(deadline=None, suppress_health_check=list(HealthCheck))
# Pages are no part of the API; a stream's body is no JSON.
NOT_HERE = ("/route/stream", "/learn", "/web")


def every_operation(server: Running, examples: int) -> int:
    """Send generated requests, right ones and wrong ones, to each operation that the document names."""
    document = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    operations = [operation for operation in operations if not operation.path.startswith(NOT_HERE)]
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(CALM, max_examples=examples)
            def send(case: schemathesis.Case) -> None:
                case.call_and_validate(checks=CHECKS)

            try:
                send()
            except Unsatisfiable:
                assert mode == GenerationMode.NEGATIVE, "an operation without input cannot be called wrongly"
    return len(operations)


def test_the_api_keeps_its_word(server: Running) -> None:
    assert every_operation(server, 15) >= 6


@pytest.mark.slow
def test_the_api_keeps_its_word_for_long(server: Running) -> None:
    assert every_operation(server, 400) >= 6


ODD = st.one_of(
    st.text(st.characters(codec=None), max_size=200),
    st.text(
        "\u200d\u200e\u200f\u202e\ufeff\u0301\u0000\ud83d\udc69\u0627\u05d0é<&>[](){}'\"\\\n\r\t0a ",
        max_size=200,
    ),
    st.integers(1, 3000).map(lambda n: "(" * n + ")" * n),
    st.integers(1, 3000).map(lambda n: "e" + "\u0301" * n),
    st.integers(1, 2000).map(lambda n: "\U0001f468\u200d" * n),
    st.integers(1, 2000).map(lambda n: "<div>" * n),
    st.integers(1, 2000).map(lambda n: "> " * n),
)


def told(server: Running, body: bytes) -> None:
    reply = server.call("POST", "/route", body)
    assert reply.status in (200, 413, 422), reply.body
    if reply.status == 200:
        answer = reply.json()
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert 0 <= answer["tokens"]["unknown"] <= answer["tokens"]["count"] <= 600


@given(text=ODD, subject=st.none() | ODD)
@settings(CALM, max_examples=150)
def test_any_text_is_routed(server: Running, text: str, subject: str | None) -> None:
    body = {"text": text, "subject": subject}
    told(server, json.dumps(body).encode())  # lone surrogates as \\ud800
    told(server, json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))  # and as bytes


@given(st.binary(max_size=300))
@settings(CALM, max_examples=150)
def test_any_bytes_are_answered(server: Running, body: bytes) -> None:
    assert server.call("POST", "/route", body).status in (200, 422)
    assert server.call("POST", "/route/batch", body).status in (200, 422)
    assert server.call("POST", "/route/stream", body, content_type="application/x-ndjson").status == 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\u0000",
        "\u200f\u202e\u2066",
        "\u200d" * 10_000,
        "(" * 100_000,
        "[" * 100_000,
        "a" * 200_000,
        "<" * 100_000,
        "&" * 100_000,
        "> " * 50_000,
        "\u0301" * 50_000,
        "\ufdfa" * 10_000,  # one character, eighteen in NFKC
        "<!--" * 20_000,
        "-- \n" * 40_000,
        "On Monday wrote:\n" * 5_000,
        "9" * 200_000,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 5_000,
    ],
    ids=repr,
)
def test_large_and_strange_texts(server: Running, text: str) -> None:
    told(server, json.dumps({"text": text}, ensure_ascii=False).encode())


def test_strange_json(server: Running) -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e400", "9" * 10_000, "[" * 100_000, "{" * 100_000):
        for body in (value, f'{{"text": {value}}}', f'{{"text": "x", "ticket_id": {value}}}'):
            assert server.call("POST", "/route", body.encode()).status == 422
            assert server.call("POST", "/route/batch", body.encode()).status == 422
    nested = b'{"tickets": ' + b"[" * 200 + b"]" * 200 + b"}"
    reply = server.call("POST", "/route/batch", nested)
    assert reply.status == 200
    assert reply.json()["failed"] == 1


def test_it_is_still_well(server: Running) -> None:
    """After all of the above: one plain ticket, nothing in flight, nothing waiting."""
    assert server.route("parcel late").json()["team"] == "delivery"
    metrics = server.metrics()
    assert metrics["larkfield_in_flight_requests"] == 0
    assert metrics["larkfield_queue_tickets"] == 0
    assert metrics['larkfield_worker_memory_bytes{pid="0"}'] < 400e6
    assert not any(name.startswith("larkfield_requests_total") and 'status="500"' in name for name in metrics)
