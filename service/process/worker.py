"""One worker process: runs the application in a uvicorn server and shuts down without losing requests."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
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
from service.process.messages import Message, SupervisorChannel
from service.settings import Settings

log = logging.getLogger("larkfield.worker")

_BEAT_SECONDS = 2.0
# Longest time that another thread keeps the interpreter while the event loop waits for it.
_SWITCH_SECONDS = 0.001
# Time for TCP handshakes that have begun to complete.
_HANDSHAKE_SECONDS = 0.2
# uvloop accepts one connection of a listening socket between two looks at all connections. While hundreds of
# them are busy, a new one (a health check) would wait for all that came before it, one look for each. A
# worker among several accepts one at a time: it should not take what another could answer sooner.
ACCEPTED_AT_ONCE = 16
# Exit status of a worker that cannot load its bundle; another try would fail in the same way.
CANNOT_SERVE = 3


class Server(uvicorn.Server):
    """Uvicorn's server with draining: /readyz fails first, and later connections are refused."""

    def __init__(
        self, config: uvicorn.Config, app: Application, listener: socket.socket, alone: bool
    ) -> None:
        super().__init__(config)
        self._service = app.state.service
        self._listener = listener
        self._last = alone  # whether no other worker accepts connections after this one
        self._signalled = False
        self.failed = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second signal: end at once.

        The interrupted code may hold a lock of the metrics or the log, so this method must not take one.
        """
        if self._signalled:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        self._signalled = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, sig)

    def end_with_all(self) -> None:
        """Drain because the whole service is shutting down."""
        self._last = True
        self.handle_exit(signal.SIGTERM, None)

    def _drain(self, sig: int) -> None:
        self._service.drain()
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        wait = 0.0 if sig == signal.SIGINT else self._service.settings.drain_seconds
        asyncio.get_running_loop().call_later(wait, setattr, self, "should_exit", True)

    def fail(self) -> None:
        """End because the bundle cannot be served."""
        self.failed = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, accept those whose handshake has begun, then shut down as uvicorn does.

        If other workers remain, they accept the waiting connections.
        """
        if self._last:
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
    copy: Path | None = None,
) -> int:
    """Serve until a signal; return the exit status.

    `channel` is the socket to the supervisor. `bundle` replaces the folder in the settings. If `copy` is
    given, the bundle is read from there.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    raise_file_limit()
    holder: list[Server] = []
    app = create_app(
        settings,
        metrics=Metrics(settings.metrics_folder, number),
        writer=writer,
        on_load_failure=lambda: holder[0].fail(),
        bundle=bundle,
        copy=copy,
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
    server = Server(config, app, listener, alone=channel is None)
    holder.append(server)
    app.state.service.requests = server.server_state.tasks
    app.state.service.on_start.append(_freeze_objects)
    if channel is not None:
        app.state.service.on_start.append(lambda: _connect_supervisor(app, server, channel))
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        app.state.service.on_start.append(lambda: signal.signal(signal.SIGHUP, server.handle_exit))
    more = ACCEPTED_AT_ONCE - 1 if channel is None else 0
    server.run([listener, *(listener.dup() for _ in range(more))])
    return CANNOT_SERVE if server.failed else 0


def _freeze_objects() -> None:
    """Exclude objects created at the start from garbage collection.

    A full collection of all modules takes tens of milliseconds and would delay a ticket.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _connect_supervisor(app: Application, server: Server, channel: socket.socket) -> None:
    """Receive the supervisor's commands, send it heartbeats, and end if it ends."""
    service, reloader = app.state.service, app.state.reloader

    async def handle(message: Message) -> None:
        if message["op"] == "end":
            server.end_with_all()
        elif message["op"] == "readiness":
            service.missing_workers = message["missing"]
        else:
            await _follow(supervisor, reloader, message)

    supervisor = SupervisorChannel(channel, handle)
    reloader.ask_supervisor = supervisor.ask
    supervisor.open(on_lost=server.end_with_all)
    loop = asyncio.get_running_loop()

    def beat() -> None:
        supervisor.send({"op": "beat"})
        loop.call_later(_BEAT_SECONDS, beat)

    beat()
    service.on_swap.append(lambda _: supervisor.send({"op": "ready"}))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor handles it and ends the workers


async def _follow(supervisor: SupervisorChannel, reloader: Reloader, message: Message) -> None:
    """Do one step of a reload of all workers."""
    if message["op"] == "prepare":
        error = await reloader.prepare(Path(message["bundle"]), message["digest"])
        digest = reloader.prepared.config.digest if reloader.prepared else None
        supervisor.send({"op": "prepared", "reload": message["reload"], "error": error, "digest": digest})
    elif message["op"] == "commit":
        if reloader.prepared is None:  # this worker started after the others had prepared the bundle
            await reloader.prepare(Path(message["bundle"]), message["digest"])
        reloader.commit()
        supervisor.send({"op": "committed", "reload": message["reload"]})
    elif message["op"] == "abort":
        reloader.abort()


def refuse_new_connections(listener: socket.socket) -> bool:
    """Drop packets that begin a new connection; handshakes that have begun still complete (Linux).

    Closing a listening socket resets the connections in its queue, and their requests would be lost. A filter
    on the socket drops SYN packets instead. The client sends its SYN again and is then refused.
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


def listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(address)
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run a worker; the supervisor passes number, listening socket, channel, bundle and its copy."""
    number, listener, channel = (int(argument) for argument in sys.argv[1:4])
    bundle, copy = Path(sys.argv[4]), Path(sys.argv[5])
    settings = Settings()
    writer = logs.configure(settings.log_level)
    try:
        sockets = socket.socket(fileno=listener), socket.socket(fileno=channel)
        return serve(settings, sockets[0], writer, number, sockets[1], bundle, copy)
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
