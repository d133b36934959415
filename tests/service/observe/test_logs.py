"""One JSON line per request; a ticket's text is nowhere in it, whatever goes wrong."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from service.observe.logs import Handler, Writer, places, stamp
from tests.service.conftest import Running, until

SECRET = "xyzzy-secret-words"


def test_a_request_line_says_what_an_operator_needs(start: Callable[..., Running]) -> None:
    running = start()
    running.call("POST", "/route", {"text": "parcel late", "ticket_id": "T-9"}, x_request_id="abc")
    line = until(
        lambda: next((line for line in running.log_lines() if line.get("request_id") == "abc"), None),
        "the line",
    )
    assert line["event"] == "request"
    assert (line["route"], line["status"], line["team"], line["decision"]) == (
        "/route",
        200,
        "delivery",
        "route",
    )
    assert set(line["stages_us"]) >= {"parse", "clean", "tokenize", "queue", "infer", "decide", "serialize"}
    assert line["us"] > 0
    assert line["time"].endswith("Z")


def test_text_is_never_logged_counted_or_sent_back(start: Callable[..., Running], bundle: Path) -> None:
    running = start(log_level="debug", admin_key="chief")
    bodies: list[object] = [
        {"text": SECRET},
        {"text": SECRET, "subject": SECRET},
        {"text": "x", "wrong": SECRET},
        {"text": [SECRET]},
        f'{{"text": "{SECRET}'.encode(),
        {"text": "x", "explain": SECRET},
        {"tickets": [{"text": SECRET}, {"words": SECRET}, SECRET]},
    ]
    for path in ("/route", "/route/batch"):
        for body in bodies:
            reply = running.call("POST", path, body)
            assert SECRET.encode() not in reply.body
    stream = f'{{"text": "{SECRET}"}}\n{SECRET}\n'.encode()
    running.call("POST", "/route/stream", stream, content_type="application/x-ndjson")
    running.call("POST", "/admin/reload", {"previous": SECRET}, x_api_key="chief")
    assert SECRET.encode() not in running.call("GET", "/metrics").body
    assert running.stop() == 0
    log = running.log.read_text()
    assert log.count("request_id") > 10
    assert SECRET not in log


def test_request_lines_can_be_turned_off(start: Callable[..., Running]) -> None:
    running = start(log_requests=False)
    running.route("parcel")
    running.stop()
    assert not any(line["event"] == "request" for line in running.log_lines())


def test_an_exception_is_logged_by_place_without_its_message(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        writer = Writer(stream)
        logger = logging.getLogger("test_logs")
        logger.handlers[:] = [Handler(writer)]
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            trace = error.__traceback__
            logger.exception("it broke", extra={"request_id": "r"})
        writer.close()
    line = json.loads(path.read_text())
    assert line["event"] == "it broke"
    assert line["error"] == "ValueError"
    assert line["request_id"] == "r"
    assert line["at"] == places(trace)
    assert "test_logs.py" in line["at"][0]
    assert SECRET not in path.read_text()
    assert str(Path(__file__).parents[3]) not in path.read_text()


def test_a_reader_that_stops_costs_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        writer = Writer(stream)
        for _ in range(30_000):
            writer.line({"event": "x" * 100})
        assert writer.dropped > 0
        os.close(reading)
        writer.close()


def test_a_stamp_is_utc_to_the_millisecond() -> None:
    assert stamp(0.1234) == "1970-01-01T00:00:00.123Z"


def test_what_is_written_before_the_end_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        writer = Writer(stream)
        for number in range(1000):
            writer.line({"number": number})
        writer.close()
    numbers = [json.loads(line)["number"] for line in io.StringIO(path.read_text())]
    assert numbers == list(range(1000))
