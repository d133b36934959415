"""Several tickets in one request: each is judged on its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from service.api.problems import Problem
from service.http.json_body import MOST_VALUES, parsed
from service.http.routes import FIELDS_PER_TICKET
from tests.service.conftest import Running, until

NDJSON = "application/x-ndjson"


def test_a_bad_ticket_does_not_fail_the_others(server: Running) -> None:
    tickets = [
        {"ticket_id": "a", "text": "parcel late"},
        {"ticket_id": "b", "words": 1},
        {"text": "refund card"},
        7,
        {"ticket_id": "e", "text": "x", "explain": "nonsense"},
    ]
    reply = server.call("POST", "/route/batch", {"tickets": tickets})
    assert reply.status == 200
    body = reply.json()
    assert (body["routed"], body["failed"]) == (2, 3)
    good, bad, second, number, explain = body["results"]
    assert (good["ticket_id"], good["team"]) == ("a", "delivery")
    assert second["team"] == "payment"
    assert (bad["ticket_id"], bad["status"]) == ("b", 422)
    assert {"field": "words", "message": "unknown field"} in bad["errors"]
    assert bad["request_id"] == reply.headers["x-request-id"] + "-1"
    assert number["status"] == explain["status"] == 422
    assert explain["ticket_id"] == "e"


def test_the_order_stays_and_all_are_answered(server: Running) -> None:
    tickets = [{"ticket_id": str(n), "text": "parcel late " * (n % 40)} for n in range(256)]
    body = server.call("POST", "/route/batch", {"tickets": tickets}).json()
    assert [result["ticket_id"] for result in body["results"]] == [str(n) for n in range(256)]
    assert body["routed"] == 256


def test_too_many_and_none_are_refused(server: Running) -> None:
    many = server.call("POST", "/route/batch", {"tickets": [{"text": "x"}] * 257})
    assert many.status == 422
    assert many.json()["errors"] == [{"field": "tickets", "message": "at most 256 tickets"}]
    assert server.call("POST", "/route/batch", {"tickets": []}).status == 422
    assert server.call("POST", "/route/batch", {"tickets": [], "more": 1}).status == 422
    assert server.call("POST", "/route/batch", b"nonsense").status == 422


@pytest.mark.parametrize(
    "body",
    [
        b'{"tickets":[{"text":"a"}]' + b"".join(b',"%x":1' % n for n in range(600_000)) + b"}",
        b'{"tickets":[{"text":"a"' + b"".join(b',"%x":1' % n for n in range(600_000)) + b"}]}",
        b'{"tickets":[' + b"[]," * 2_000_000 + b"[]]}",
        b'{"tickets":["' + b'","' * 2_000_000 + b'"]}',
    ],
    ids=["unknown fields", "unknown fields of a ticket", "empty lists", "strings"],
)
def test_a_body_of_many_values_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    def parse(_: bytes) -> None:
        raise AssertionError("it was parsed")

    with pytest.raises(Problem, match="more than 4192 fields and values"):
        parsed(parse, body, MOST_VALUES + FIELDS_PER_TICKET * 256)


def test_what_stands_in_strings_is_not_counted() -> None:
    text = '{"a": [1, 2]}, "\\\\" \n' * 5000
    assert parsed(json.loads, json.dumps({"text": text}).encode()) == {"text": text}


def test_a_text_of_a_batch_is_bounded_as_on_route(start: Callable[..., Running]) -> None:
    running = start(max_body_bytes=10_000)
    tickets = [{"text": "parcel " * 2000}, {"text": "parcel"}, {"text": "漢" * 4000}]
    results = running.call("POST", "/route/batch", {"tickets": tickets}).json()["results"]
    assert [result.get("status", 200) for result in results] == [413, 200, 413]


def test_bodies_in_flight_have_a_budget(start: Callable[..., Running]) -> None:
    running = start(max_bytes_in_flight=20_000)
    assert running.route("parcel").status == 200
    refused = running.call("POST", "/route", {"text": "parcel " * 5000})
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    with running.connect() as waiting:
        waiting.sendall(
            b"POST /route HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 20000\r\n\r\n" + b" " * 19_000
        )
        long = {"text": "parcel " * 500}
        until(lambda: running.call("POST", "/route", long).status == 503, "the other holds the budget")
    until(lambda: running.call("POST", "/route", long).status == 200, "it was given back")


def test_an_older_client_gets_a_batch_in_one_piece(server: Running) -> None:
    body = json.dumps({"tickets": [{"text": "parcel"}] * 3}).encode()
    with server.connect() as connection:
        connection.sendall(
            b"POST /route/batch HTTP/1.0\r\nContent-Type: application/json\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head, _, answer = read_until(connection, b"}").partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert json.loads(answer)["routed"] == 3


def test_a_full_queue_delays_a_batch_and_fails_none(start: Callable[..., Running]) -> None:
    running = start(max_queue=2)
    body = running.call("POST", "/route/batch", {"tickets": [{"text": "parcel late"}] * 200}).json()
    assert (body["routed"], body["failed"]) == (200, 0)


@pytest.mark.parametrize("path", ["/route/batch", "/route/stream"])
def test_explanations_of_a_batch_wait_for_each_other(start: Callable[..., Running], path: str) -> None:
    """More than may wait at a time, and than one deadline lets through; none is refused."""
    running = start(max_explanations=1, deadline_seconds=0.5)
    tickets = [{"text": "parcel late " * 20, "explain": "tokens"} for _ in range(100)]
    if path == "/route/batch":
        results = running.call("POST", path, {"tickets": tickets}).json()["results"]
    else:
        lines = "\n".join(map(json.dumps, tickets)).encode()
        reply = running.call("POST", path, lines, content_type=NDJSON)
        results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result.get("explanation", result)["level"] for result in results] == ["tokens"] * 100


def test_a_stream_answers_each_line_in_order(server: Running) -> None:
    lines = [json.dumps({"ticket_id": str(n), "text": "parcel late " * (n % 30)}) for n in range(500)]
    lines[100] = "{broken"
    lines[200] = json.dumps({"ticket_id": "200", "txt": "?"})
    reply = server.call("POST", "/route/stream", "\n".join(lines).encode(), content_type=NDJSON)
    assert reply.status == 200
    assert reply.headers["content-type"] == NDJSON
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert len(results) == 500
    assert results[100]["status"] == results[200]["status"] == 422
    good = [n for n in range(500) if n not in (100, 200)]
    assert [results[n]["ticket_id"] for n in good] == [str(n) for n in good]


def test_a_line_that_is_too_long_fails_alone(start: Callable[..., Running]) -> None:
    running = start(max_body_bytes=1024)
    body = b'{"text":"a"}\n{"text":"' + b"x" * 300_000 + b'"}\n\n{"text":"b"}\n'
    reply = running.call("POST", "/route/stream", body, content_type=NDJSON)
    statuses = [json.loads(line).get("status", 200) for line in reply.body.splitlines()]
    assert statuses == [200, 413, 200]


def test_answers_come_while_the_request_is_being_sent(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /route/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(3):
            line = json.dumps({"ticket_id": str(number), "text": "parcel"}).encode() + b"\n"
            connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            assert f'"ticket_id":"{number}"'.encode() in read_until(connection, b"}\n")
        connection.sendall(b"0\r\n\r\n")
        read_until(connection, b"0\r\n\r\n")


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.rstrip(b"\r\n").endswith(end.rstrip(b"\r\n")):
        more = connection.recv(65_536)
        assert more, f"the connection ended after {data[-200:]!r}"
        data += more
    return data
