"""The supervisor starts worker processes, replaces those that end, and coordinates reloads and shutdown.

All workers accept connections from one listening socket, which the supervisor keeps open. If a worker dies,
only the requests it was answering are lost; the other workers accept new connections. The supervisor answers
no requests, so no request can crash it. It keeps a copy of the served bundle, so that a new worker serves the
same bundle as the others even if the bundle's folder has changed.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import Any

from service.inference.reload import UNDER_WAY
from service.observe.metrics import PREFIX, clear_gauges
from service.observe.temporary_folder import TemporaryFolder
from service.process.messages import Lines, Message, send
from service.process.worker import CANNOT_SERVE
from service.settings import Settings

log = logging.getLogger("larkfield.supervisor")

_TICK_SECONDS = 0.1
_BEAT_LOST_SECONDS = 30.0
_RELOAD_SECONDS = 60.0
# A worker that ends soon after its start is replaced after a growing pause.
_YOUNG_SECONDS = 5.0
_MOST_PAUSE_SECONDS = 10.0


@dataclass
class Worker:
    """One worker; if its process ends, it gets a new one."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    lines: Lines = field(default_factory=Lines)
    ready: bool = False
    started: float = 0.0
    last_beat: float = 0.0
    pause: float = 0.0
    start_at: float = 0.0


@dataclass
class Reload:
    """A reload under way: the worker that asked, and the workers that have not answered yet."""

    asker: Worker
    question: int
    bundle: str
    digest: str | None
    serving: str | None
    until: float
    awaited: set[int]
    committing: bool = False


