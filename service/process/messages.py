"""Messages between the supervisor and a worker: JSON objects, one per line, over a socket pair."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("larkfield.channel")

Message = dict[str, Any]


def send(channel: socket.socket, message: Message) -> bool:
    """Send one message; False if the other process has ended."""
    try:
        channel.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


class Lines:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are now complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


class SupervisorChannel:
    """A worker's connection to the supervisor: sends questions, receives answers and commands."""

    def __init__(self, channel: socket.socket, handle: Callable[[Message], Awaitable[None]]) -> None:
        self._channel = channel
        self._handle = handle
        self._lines = Lines()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, on_lost: Callable[[], None]) -> None:
        """Begin to receive; `on_lost` is called once if the supervisor ends."""
        self._channel.setblocking(False)
        self._on_lost = on_lost
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._readable)

    def send(self, message: Message) -> None:
        """Send without waiting; messages are far smaller than the socket's buffer."""
        send(self._channel, message)

    async def ask(self, message: Message) -> Message:
        """Send a question and wait for its answer."""
        self._number += 1
        question = {**message, "question": self._number}
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = answer
        self.send(question)
        return await answer

    def _readable(self) -> None:
        try:
            data = self._channel.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._on_lost()
            return
        for message in self._lines.feed(data):
            if message.get("op") == "answer":
                answer = self._asked.pop(message["question"], None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            else:
                task = asyncio.ensure_future(self._handle(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
