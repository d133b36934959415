"""A helpdesk of this process that tests can break, and a router that answers from a list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import values

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.config import DeskConfig
from service.connect.desk import Event, Gone, NotUnderstood, Ticket
from service.connect.events import EventStore
from service.connect.metrics import Metrics
from service.connect.worker import Worker
from tests.service.connect.server import Server

ROUTE = {"team": "payment", "confidence": 0.97, "decision": "route", "reasons": []}
REVIEW = {"team": "payment", "confidence": 0.41, "decision": "review", "reasons": ["low_confidence"]}


@pytest.fixture(autouse=True)
def counted_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connector of a test counts from 0, as in a process of its own.

    Where the service's metrics were imported before, values would be shared through files.
    """
    monkeypatch.setattr(values, "ValueClass", values.MutexValue)


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class FakeDesk:
    """Tickets in a dictionary; `fail` is raised by the next call of its name, once."""

    def __init__(self) -> None:
        self.tickets = {"7": Ticket("7", "Inbox", "Charged twice", "My card was charged twice.")}
        self.written: list[tuple[str, str | None, str | None]] = []
        self.fail: dict[str, Exception] = {}
        self.before_write: Ticket | None = None  # what an agent does before the write

    def _step(self, name: str) -> None:
        if name in self.fail:
            raise self.fail.pop(name)

    def read_event(self, body: Any) -> Event | None:
        if not isinstance(body, dict) or "ticket" not in body:
            raise NotUnderstood("no ticket")
        return Event(str(body["ticket"]), str(body.get("version", "")))

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        self._step("read")
        if not text and self.before_write is not None:
            self.tickets[event.ticket] = self.before_write
        if event.ticket not in self.tickets:
            raise Gone(f"404: no ticket {event.ticket}")
        return self.tickets[event.ticket]

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        self._step("write")
        self.written.append((ticket.id, queue, note))
        self.tickets[ticket.id] = replace(
            ticket, queue=queue or ticket.queue, noted=bool(note) or ticket.noted
        )
        self._step("after_write")

    def changed(self, since: float) -> Iterator[Event]:
        self._step("changed")
        return (Event(number, "now") for number in self.tickets)

    def waiting(self) -> Iterator[Event]:
        return self.changed(0.0)

    def latest(self, count: int) -> Iterator[Event]:
        return (Event(number, "latest") for number in list(self.tickets)[:count])

    def check(self) -> list[str]:
        self._step("check")
        return ["may do everything"]


class FakeRouter:
    """Answers with `answer`, or raises `fail` once."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = ROUTE
        self.fail: Exception | None = None
        self.asked: list[dict[str, Any]] = []
        self.feedbacks: list[tuple[str, str | None, str | None]] = []

    def _step(self) -> None:
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error

    def route(self, text: str, **fields: Any) -> dict[str, Any]:
        self._step()
        self.asked.append({"text": text, **fields})
        return self.answer

    def feedback(
        self, team: str, *, ticket_id: str | None = None, source: str | None = None
    ) -> dict[str, Any]:
        self._step()
        self.feedbacks.append((team, ticket_id, source))
        return {}


class Bench:
    """A worker with everything around it."""

    def __init__(self, folder: Path, mode: str = "move") -> None:
        self.clock, self.desk, self.router = Clock(), FakeDesk(), FakeRouter()
        self.config = DeskConfig.model_validate(
            {
                "kind": "generic",
                "url": "http://desk.example.org",
                "mode": mode,
                "entry": ["Inbox"],
                "teams": {"payment": ["Payments", "Payments 2"]},
                "generic": {"ticket": "id"},
            }
        )
        self.store = EventStore(folder / "connect.db", self.clock)
        self.metrics = Metrics(self.store, ["desk"])
        self.worker = self.new_worker()

    def new_worker(self) -> Worker:
        page = "https://router.example.org"
        return Worker("desk", self.config, self.desk, self.store, self.metrics, self.router, page)  # type: ignore[arg-type]

    def add(self, ticket: str = "7", version: str = "1") -> int:
        return self.store.add("desk", [Event(ticket, version)], "webhook")

    def count(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(
            f"larkfield_connect_{name}", {"desk": "desk", **labels}
        )
        return value or 0.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("DESK_TOKEN", "abc")
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()
