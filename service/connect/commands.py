"""`check`, `backfill`, `status` and `replay`: what a person asks of the connector."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from service.connect.config import DeskConfig
from service.connect.desk import Desk, DeskError, Event, Ticket
from service.connect.events import EventStore, StoreBusy, Stored
from service.connect.running import Parts
from service.connect.sweep import stored
from service.connect.worker import RouterAway, RouterRefused, Worker, ask_router

CHECKED_TICKETS = 10


def check(parts: Parts) -> int:
    """Try credentials and rights, show what would be done with the newest tickets; nothing is changed.

    The exit status is 1 if anything is wrong.
    """
    wrong = 0
    for name, desk in parts.desks.items():
        config = parts.config.desks[name]
        print(f"{name} ({config.kind}, {config.mode}) at {config.url}")
        try:
            said = desk.check()
            for sentence in said:
                print(f"  {sentence}")
            wrong += sum(sentence.startswith("WRONG") for sentence in said)
            if config.webhook_secret_env is None and config.webhook_secret_file is None:
                print(f"  no webhook secret: searched every {config.sweep_seconds:g} s, no webhooks taken")
            wrong += _show_latest(parts, name, config, desk)
        except DeskError as error:
            print(f"  WRONG: {error}")
            wrong += 1
    print("all right" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


def _show_latest(parts: Parts, name: str, config: DeskConfig, desk: Desk) -> int:
    """A line for each of the newest tickets; how many lines say that something is wrong."""
    wrong, events = 0, list(itertools.islice(desk.latest(CHECKED_TICKETS), CHECKED_TICKETS))
    for event in events:
        try:
            ticket = desk.read_ticket(event)
            print(
                f"  ticket {ticket.id} in {ticket.queue or 'no group'}: {_would(parts, name, config, ticket)}"
            )
        except (DeskError, RouterAway, RouterRefused) as error:
            print(f"  ticket {event.ticket}: WRONG: {error}")
            wrong += 1
    return wrong


def _would(parts: Parts, name: str, config: DeskConfig, ticket: Ticket) -> str:
    """What the connector would do with a ticket, in words."""
    if ticket.solved:
        team = config.team_of(ticket.queue)
        return f"report that {team} solved it" if team else "leave it, it was solved in an entry queue"
    answer = ask_router(parts.router, name, ticket)
    queue = config.queue_of(answer["team"])
    said = f"{answer['team']}, {answer['confidence']:.0%}, {answer['decision']}"
    if ticket.noted:
        return f"leave it, it has a note already ({said})"
    if not ticket.open or ticket.taken or ticket.queue not in config.entry:
        return f"leave it, it does not wait in an entry queue or a person has it ({said})"
    if queue is None:
        return f"write a note, because the table names no queue for this team ({said})"
    if answer["decision"] == "route" and config.mode == "move":
        return f"move it to {queue} ({said})"
    return f"write a note that suggests {queue} ({said})"


def backfill(parts: Parts) -> int:
    """Store every ticket that waits in an entry queue; handle them here unless a connector runs."""
    try:
        parts.store.own()
        alone = True
    except StoreBusy:
        alone = False
    moment = f"backfill {int(parts.store.clock())}"
    failed = 0
    for name, desk in parts.desks.items():
        try:
            found = stored(parts.store, None, name, _as_of(desk.waiting(), moment), "backfill")
        except DeskError as error:
            print(f"{name}: {error}")
            failed += 1
            continue
        print(f"{name}: {found} tickets wait")
        if alone:
            _drain(parts.store, parts.workers[name])
    if not alone:
        print("the running connector handles them; `status` shows how far it is")
        return 1 if failed else 0
    status(parts.store, parts.config.desks)
    return 1 if failed or any(state != "done" for _, state in parts.store.counts()) else 0


def _as_of(events: Iterable[Event], moment: str) -> Iterable[Event]:
    """The events with a version of their own: a ticket that was looked at before is looked at again."""
    return (Event(event.ticket, moment, event.content) for event in events)


def _drain(store: EventStore, worker: Worker) -> None:
    """Handle a desk's events until none is due; what failed waits for the next `run` or `backfill`."""
    while store.next(worker.name) is not None:
        time.sleep(worker.step())


def status(store: EventStore, desks: Iterable[str]) -> int:
    """Print how many events wait, are done, are parked, and why."""
    counts = store.counts()
    for desk in desks:
        waiting, done, parked = (counts.get((desk, state), 0) for state in ("waiting", "done", "parked"))
        behind = store.seconds_behind(desk)
        print(f"{desk}: {waiting} waiting ({behind:.0f} s behind), {done} done, {parked} parked")
    for state in ("waiting", "parked"):
        for each in store.listed(state):
            if each.reason:
                print(_line(each))
    return 0


def _line(stored: Stored) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored.received_at))
    return (
        f"  {stored.state} {stored.desk} ticket {stored.event.ticket}, received {when}, "
        f"{stored.tries} tries: {stored.reason}"
    )


def replay(store: EventStore, desk: str | None) -> int:
    """Let parked events be tried again."""
    print(f"{store.replay(desk)} parked events wait again")
    return 0
