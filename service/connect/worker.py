"""Handles events: reads the ticket, asks the router, writes the decision; or reports a solved ticket.

What an event asks for is decided by the ticket as it is now, not by what the webhook said: a ticket that
waits in an entry queue is routed once, one that is solved is reported. So events may come twice, late, or in
another order. Before anything is written the ticket is read again: a person who was faster wins.

A failure postpones the event, with growing pauses, and for a shorter time its desk. After a day the event is
parked with its reason. A refusal that no other try can help is parked at once.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
from typing import Any

from service.client import TRY_AGAIN, Client, RouterError
from service.connect.config import DeskConfig
from service.connect.desk import Conflict, Denied, Desk, DeskAway, DeskError, Gone, Rejected, Ticket
from service.connect.events import EventStore, Past, Stored
from service.connect.metrics import Metrics
from service.connect.notes import note

log = logging.getLogger("larkfield.connect")

DAY_SECONDS = 86_400.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 900.0  # of one event
LONGEST_DESK_PAUSE_SECONDS = 30.0
IDLE_SECONDS = 0.5  # between two looks for events that are due
# The router reads the beginning of a long text, and refuses bodies beyond its limit.
LONGEST_TEXT, LONGEST_SUBJECT = 50_000, 2_000
# Of the router: 401 and 403 are a wrong key, 404, 405 and 421 a wrong address; an operator sets them right.
MAY_PASS = (*TRY_AGAIN, 401, 403, 404, 405, 421)


class RouterAway(Exception):
    """The router does not answer or is busy."""


class RouterRefused(Exception):
    """The router refuses this ticket; another try cannot help."""


class Worker:
    """Handles the events of one desk, one after the other."""

    def __init__(
        self,
        name: str,
        config: DeskConfig,
        desk: Desk,
        store: EventStore,
        metrics: Metrics,
        router: Client,
        page: str,
    ) -> None:
        self.name = name
        self.config = config
        self.desk = desk
        self.store = store
        self.metrics = metrics
        self.router = router
        self.page = page
        self.wake = threading.Event()
        self._stopping = False
        self._failures = 0  # in a row, whatever the event

    def run(self) -> None:
        """Handle events until `stop`."""
        while not self._stopping:
            try:
                pause = self.step()
            except sqlite3.Error as error:
                log.error("the event store failed", extra={"desk": self.name, "reason": str(error)})
                pause = LONGEST_DESK_PAUSE_SECONDS
            if pause > 0:
                self.wake.wait(pause)
                self.wake.clear()

    def stop(self) -> None:
        """End `run` after the event that is being handled."""
        self._stopping = True
        self.wake.set()

    def step(self) -> float:
        """Handle the event that is due, if any; the seconds to wait before the next step."""
        stored = self.store.next(self.name)
        if stored is None:
            return IDLE_SECONDS
        try:
            self._handle(stored)
        except Gone as error:
            self._finish(stored, "gone", str(error))
        except (Rejected, RouterRefused) as error:
            self._park(stored, str(error))
        except (DeskError, RouterAway) as error:
            return self._postpone(stored, error)
        except sqlite3.Error:
            raise
        except Exception as error:  # an answer of another shape than documented must not stop the connector
            log.exception("unexpected answer", extra={"desk": self.name, "ticket": stored.event.ticket})
            return self._postpone(stored, error)
        self._failures = 0
        return 0.0

    def _handle(self, stored: Stored) -> None:
        past = self.store.past(stored)
        ticket = self.desk.read_ticket(stored.event, text=past.outcome in (None, "writing"))
        if ticket.solved:
            self._report(stored, ticket, past)
        elif past.outcome == "writing":
            self._after_crash(stored, ticket, past)
        elif past.outcome is not None:
            self._finish(stored, "already_handled")
        elif ticket.noted:  # by a connector whose store was lost
            self._finish(stored, "already_handled", outcome="noted")
        elif not ticket.open:
            self._finish(stored, "nothing_to_do")
        elif not self._untouched(ticket):
            self._finish(stored, "left_to_agent", outcome="left_to_agent")
        else:
            self._route(stored, ticket)

    def _untouched(self, ticket: Ticket) -> bool:
        """Whether a ticket still lies where new tickets arrive, and nobody owns it."""
        return ticket.queue in self.config.entry and ticket.open and not ticket.taken and not ticket.solved

    def _after_crash(self, stored: Stored, ticket: Ticket, past: Past) -> None:
        """Finish what an earlier process may have written, without writing it twice."""
        if ticket.noted:
            self._finish(stored, "noted", outcome="noted")
        elif past.queue is not None and ticket.queue == past.queue:
            self._finish(stored, "moved", outcome="moved")
        elif self._untouched(ticket):
            self._route(stored, ticket)
        else:
            self._finish(stored, "left_to_agent", outcome="left_to_agent")

    def _route(self, stored: Stored, ticket: Ticket) -> None:
        answer = ask_router(self.router, self.name, ticket)
        queue = self.config.queue_of(answer["team"])
        moves = self.config.mode == "move" and answer["decision"] == "route" and queue is not None
        now = self.desk.read_ticket(stored.event, text=False)
        if not self._untouched(now):
            self._finish(stored, "left_to_agent", outcome="left_to_agent")
            return
        self.store.begin_writing(stored, queue if moves else None)
        if moves:
            self.desk.write(now, queue=queue)
        else:
            self.desk.write(now, note=note(answer, queue, self.page, self.name, ticket.id))
        self.metrics.write_backs.labels(self.name, "move" if moves else "note").inc()
        outcome = "moved" if moves else "noted"
        self._finish(stored, outcome, outcome=outcome, queue=queue if moves else None)

    def _report(self, stored: Stored, ticket: Ticket, past: Past) -> None:
        """Tell the router which team solved a ticket; the newest solution counts."""
        team = self.config.team_of(ticket.queue)
        if team is None:
            self._finish(stored, "not_sorted")
        elif team == past.reported:
            self._finish(stored, "already_handled")
        else:
            _router_call(lambda: self.router.feedback(team, ticket_id=ticket.id, source=self.name))
            self._finish(stored, "reported", reported=team)

    def _finish(self, stored: Stored, result: str, why: str = "", /, **ticket: str | None) -> None:
        self.store.finish(stored, result, **ticket)
        self.metrics.handled.labels(self.name, result).inc()
        fields = {"desk": self.name, "ticket": stored.event.ticket, "outcome": result}
        log.info("event handled", extra=fields | ({"why": why} if why else {}))

    def _park(self, stored: Stored, reason: str) -> None:
        self.store.park(stored, reason)
        self.metrics.handled.labels(self.name, "parked").inc()
        fields = {"desk": self.name, "ticket": stored.event.ticket, "reason": reason}
        log.error("event parked; replay it when the cause is gone", extra=fields)

    def _postpone(self, stored: Stored, error: Exception) -> float:
        """Try the event later; the seconds that the whole desk waits."""
        reason = _reason(error)
        self.metrics.retries.labels(self.name, reason).inc()
        message = str(error) if reason != "error" else f"unexpected: {type(error).__name__}"
        if self.store.clock() - stored.received_at > DAY_SECONDS:
            self._park(stored, f"tried for a day: {message}")
            return 0.0
        if isinstance(error, Conflict):
            self.store.postpone(stored, FIRST_PAUSE_SECONDS, message)
            return 0.0
        pause = growing(FIRST_PAUSE_SECONDS, stored.tries, LONGEST_PAUSE_SECONDS)
        self.store.postpone(stored, pause, message)
        fields = {"desk": self.name, "ticket": stored.event.ticket, "reason": message, "tries": stored.tries}
        log.warning("event postponed", extra=fields)
        asked = error.retry_after_seconds if isinstance(error, DeskAway) else None
        whole = growing(0.5, self._failures, LONGEST_DESK_PAUSE_SECONDS)
        self._failures += 1
        return whole if asked is None else min(LONGEST_PAUSE_SECONDS, max(whole, asked))


def _reason(error: Exception) -> str:
    if isinstance(error, RouterAway):
        return "router_away"
    if isinstance(error, (DeskAway, Denied, Conflict)):
        return error.reason
    return "error"


def growing(first_seconds: float, number: int, longest_seconds: float) -> float:
    """The pause after failure `number` (from 0): doubling up to the longest, with jitter."""
    return random.uniform(0.75, 1.0) * min(longest_seconds, first_seconds * 2.0 ** min(number, 30))


def ask_router(router: Client, source: str, ticket: Ticket) -> dict[str, Any]:
    """The answer of POST /route for a ticket; RouterAway or RouterRefused."""
    return _router_call(
        lambda: router.route(
            ticket.text[:LONGEST_TEXT],
            subject=ticket.subject[:LONGEST_SUBJECT] or None,
            ticket_id=ticket.id,
            source=source,
        )
    )


def _router_call(call: Any) -> Any:
    try:
        return call()
    except RouterError as error:
        if error.status is None or error.status in MAY_PASS or error.status >= 500:
            raise RouterAway(f"the router: {error}") from None
        raise RouterRefused(f"the router refuses this ticket: {error}") from None
