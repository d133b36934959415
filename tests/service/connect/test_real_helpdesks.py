"""Real helpdesks beside the real router and connector; what happened is read from the helpdesk's own API.

`make test-helpdesk` runs this. A helpdesk that is not installed is skipped.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.tools.processes import Process, free_port, router, scrape, wait_for
from tests.service.connect.django_helpdesk import DjangoHelpdesk
from tests.service.connect.helpdesk import (
    QUEUES,
    WEBHOOK_SECRET,
    Helpdesk,
    NotInstalled,
    configuration,
    connector,
    kill,
)
from tests.service.connect.request_tracker import RequestTracker

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 240.0
AWAY_SECONDS = 10.0
TICKETS = 200
TEXTS = {
    "payment": [
        "My card was charged twice for one order, please remove one charge.",
        "Please refund the second payment, it was taken from my bank account by mistake.",
    ],
    "delivery": [
        "The parcel has not arrived, the tracking number has not moved for nine days.",
        "Where is my package? It should have been delivered on Monday.",
    ],
    "returns": [
        "I want to send the coat back, how do I get a return label?",
        "The shoes do not fit, I would like to return them and get my money back.",
    ],
    "warranty": [
        "The kettle stopped working after three months, it is still under warranty.",
        "The screen of the tablet is broken by itself, I ask for a repair under the guarantee.",
    ],
    "account": [
        "I cannot log in to my account, the password reset mail never comes.",
        "Please change the e-mail address of my account, I no longer have access to the old one.",
    ],
}
ODD = "The moon is made of green cheese and sings opera at night."
# The signature names three other teams; only a reader that cuts it off sees a ticket about a payment.
HTML_MAIL = """<html><head><style>p {color: red}</style></head><body>
<p>Hello,</p><p>my <b>credit card</b> was charged <i>twice</i> for one order.</p>
<p>Please pay one of the two amounts back.</p>
<p>-- <br>Ann Example<br>Delivery manager, Parcel Warranty Returns Ltd</p></body></html>"""


@dataclass
class Installation:
    """A helpdesk, the router and the connector, all running."""

    desk: Helpdesk
    router: Process
    connector: Process
    folder: Path

    def outcome(self, ticket: str) -> str | None:
        """What the connector did with a ticket, by its store."""
        with sqlite3.connect(self.folder / "connector" / "connect.db") as store:
            row = store.execute("SELECT outcome FROM tickets WHERE ticket = ?", (ticket,)).fetchone()
        return row[0] if row else None

    def handled(self, ticket: str) -> str:
        """What became of a ticket, once it is known; the desk is not asked, so that it has time to answer."""

        def outcome() -> str | None:
            found = self.outcome(ticket)
            return None if found == "writing" else found

        return str(wait_for(f"the outcome of ticket {ticket}", outcome, PATIENCE_SECONDS))

    def moved_to(self, ticket: str) -> str:
        """The queue of a ticket that was moved."""
        assert self.handled(ticket) == "moved"
        return self.desk.queue_of(ticket)


DESKS: dict[str, type[Helpdesk]] = {desk.kind: desk for desk in (RequestTracker, DjangoHelpdesk)}


@pytest.fixture(scope="module", params=list(DESKS))
def installation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp(request.param)
    port = free_port()
    webhook = f"http://127.0.0.1:{port}/webhook/{request.param}"
    try:
        desk = DESKS[request.param](folder / "desk", webhook, WEBHOOK_SECRET)
    except NotInstalled as why:
        pytest.skip(str(why))
    routing = router(folder / "router")
    (folder / "connector").mkdir()
    (folder / "connector" / "connect.toml").write_text(configuration(desk, routing.url, port))
    connecting = connector(desk, routing.url, folder / "connector")
    connecting.port, connecting.url = port, f"http://127.0.0.1:{port}"
    with routing, desk.server, connecting:
        yield Installation(desk, routing, connecting, folder)


def test_a_new_ticket_moves_to_its_queue(installation: Installation) -> None:
    ticket = installation.desk.create("A question", TEXTS["payment"][0])
    assert installation.moved_to(ticket) == QUEUES["payment"]
    assert installation.desk.notes(ticket) == []


def test_an_odd_ticket_stays_with_a_note(installation: Installation) -> None:
    ticket = installation.desk.create("Something else", ODD)
    assert installation.handled(ticket) == "noted"
    (note,) = installation.desk.notes(ticket)
    assert note.startswith("Larkfield router: please look at this ticket. Suggestion: ")
    assert re.search(r"team \w+, \d+% sure", note)
    assert "It does not read like anything these teams answer." in note
    assert f"{installation.router.url}/review?source={installation.desk.kind}&ticket={ticket}" in note
    assert installation.desk.queue_of(ticket) == installation.desk.entry


def test_an_html_mail_with_a_signature_is_read_right(installation: Installation) -> None:
    ticket = installation.desk.create("Charged twice", HTML_MAIL, html=True)
    assert installation.moved_to(ticket) == QUEUES["payment"]


def test_a_solved_ticket_becomes_feedback(installation: Installation) -> None:
    desk = installation.desk
    ticket = desk.create("A question", TEXTS["returns"][0])
    assert installation.moved_to(ticket) == QUEUES["returns"]
    desk.move(ticket, QUEUES["warranty"])  # the router was wrong, says the agent
    desk.solve(ticket)

    def stored() -> tuple[str, ...] | None:
        with sqlite3.connect(installation.folder / "router" / "feedback.db") as database:
            query = "SELECT source, actual, predicted FROM feedback WHERE ticket_id = ?"
            return database.execute(query, (ticket,)).fetchone()  # type: ignore[no-any-return]

    assert wait_for("feedback", stored, PATIENCE_SECONDS) == (desk.kind, "warranty", "returns")


def test_a_ticket_that_an_agent_moved_before_the_answer_stays_where_it_is(installation: Installation) -> None:
    kill(installation.router)  # no answer comes before the agent acts
    try:
        ticket = installation.desk.create("A question", TEXTS["delivery"][0])
        installation.desk.move(ticket, QUEUES["account"])
    finally:
        installation.router.__enter__()
    assert installation.handled(ticket) == "left_to_agent"
    assert installation.desk.queue_of(ticket) == QUEUES["account"]
    assert installation.desk.notes(ticket) == []


@pytest.mark.timeout(1500)
def test_every_ticket_is_handled_once_though_all_three_are_killed(installation: Installation) -> None:
    desk, before = installation.desk, set(installation.desk.tickets())
    expected: dict[str, str] = {}
    routing = [(team, text) for team, texts in TEXTS.items() for text in texts]

    def create(count: int) -> None:
        for _ in range(count):
            number = len(expected)
            team, text = routing[number % len(routing)]
            expected[desk.create(f"Question {number}", text)] = QUEUES[team]

    create(TICKETS // 4)
    kill(installation.router)
    time.sleep(AWAY_SECONDS)
    installation.router.__enter__()

    create(TICKETS // 4)
    desk.kill()
    time.sleep(AWAY_SECONDS)
    desk.start()

    create(TICKETS // 4)
    kill(installation.connector)  # in the middle of its work
    create(TICKETS // 8)  # nobody takes these webhooks
    installation.connector.__enter__()
    create(TICKETS - len(expected))

    def done() -> bool:
        time.sleep(0.5)
        return all(installation.outcome(ticket) not in (None, "writing") for ticket in expected)

    wait_for("every ticket's outcome", done, PATIENCE_SECONDS)
    assert set(desk.tickets()) - before == set(expected)
    assert len(expected) == TICKETS
    assert {ticket: desk.queue_of(ticket) for ticket in expected} == expected
    moves = {ticket: desk.moves_by_router(ticket) for ticket in expected}
    assert set(moves.values()) == {1}, {ticket: count for ticket, count in moves.items() if count != 1}
    assert not [ticket for ticket in expected if desk.notes(ticket)]
    figures = scrape(installation.connector.port)
    assert figures[f'larkfield_connect_parked{{desk="{desk.kind}"}}'] == 0
    assert (
        figures[f'larkfield_connect_events_total{{desk="{desk.kind}",origin="webhook",result="repeated"}}']
        > 0
    )
