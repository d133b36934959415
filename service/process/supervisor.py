"""Several workers on one port: started, watched, replaced, told to switch bundles together, ended together.

Each worker number has a listening socket of its own (SO_REUSEPORT: the kernel spreads connections over
them), and the supervisor keeps them all open. A worker that dies loses only what it was answering: what waits
at its socket is taken by the worker that replaces it. The supervisor answers no request, so none can break
it.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from service.observe.metrics import SCRATCH
from service.observe.temporary_folder import Scratch
from service.process.messages import Lines, Message, send
from service.process.worker import CANNOT_SERVE, listen
from service.settings import Settings

log = logging.getLogger("larkfield.supervisor")

_TICK_SECONDS = 0.1
_BEAT_LOST_SECONDS = 30.0
_RELOAD_SECONDS = 60.0
# A worker that dies young is replaced more and more slowly.
_YOUNG_SECONDS = 5.0
_MOST_PAUSE_SECONDS = 10.0


@dataclass
class Worker:
    """One worker number: its socket stays, its process may change."""

    number: int
    listener: socket.socket
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    lines: Lines = field(default_factory=Lines)
    started: float = 0.0
    last_beat: float = 0.0
    pause: float = 0.0
    start_at: float = 0.0


@dataclass
class Reload:
    """A switch of bundles under way: who asked, and whose word is still awaited."""

    asker: Worker
    question: int
    bundle: str
    digest: str | None
    serving: str | None
    until: float
    awaited: set[int]
    committing: bool = False


class Supervisor:
    """Runs until a signal; `run` returns the exit status."""

    def __init__(self, settings: Settings, listeners: list[socket.socket]) -> None:
        self._settings = settings
        self._workers = [Worker(number, listener) for number, listener in enumerate(listeners)]
        self._selector = selectors.DefaultSelector()
        self._bundle = os.path.realpath(settings.bundle)
        self._previous: tuple[str, str | None] | None = None  # folder and digest
        self._reload: Reload | None = None
        self._reloads = 0
        self._ending = False
        self._failed = False
        self._scratch = Scratch(SCRATCH) if settings.metrics_folder is None else None
        self._folder = self._scratch.path if self._scratch else Path(settings.metrics_folder or "")

    def run(self) -> int:
        """Start the workers and keep them until SIGTERM or SIGINT."""
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._on_signal)
        try:
            for worker in self._workers:
                self._start(worker)
            while not self._ending:
                self._tick()
            self._end()
        finally:
            for worker in self._workers:
                if worker.process is not None and worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait()
            if self._scratch is not None:
                self._scratch.remove()
        return CANNOT_SERVE if self._failed else 0

    def _on_signal(self, sig: int, _: FrameType | None) -> None:
        log.info("ending", extra={"signal": signal.Signals(sig).name})
        self._ending = True

    def _start(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {"LARKFIELD_METRICS_FOLDER": str(self._folder)}
        command = [sys.executable, "-m", "service.process.worker", str(worker.number)]
        command += [str(worker.listener.fileno()), str(theirs.fileno()), self._bundle]
        held = [self._scratch.lock] if self._scratch else []  # the folder stays as long as one of them does
        worker.process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=(worker.listener.fileno(), theirs.fileno(), *held),
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then ends them in order
        )
        theirs.close()
        worker.channel, worker.lines = ours, Lines()
        worker.started = worker.last_beat = monotonic()
        self._selector.register(ours, selectors.EVENT_READ, worker)
        log.info("worker started", extra={"worker": worker.number, "pid": worker.process.pid})

    def _tick(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            self._read(key.data)
        for worker in self._workers:
            self._look_after(worker)
        if self._reload is not None and monotonic() > self._reload.until:
            self._answer_reload("a worker did not answer in time")

    def _read(self, worker: Worker) -> None:
        assert worker.channel is not None
        try:
            data = worker.channel.recv(65_536)
        except OSError:
            data = b""
        if not data:
            self._close(worker)
            return
        worker.last_beat = monotonic()
        for message in worker.lines.feed(data):
            self._handle(worker, message)

    def _close(self, worker: Worker) -> None:
        if worker.channel is not None:
            self._selector.unregister(worker.channel)
            worker.channel.close()
            worker.channel = None
        if self._reload is not None:
            self._heard(self._reload, worker, error=None)  # its replacement loads what is current then

    def _look_after(self, worker: Worker) -> None:
        now = monotonic()
        if worker.process is None:
            if now >= worker.start_at and not self._ending:
                self._start(worker)
            return
        status = worker.process.poll()
        if status is None:
            if now - worker.last_beat > _BEAT_LOST_SECONDS:
                log.error("worker hangs, killed", extra={"worker": worker.number})
                worker.process.kill()
            return
        self._close(worker)
        worker.process = None
        self._forget_gauges(worker)
        young = now - worker.started < _YOUNG_SECONDS
        if status == CANNOT_SERVE and young:
            self._failed = self._ending = True
            return
        worker.pause = min(_MOST_PAUSE_SECONDS, max(0.1, worker.pause * 2)) if young else 0.0
        worker.start_at = now + worker.pause
        log.error("worker ended, replaced", extra={"worker": worker.number, "status": status})

    def _forget_gauges(self, worker: Worker) -> None:
        """What a dead worker held open is no longer open; what it counted stays counted."""
        for file in self._folder.glob(f"gauge_*_{worker.number}.db"):
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ reload

    def _handle(self, worker: Worker, message: Message) -> None:
        operation = message["op"]
        if operation == "reload":
            self._begin_reload(worker, message)
        elif self._reload is not None and message.get("reload") == self._reloads:
            self._hear(self._reload, worker, message)

    def _begin_reload(self, worker: Worker, message: Message) -> None:
        if self._reload is not None:
            self._reply(worker, message["question"], "another reload is under way")
            return
        bundle, digest = message["bundle"], None
        if message["previous"]:
            if self._previous is None:
                self._reply(worker, message["question"], "there is no previous bundle")
                return
            bundle, digest = self._previous
        self._reloads += 1
        living = [other for other in self._workers if other.channel is not None]
        self._reload = Reload(
            worker,
            message["question"],
            bundle,
            digest,
            message["serving"],
            monotonic() + _RELOAD_SECONDS,
            {other.number for other in living},
        )
        self._tell(living, {"op": "prepare", "bundle": bundle, "digest": digest})

    def _hear(self, reload: Reload, worker: Worker, message: Message) -> None:
        error = message.get("error")
        if message["op"] == "prepared" and error is None:
            reload.digest = reload.digest or message["digest"]
            if message["digest"] != reload.digest:
                error = "the folder changed while the workers read it"
        self._heard(reload, worker, error)

    def _heard(self, reload: Reload, worker: Worker, error: str | None) -> None:
        if error is not None and not reload.committing:
            self._answer_reload(error)
            return
        reload.awaited.discard(worker.number)
        if reload.awaited:
            return
        if not reload.committing:
            reload.committing = True
            living = [other for other in self._workers if other.channel is not None]
            reload.awaited = {other.number for other in living}
            self._previous, self._bundle = (self._bundle, reload.serving), reload.bundle
            self._tell(living, {"op": "commit", "bundle": reload.bundle, "digest": reload.digest})
        else:
            self._answer_reload(None)

    def _answer_reload(self, error: str | None) -> None:
        reload, self._reload = self._reload, None
        assert reload is not None
        if error is not None and not reload.committing:
            self._tell(self._workers, {"op": "abort"})
        self._reply(reload.asker, reload.question, error)

    def _tell(self, workers: list[Worker], message: dict[str, Any]) -> None:
        for worker in workers:
            if worker.channel is not None:
                send(worker.channel, {**message, "reload": self._reloads})

    def _reply(self, worker: Worker, question: int, error: str | None) -> None:
        living = sum(other.channel is not None for other in self._workers)
        if worker.channel is not None:
            answer = {"op": "answer", "question": question, "error": error, "workers": living}
            send(worker.channel, answer)

    # --------------------------------------------------------------------------------------------- end

    def _end(self) -> None:
        """SIGTERM to every worker; each drains by itself. Those that do not end are killed."""
        living = [worker for worker in self._workers if worker.process is not None]
        for worker in living:
            assert worker.process is not None
            if worker.process.poll() is None:
                worker.process.terminate()
        until = monotonic() + self._settings.drain_seconds + self._settings.shutdown_seconds + 5.0
        for worker in living:
            assert worker.process is not None
            try:
                worker.process.wait(max(0.1, until - monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker did not end, killed", extra={"worker": worker.number})
                worker.process.kill()
        for worker in self._workers:
            worker.listener.close()


def listeners(settings: Settings) -> tuple[int, list[socket.socket]]:
    """The port, and a listening socket for each worker; one shared by all where the kernel cannot spread."""
    spread = sys.platform == "linux" and settings.workers > 1
    if spread and settings.port:
        # Sharing would also let a second service in unnoticed: whoever has the port already is told first.
        listen(settings.host, settings.port).close()
    first = listen(settings.host, settings.port, shared=spread)
    port: int = first.getsockname()[1]
    if not spread:
        return port, [first] * settings.workers
    return port, [first, *(listen(settings.host, port, shared=True) for _ in range(settings.workers - 1))]