class Supervisor:
    """Runs the workers until a signal; `run` returns the exit status."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._workers = [Worker(number) for number in range(settings.workers)]
        self._selector = selectors.DefaultSelector()
        self._bundle = os.path.realpath(settings.bundle)
        self._previous: tuple[str, str | None] | None = None  # folder and digest
        self._reload: Reload | None = None
        self._reloads = 0
        self._ending = False
        self._failed = False
        self._was_ready = False  # whether any worker was ever ready
        self._readiness_sent: tuple[int, int] | None = None
        self._clock = 0.0  # seconds that this process was awake
        self._last_tick = monotonic()
        self._temporary = TemporaryFolder(PREFIX)
        self._folder = settings.metrics_folder or self._temporary.path
        self._copy = self._copied(self._bundle)

    def run(self) -> int:
        """Start the workers and keep them running until SIGTERM, SIGINT or SIGHUP."""
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
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
            self._temporary.remove()
        return CANNOT_SERVE if self._failed else 0

    def _on_signal(self, sig: int, _: FrameType | None) -> None:
        log.info("ending", extra={"signal": signal.Signals(sig).name})
        self._ending = True

    def _copied(self, bundle: str) -> str | None:
        """A copy of a bundle's folder, for workers that are started later; None if copying fails."""
        target = self._temporary.path / f"bundle-{self._reloads}"
        try:
            shutil.copytree(bundle, target)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(target, ignore_errors=True)
            log.warning("the bundle was not copied", extra={"reason": str(error)})
            return None
        for older in self._temporary.path.glob("bundle-*"):
            if older != target:
                shutil.rmtree(older, ignore_errors=True)
        return str(target)

    def _start(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {"LARKFIELD_METRICS_FOLDER": str(self._folder)}
        command = [sys.executable, "-m", "service.process.worker", str(worker.number)]
        command += [
            str(self._listener.fileno()),
            str(theirs.fileno()),
            self._bundle,
            self._copy or self._bundle,
        ]
        worker.process = subprocess.Popen(
            command,
            env=environment,
            # The worker inherits the folder's lock, so the folder is kept while any process uses it.
            pass_fds=(self._listener.fileno(), theirs.fileno(), self._temporary.lock),
            start_new_session=True,  # Ctrl-C reaches only the supervisor, which then ends the workers
        )
        theirs.close()
        worker.channel, worker.lines, worker.ready = ours, Lines(), False
        worker.started = worker.last_beat = self._clock
        self._selector.register(ours, selectors.EVENT_READ, worker)
        log.info("worker started", extra={"worker": worker.number, "pid": worker.process.pid})

    def _tick(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            self._read(key.data)
        # If the whole machine was suspended, no worker is to blame for missing heartbeats.
        now = monotonic()
        self._clock += min(now - self._last_tick, 2 * _TICK_SECONDS)
        self._last_tick = now
        for worker in self._workers:
            self._check_worker(worker)
        self._send_readiness()
        if self._reload is not None and now > self._reload.until:
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
        worker.last_beat = self._clock
        for message in worker.lines.feed(data):
            self._handle(worker, message)

    def _close(self, worker: Worker) -> None:
        if worker.channel is not None:
            self._selector.unregister(worker.channel)
            worker.channel.close()
            worker.channel = None
        worker.ready = False
        if self._reload is not None:
            self._reload_step_done(
                self._reload, worker, error=None
            )  # its replacement will load the current bundle

    def _check_worker(self, worker: Worker) -> None:
        """Start a worker whose pause is over, kill one without heartbeat, replace one that ended."""
        if worker.process is None:
            if self._clock >= worker.start_at and not self._ending:
                self._start(worker)
            return
        status = worker.process.poll()
        if status is None:
            if self._clock - worker.last_beat > _BEAT_LOST_SECONDS:
                log.error("worker without heartbeat killed", extra={"worker": worker.number})
                worker.process.kill()
            return
        self._close(worker)
        worker.process = None
        clear_gauges(self._folder, worker.number)
        if status == CANNOT_SERVE and not self._was_ready:
            self._failed = self._ending = True
            return
        young = self._clock - worker.started < _YOUNG_SECONDS
        worker.pause = min(_MOST_PAUSE_SECONDS, max(0.1, worker.pause * 2)) if young else 0.0
        worker.start_at = self._clock + worker.pause
        log.error("worker ended, replaced", extra={"worker": worker.number, "status": status})

    def _send_readiness(self) -> None:
        """Tell every worker how many are missing when that changes, after all were ready once."""
        ready = sum(worker.ready for worker in self._workers)
        self._was_ready |= ready > 0
        known = (ready, sum(worker.channel is not None for worker in self._workers))
        if known != self._readiness_sent and (
            self._readiness_sent is not None or ready == len(self._workers)
        ):
            self._readiness_sent = known
            self._broadcast(self._workers, {"op": "readiness", "missing": len(self._workers) - ready})

    # ------------------------------------------------------------------------------------------ reload

    def _handle(self, worker: Worker, message: Message) -> None:
        operation = message["op"]
        if operation == "ready":
            worker.ready = True
        elif operation == "reload":
            self._begin_reload(worker, message)
        elif self._reload is not None and message.get("reload") == self._reloads:
            self._on_reload_message(self._reload, worker, message)

    def _begin_reload(self, worker: Worker, message: Message) -> None:
        if self._reload is not None:
            self._reply(worker, message["question"], UNDER_WAY)
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
        self._broadcast(living, {"op": "prepare", "bundle": bundle, "digest": digest})

    def _on_reload_message(self, reload: Reload, worker: Worker, message: Message) -> None:
        error = message.get("error")
        if message["op"] == "prepared" and error is None:
            reload.digest = reload.digest or message["digest"]
            if message["digest"] != reload.digest:
                error = "the folder changed while the workers read it"
        self._reload_step_done(reload, worker, error)

    def _reload_step_done(self, reload: Reload, worker: Worker, error: str | None) -> None:
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
            self._copy = self._copied(self._bundle)
            self._broadcast(living, {"op": "commit", "bundle": reload.bundle, "digest": reload.digest})
        else:
            self._answer_reload(None)

    def _answer_reload(self, error: str | None) -> None:
        reload, self._reload = self._reload, None
        assert reload is not None
        if error is not None and not reload.committing:
            self._broadcast(self._workers, {"op": "abort"})
        self._reply(reload.asker, reload.question, error)

    def _broadcast(self, workers: list[Worker], message: dict[str, Any]) -> None:
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
        """Tell every worker to drain and end; kill those that do not end in time."""
        self._broadcast(self._workers, {"op": "end"})
        until = monotonic() + self._settings.drain_seconds + self._settings.shutdown_seconds + 5.0
        for worker in self._workers:
            if worker.process is None:
                continue
            try:
                worker.process.wait(max(0.1, until - monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker did not end, killed", extra={"worker": worker.number})
                worker.process.kill()
        self._listener.close()
