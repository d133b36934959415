"""POST /route and what every response carries."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from service.http.json_body import replace_lone_surrogates
from tests.service.conftest import Running

PROBLEM = "application/problem+json"


def test_a_ticket_is_routed(server: Running) -> None:
    reply = server.route("The parcel is late, the parcel is lost", ticket_id="T-1", subject="Where is it")
    assert reply.status == 200
    answer = reply.json()
    assert answer["ticket_id"] == "T-1"
    assert answer["team"] == "delivery"
    assert answer["decision"] == "route"
    assert answer["reasons"] == []
    assert answer["model"] == {"name": "small", "version": "1"}
    assert list(answer["probabilities"]) == ["delivery", "payment", "account"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    assert answer["confidence"] == answer["probabilities"]["delivery"]
    assert answer["tokens"]["count"] == 12
    assert answer["tokens"]["truncated"] is False
    assert "explanation" not in answer


def test_words_of_danger_raise_a_flag_whatever_the_decision(server: Running) -> None:
    counted = "larkfield_urgent_tickets_total"
    before = server.metrics()[counted]
    calm = server.route("the parcel is lost").json()
    assert (calm["urgent"], calm["urgent_words"]) == (False, [])
    assert server.metrics()[counted] == before
    urgent = server.route("the parcel is lost and there is Smoke", subject="electric shock").json()
    assert (urgent["urgent"], urgent["urgent_words"]) == (True, ["electric shock", "smoke"])
    assert urgent["team"] == calm["team"]
    assert server.metrics()[counted] == before + 1


def test_the_subject_counts(server: Running) -> None:
    without = server.route("please help").json()
    with_subject = server.route("please help", subject="refund my card").json()
    assert without["decision"] == "review"
    assert with_subject["team"] == "payment"


def test_an_unsure_answer_goes_to_review(server: Running) -> None:
    answer = server.route("nothing that it knows").json()
    assert answer["decision"] == "review"
    assert "low_confidence" in answer["reasons"]


def test_a_long_ticket_is_cut_and_says_so(server: Running) -> None:
    answer = server.route("parcel " * 2_000).json()
    assert answer["tokens"] == {"count": 600, "unknown": 0, "truncated": True}
    assert answer["team"] == "delivery"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "text", "Field required"),
        ({"text": 5}, "text", "Input should be a valid string"),
        (
            {"text": None},
            "text",
            "Value error, null is allowed only with a subject: give a text or a subject",
        ),
        ({"text": "x", "priority": 1}, "priority", "unknown field"),
        ({"text": "x", "ticket_id": 7.5}, "ticket_id", "Input should be a valid string"),
        ({"text": "x", "explain": "all"}, "explain", "Input should be 'none', 'tokens', 'heads' or 'full'"),
        ({"text": "x", "subject": "s" * 3000}, "subject", "String should have at most 2000 characters"),
        (b"{", "body", "not valid JSON in UTF-8"),
        (b"", "body", "not valid JSON in UTF-8"),
        (b"[1]", "body", "Input should be an object"),
        (b'{"text": NaN}', "text", "Input should be a valid string"),
        (b'{"text": 1e999}', "text", "Input should be a valid string"),
        (b'{"text": ' + b"9" * 5000 + b"}", "body", "not valid JSON in UTF-8"),
        (b"\xff\xfe", "body", "not valid JSON in UTF-8"),
        (b'{"text": ' + b"[" * 100_000, "body", "has more than 96 fields and values"),
    ],
)
def test_wrong_input_is_named(server: Running, body: Any, field: str, message: str) -> None:
    reply = server.call("POST", "/route", body)
    assert reply.status == 422
    assert reply.headers["content-type"] == PROBLEM
    problem = reply.json()
    assert problem["status"] == 422
    assert problem["title"].startswith("Unprocessable")
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert {"field": field, "message": message} in problem["errors"]


def test_a_value_is_never_shown(server: Running) -> None:
    for body in (
        {"text": ["secret-word"]},
        {"text": "x", "explain": "secret-word"},
        b'{"text": "secret-word',
        {"text": "x", "ticket_id": {"secret-word": 1}},
    ):
        reply = server.call("POST", "/route", body)
        assert reply.status == 422
        assert b"secret-word" not in reply.body


def test_a_strange_field_name_is_cut(server: Running) -> None:
    reply = server.call("POST", "/route", {"text": "x", "\x07" + "a" * 500: 1})
    assert reply.json()["errors"] == [{"field": "?" + "a" * 63 + "…", "message": "unknown field"}]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/route", 405), ("DELETE", "/route", 405), ("POST", "/healthz", 405)],
)
def test_other_errors_are_problems_too(server: Running, method: str, path: str, status: int) -> None:
    reply = server.call(method, path)
    assert reply.status == status
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["status"] == status
    if status == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_form_of_another_site_is_refused(server: Running, content_type: str) -> None:
    reply = server.call("POST", "/route", b'{"text": "x"}', content_type=content_type)
    assert reply.status == 415
    assert "application/json" in reply.json()["detail"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_written_otherwise(server: Running, content_type: str) -> None:
    assert server.call("POST", "/route", b'{"text": "x"}', content_type=content_type).status == 200


@pytest.mark.parametrize("path", ["/route", "/route/batch", "/route/stream", "/feedback", "/admin/reload"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity", "nonsense"])
def test_a_compressed_body_is_refused_with_what_is_expected(
    start: Callable[..., Running], path: str, encoding: str
) -> None:
    running = start(admin_key="chief")
    kind = "application/x-ndjson" if path == "/route/stream" else "application/json"
    body = gzip.compress(b'{"text": "parcel"}')
    headers = {"content_type": kind, "content_encoding": encoding, "x_api_key": "chief"}
    reply = running.call("POST", path, body, **headers)
    assert reply.status == 415
    assert "without Content-Encoding" in reply.json()["detail"]
    assert reply.headers["accept-encoding"] == "identity"


def test_a_body_that_says_it_is_as_it_is_is_read(server: Running) -> None:
    assert server.call("POST", "/route", b'{"text": "x"}', content_encoding="identity").status == 200


MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_skipped(server: Running) -> None:
    ticket = b'{"text": "parcel late"}'
    assert server.call("POST", "/route", MARK + ticket).json()["team"] == "delivery"
    batch = server.call("POST", "/route/batch", MARK + b'{"tickets": [%s]}' % ticket)
    assert batch.json()["routed"] == 1
    lines = MARK + ticket + b"\r\n" + MARK + ticket
    stream = server.call("POST", "/route/stream", lines, content_type="application/x-ndjson")
    assert [json.loads(line)["team"] for line in stream.body.splitlines()] == ["delivery"] * 2


HALVES = {
    rb"parcel \ud83d": "parcel \ufffd",
    rb"\uDE00 parcel": "\ufffd parcel",
    rb"\ud83d\ud83d\ude00": "\ufffd\U0001f600",
    rb"\\ud83d \\\ud83d \n\"": '\\ud83d \\\ufffd \n"',
}


@pytest.mark.parametrize("sent", HALVES)
def test_half_an_emoji_is_no_reason_to_lose_a_ticket(server: Running, sent: bytes) -> None:
    assert json.loads(replace_lone_surrogates(b'"%s"' % sent)) == HALVES[sent]
    ticket = b'{"ticket_id": "%s", "text": "%s"}' % (sent, sent)
    reply = server.call("POST", "/route", ticket)
    assert reply.json()["ticket_id"] == HALVES[sent]
    batch = server.call("POST", "/route/batch", b'{"tickets": [%s, {"text": "card"}]}' % ticket).json()
    assert [result["ticket_id"] for result in batch["results"]] == [HALVES[sent], None]
    assert batch["routed"] == 2
    stream = server.call("POST", "/route/stream", ticket, content_type="application/x-ndjson")
    assert json.loads(stream.body)["ticket_id"] == HALVES[sent]


@pytest.mark.parametrize("path", ["/route", "/healthz", "/readyz", "/metrics", "/openapi.json", "/nowhere"])
def test_every_response_has_an_id_and_is_safe(server: Running, path: str) -> None:
    reply = server.call("GET", path)
    assert re.fullmatch(r"[0-9a-f]{24}", reply.headers["x-request-id"])
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["server"] is None
    assert reply.headers["access-control-allow-origin"] is None


def test_a_sane_request_id_is_kept(server: Running) -> None:
    for path in ("/route", "/healthz"):
        body = {"text": "x"} if path == "/route" else None
        method = "POST" if body else "GET"
        assert (
            server.call(method, path, body, x_request_id="desk-42:a.b").headers["x-request-id"]
            == "desk-42:a.b"
        )
        for strange in ("a b", "x" * 200, "<script>"):
            assert server.call(method, path, body, x_request_id=strange).headers["x-request-id"] != strange


def test_ids_differ(server: Running) -> None:
    ids = {server.route("x").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


def test_health_and_readiness(server: Running) -> None:
    assert server.call("GET", "/healthz").json() == {"status": "ok"}
    ready = server.call("GET", "/readyz").json()
    assert ready == {"status": "ready", "model": {"name": "small", "version": "1"}, "provider": "CPU"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_load_balancers_may_probe_with_other_methods(server: Running, path: str) -> None:
    got, head = server.call("GET", path), server.call("HEAD", path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["content-length"] == str(len(got.body))
    options = server.call("OPTIONS", path)
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert server.call("POST", path).status == 405


def test_the_openapi_document_names_everything(server: Running) -> None:
    document = server.call("GET", "/openapi.json").json()
    assert {
        "/route",
        "/route/batch",
        "/route/stream",
        "/healthz",
        "/readyz",
        "/metrics",
        "/admin/reload",
    } <= set(document["paths"])
    request = document["components"]["schemas"]["RouteRequest"]
    assert request["additionalProperties"] is False
    assert request["examples"]
    assert document["components"]["schemas"]["RouteResponse"]["examples"]
    assert "application/problem+json" in document["paths"]["/route"]["post"]["responses"]["422"]["content"]


def test_the_examples_work(server: Running) -> None:
    schemas = server.call("GET", "/openapi.json").json()["components"]["schemas"]
    assert server.call("POST", "/route", schemas["RouteRequest"]["examples"][0]).status == 200
    assert server.call("POST", "/route/batch", schemas["BatchRequest"]["examples"][0]).status == 200


@pytest.mark.parametrize("level", ["tokens", "heads", "full"])
@pytest.mark.parametrize(
    "text", ["parcel late", "Où est mon “parcel” ? — late…", "\u200bcard\u200b <b>refund</b>", ""]
)
def test_every_explanation_can_be_sent(server: Running, level: str, text: str) -> None:
    reply = server.route(text, subject="Échange", explain=level)
    assert reply.status == 200
    assert reply.json()["explanation"]


def test_metrics_count_what_happened(server: Running) -> None:
    before = server.metrics()
    for _ in range(3):
        server.route("parcel late")
    server.route("zzz")
    server.call("POST", "/route", {})
    after = server.metrics()

    def grown(sample: str) -> float:
        return after.get(sample, 0.0) - before.get(sample, 0.0)

    assert grown('larkfield_requests_total{route="/route",status="200"}') == 4
    assert grown('larkfield_requests_total{route="/route",status="422"}') == 1
    assert grown('larkfield_predictions_total{decision="route",team="delivery"}') == 3
    assert grown('larkfield_review_reasons_total{reason="low_confidence"}') == 1
    assert grown("larkfield_ticket_tokens_sum") == 7
    assert grown("larkfield_confidence_count") == 4
    assert grown('larkfield_stage_seconds_count{stage="infer"}') == 4
    assert after['larkfield_bundle_info{name="small",provider="CPU",version="1"}'] == 1
    assert after["larkfield_ready_workers"] == 1
    assert after["larkfield_in_flight_requests"] == 0
    buckets = [
        name for name in after if name.startswith("larkfield_request_seconds_bucket") and '"/route"' in name
    ]
    bounds = {float(match[1]) for name in buckets if (match := re.search(r'le="([^"]+)"', name))}
    assert min(bounds) == 1e-4
    assert {0.001, 1.0, 5.0} <= bounds


def test_prometheus_finds_no_fault_with_the_metrics(server: Running, tool: Callable[[str], str]) -> None:
    for level in ("none", "tokens"):
        server.route("parcel late", explain=level)
    text = server.call("GET", "/metrics").body
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=240
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
