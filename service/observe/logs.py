"""Structured logs: one JSON object per line on standard error, never with a ticket's text.

A thread writes the lines, so that a slow reader of the log does not delay tickets.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, TextIO

import orjson

# Attributes of a log record that are not from the caller's `extra`.
_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_FLUSH_SECONDS = 0.1
_MOST_LINES = 20_000


class Writer:
    """Collects lines and writes them ten times a second; drops and counts lines if too many wait."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._descriptor = (stream or sys.stderr).fileno()
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="larkfield-log", daemon=True)
        self._thread.start()

    def line(self, document: dict[str, Any]) -> None:
        """Queue one line."""
        if len(self._lines) >= _MOST_LINES:
            self.dropped += 1
            return
        self._lines.append(orjson.dumps(document, default=str, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Write the queued lines; give up after a second if nobody reads them."""
        self._stopped = True
        self._wake.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(_FLUSH_SECONDS)
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._lines:
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), 500))]
            block = memoryview(b"".join(lines))
            try:
                while block:
                    block = block[os.write(self._descriptor, block) :]
            except OSError:
                self.dropped += len(lines)


class Handler(logging.Handler):
    """Writes the records of the `logging` module to the same log."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        document: dict[str, Any] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        document |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info and record.exc_info[0]:
            document["error"] = record.exc_info[0].__name__
            document["at"] = places(record.exc_info[2])
        self._writer.line(document)


def stamp(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def places(trace: TracebackType | None) -> list[str]:
    """The stack frames of an exception, without its message, which might quote a ticket."""
    frames = traceback.extract_tb(trace)[-8:]
    return [f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames]  # noqa: PTH119


def configure(level: str) -> Writer:
    """Send the records of all loggers to one JSON log."""
    writer = Writer()
    root = logging.getLogger()
    root.handlers[:] = [Handler(writer)]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"
    logging.getLogger("uvicorn.access").propagate = False
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
    return writer
