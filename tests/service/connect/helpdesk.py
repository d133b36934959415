"""What the proof asks of a real helpdesk: the deeds of a customer and an agent, and what came of them."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from service.tools.processes import Process

QUEUES = {
    "payment": "Payments",
    "delivery": "Delivery",
    "returns": "Returns",
    "warranty": "Warranty",
    "account": "Accounts",
}
WEBHOOK_SECRET = "only-for-tests-as-well"


class NotInstalled(Exception):
    """The helpdesk is not here; the message says why."""


class Helpdesk(ABC):
    """A real helpdesk; its methods use the desk's own API, as its users. NotInstalled when it is made."""

    kind: str
    entry: str
    server: Process

    @abstractmethod
    def __init__(self, folder: Path, webhook: str, secret: str) -> None:
        """Set up in a folder; `webhook` is the address that takes its events, `secret` what signs them."""

    @abstractmethod
    def configuration(self) -> str:
        """The desk's lines of connect.toml that are its own."""

    @property
    @abstractmethod
    def token(self) -> str:
        """The secret of the connector's user."""

    @abstractmethod
    def create(self, subject: str, text: str, *, html: bool = False) -> str:
        """A customer's new ticket; its id."""

    @abstractmethod
    def queue_of(self, ticket: str) -> str:
        """The name of the queue where the ticket is."""

    @abstractmethod
    def move(self, ticket: str, queue: str) -> None:
        """An agent moves a ticket."""

    @abstractmethod
    def solve(self, ticket: str) -> None:
        """An agent solves a ticket."""

    @abstractmethod
    def notes(self, ticket: str) -> list[str]:
        """The texts of the router's notes on a ticket."""

    @abstractmethod
    def moves_by_router(self, ticket: str) -> int:
        """How often the connector's user moved the ticket, by the desk's own history."""

    @abstractmethod
    def tickets(self) -> list[str]:
        """The ids of all tickets."""

    def kill(self) -> None:
        """End the server and its children at once."""
        kill(self.server)

    def start(self) -> None:
        """Start the server, on the same port as before."""
        self.server.__enter__()


def kill(process: Process) -> None:
    """kill -9, for a process and its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.end()


def configuration(desk: Helpdesk, router: str, port: int) -> str:
    """A whole connect.toml; the desk is called as its kind is."""
    teams = "\n".join(f'{team} = "{queue}"' for team, queue in QUEUES.items())
    return f"""
[router]
url = "{router}"

[connect]
port = {port}

[desks.{desk.kind}]
mode = "move"
entry = ["{desk.entry}"]
token_env = "DESK_TOKEN"
webhook_secret_env = "DESK_WEBHOOK_SECRET"
sweep_seconds = 3
{desk.configuration()}
[desks.{desk.kind}.teams]
{teams}
"""


def connector(desk: Helpdesk, router: str, folder: Path) -> Process:
    """`python -m service.connect run` for one desk; it is not started, so that its port is known before."""
    return Process(
        "connector",
        [sys.executable, "-m", "service.connect", "run", "--config", str(folder / "connect.toml")],
        {"DESK_TOKEN": desk.token, "DESK_WEBHOOK_SECRET": WEBHOOK_SECRET},
        folder=folder,
        ready_path="/healthz",
    )
