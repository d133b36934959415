"""One worker process: a uvicorn server around the application, and an end at which nothing is lost."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import struct
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from service.app import Application, create_app
from service.http.connection import Protocol
from service.inference.reload import Reloader
from service.observe import logs
from service.observe.logs import Writer
from service.observe.metrics import Metrics
from service.process.messages import Message, WorkerEnd
from service.settings import Settings

log = logging.getLogger("larkfield.worker")

_BEAT_SECONDS = 2.0
# How long a thread that explains or reads a long text may keep the event loop waiting.
_SWITCH_SECONDS = 0.001
# A handshake that has begun is over by then, on any path worth serving.
_HANDSHAKE_SECONDS = 0.2
# Exit status of a worker that cannot serve: another try would fail the same way.
CANNOT_SERVE = 3


class Server(uvicorn.Server):
    """Uvicorn's server; SIGTERM turns readiness red, waits, and only then closes the door."""

    def __init__(self, config: uvicorn.Config, app: Application, listener: socket.socket) -> None:
        super().__init__(config)
        self._service = app.state.service
        self._listener = listener
        self._signalled = False
        self.failed = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end at once.

        A signal may come while a lock of the metrics or the log is held: nothing here may take one.
        """
        if self._signalled:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        self._signalled = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, sig)

    def _drain(self, sig: int) -> None:
        self._service.drain()
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        wait = self._service.settings.drain_seconds if sig == signal.SIGTERM else 0.0
        asyncio.get_running_loop().call_later(wait, setattr, self, "should_exit", True)

    def fail(self) -> None:
        """End because the bundle cannot be served."""
        self.failed = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let no new connection begin, take in those that have, then end as uvicorn does."""
        if refuse_new_connections(self._listener):
            await asyncio.sleep(_HANDSHAKE_SECONDS)
        await self._accept_the_rest()
        await super().shutdown(sockets)

    async def _accept_the_rest(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, OSError):
                return
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> Protocol:
        return Protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )


def serve(
    settings: Settings,
    listener: socket.socket,
    writer: Writer,
    number: int = 0,
    channel: socket.socket | None = None,
    bundle: Path | None = None,
) -> int:
    """Serve until a signal comes; returns the exit status.

    `channel` leads to the supervisor; `bundle` is the one to begin with, if not that of the settings.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    holder: list[Server] = []
    app = create_app(
        settings,
        metrics=Metrics(settings.metrics_folder, number),
        writer=writer,
        on_load_failure=lambda: holder[0].fail(),
        bundle=bundle,
    )
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.shutdown_seconds,  # type: ignore[arg-type]
        backlog=2048,
    )
    server = Server(config, app, listener)
    holder.append(server)
    app.state.service.requests = server.server_state.tasks
    app.state.service.on_start.append(_settle)
    if channel is not None:
        app.state.service.on_start.append(lambda: _join(app, server, channel))
    server.run([listener])
    return CANNOT_SERVE if server.failed else 0


def _settle() -> None:
    """Leave out of every later garbage collection what was made for good at the start.

    A full collection over all modules takes tens of milliseconds, in the middle of some ticket.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _join(app: Application, server: Server, channel: socket.socket) -> None:
    """Listen to the supervisor, tell it that this worker lives, and end when it is gone."""
    reloader: Reloader = app.state.reloader
    supervisor = WorkerEnd(channel, lambda message: _follow(supervisor, reloader, message))
    reloader.ask_supervisor = supervisor.ask
    supervisor.open(on_lost=lambda: server.handle_exit(signal.SIGTERM, None))
    loop = asyncio.get_running_loop()

    def beat() -> None:
        supervisor.send({"op": "beat"})
        loop.call_later(_BEAT_SECONDS, beat)

    beat()


async def _follow(supervisor: WorkerEnd, reloader: Reloader, message: Message) -> None:
    """Do what the supervisor says about a reload of all workers."""
    if message["op"] == "prepare":
        error = await reloader.prepare(Path(message["bundle"]), message["digest"])
        digest = reloader.prepared.config.digest if reloader.prepared else None
        supervisor.send({"op": "prepared", "reload": message["reload"], "error": error, "digest": digest})
    elif message["op"] == "commit":
        if reloader.prepared is None:  # this worker was started in between
            await reloader.prepare(Path(message["bundle"]), message["digest"])
        reloader.commit()
        supervisor.send({"op": "committed", "reload": message["reload"]})
    elif message["op"] == "abort":
        reloader.abort()


def refuse_new_connections(listener: socket.socket) -> bool:
    """Drop what would begin a connection, and let those that have begun complete (Linux).

    Closing a socket that listens resets what waits in its queue: requests would be lost. A filter on the
    socket drops SYN packets instead; a client that is not answered tries again and is then refused.
    """
    if sys.platform != "linux":
        return False
    load, mask, compare, leave = 0x30, 0x54, 0x15, 0x06  # classic BPF, <linux/bpf_common.h>
    program = struct.pack(
        "=" + "HBBI" * 5,
        *(load, 0, 0, 13),  # the flags of the TCP header
        *(mask, 0, 0, 0x12),  # ACK and SYN
        *(compare, 0, 1, 0x02),  # SYN alone:
        *(leave, 0, 0, 0),  # drop
        *(leave, 0, 0, 0xFFFFFFFF),  # anything else: keep
    )
    buffer = ctypes.create_string_buffer(program)
    attach_filter = 26  # SO_ATTACH_FILTER
    try:
        listener.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("@HP", 5, ctypes.addressof(buffer)))
    except OSError:
        return False
    return True


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; `shared` lets several sockets of this user listen on the same port."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(address)
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def main() -> int:
    """A worker that the supervisor starts: number, listening socket, channel."""
    number, listener, channel = (int(argument) for argument in sys.argv[1:4])
    bundle = Path(sys.argv[4])
    settings = Settings()
    writer = logs.configure(settings.log_level)
    try:
        sockets = socket.socket(fileno=listener), socket.socket(fileno=channel)
        return serve(settings, sockets[0], writer, number, sockets[1], bundle)
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
