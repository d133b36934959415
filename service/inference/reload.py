"""Switches to another bundle without downtime: the new one is verified and warmed up before the swap.

With several workers, the supervisor asks each to prepare the bundle. When all have prepared it, it tells them
to swap. Requests in flight finish with the bundle they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from models.bundle import BundleError
from service.inference.runtime import Runtime
from service.inference.service import Service

log = logging.getLogger("larkfield.reload")

UNDER_WAY = "another reload is under way"
_MOST_PAUSE_SECONDS = 60.0


class Refused(Exception):
    """The reload was refused; the message says why. `busy`: another reload is under way."""

    def __init__(self, reason: str, busy: bool = False) -> None:
        super().__init__(reason)
        self.busy = busy


class Reloader:
    """Switches bundles in this worker, or in all workers through the supervisor."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self.prepared: Runtime | None = None
        # Sends a question to the supervisor and returns the answer; None if there is only one worker.
        self.ask_supervisor: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
        self._watched: object = None
        if service.settings.bundle_watch_seconds and service.metrics.worker == 0:
            service.on_start.append(self._watch)

    async def reload(self, folder: Path | None, previous: bool) -> dict[str, Any]:
        """Switch to `folder` or the previous bundle, or reload; Refused if the bundle is not valid."""
        service = self._service
        if self.ask_supervisor is not None:
            return await self._reload_all(folder, previous)
        if previous:
            if service.previous is None:
                raise Refused("there is no previous bundle")
            folder, digest = service.previous.bundle.folder, service.previous.config.digest
        else:
            folder, digest = self._resolved(folder), None
        async with self._lock:
            error = await self.prepare(folder, digest)
            if error:
                raise Refused(error)
            self.commit()
        return {"workers": 1}

    async def _reload_all(self, folder: Path | None, previous: bool) -> dict[str, Any]:
        """Ask the supervisor; it also knows the previous bundle if this worker was replaced meanwhile."""
        assert self.ask_supervisor is not None
        runtime = self._service.runtime
        answer = await self.ask_supervisor(
            {
                "op": "reload",
                "bundle": str(self._resolved(folder)),
                "previous": previous,
                "serving": runtime.config.digest if runtime else None,
            }
        )
        if answer.get("error"):
            raise Refused(answer["error"], busy=answer["error"] == UNDER_WAY)
        return {"workers": answer["workers"]}

    def _resolved(self, folder: Path | None) -> Path:
        """The real path of the folder, or of the served one; a symbolic link may change later."""
        runtime = self._service.runtime
        current = runtime.bundle.folder if runtime else self._service.settings.bundle
        return Path(os.path.realpath(folder or current))

    async def prepare(self, folder: Path, digest: str | None) -> str | None:
        """Verify, open and warm up a bundle; return what is wrong with it, or None.

        If `digest` is given, the bundle must have it; the previous bundle is still in memory.
        """
        service = self._service
        if digest is not None and service.previous is not None and service.previous.config.digest == digest:
            self.prepared = service.previous
            return None
        try:
            prepared = await asyncio.to_thread(service.load, folder)
            if digest is not None and prepared.config.digest != digest:
                return f"{folder.name}: the folder now has another bundle"
            self.prepared = prepared
        except BundleError as error:
            return reason(error, folder)
        except Exception as error:
            log.exception("a bundle could not be loaded")
            return f"the bundle could not be loaded ({type(error).__name__})"
        return None

    def commit(self) -> None:
        """Switch to the prepared bundle."""
        if self.prepared is not None:
            self._service.swap(self.prepared)
            self._service.metrics.reloads.labels("switched").inc()
            log.info("bundle switched", extra={"version": self.prepared.version})
            asyncio.get_running_loop().run_in_executor(None, trim_memory)
        self.prepared = None

    def abort(self) -> None:
        """Discard the prepared bundle."""
        self.prepared = None

    def _watch(self) -> None:
        asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Reload when the bundle's link points elsewhere or its config was replaced."""
        settings = self._service.settings
        seen = refused_before = await asyncio.to_thread(identity, settings.bundle)
        pause = settings.bundle_watch_seconds
        while True:
            await asyncio.sleep(pause)
            now = await asyncio.to_thread(identity, settings.bundle)
            if now == seen or now is None or self._service.draining:
                continue
            try:
                await self.reload(settings.bundle, previous=False)
                seen, pause = now, settings.bundle_watch_seconds
            except Refused as refused:  # it may still be being copied: try again with growing pauses
                if now == refused_before:
                    pause = max(pause, min(2 * pause, _MOST_PAUSE_SECONDS))
                    continue
                refused_before, pause = now, settings.bundle_watch_seconds
                if not refused.busy:
                    self._service.metrics.reloads.labels("refused").inc()
                log.warning("the changed bundle was refused", extra={"reason": str(refused)})


def trim_memory() -> None:
    """Return the freed memory of replaced bundles to the system; glibc's allocator keeps it otherwise."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def identity(folder: Path) -> object:
    """Identifies the bundle at this path: real path, inode, time and size; None if there is none."""
    try:
        status = (folder / "config.json").stat()
    except OSError:
        return None
    return os.path.realpath(folder), status.st_ino, status.st_mtime_ns, status.st_size


def reason(error: BundleError, folder: Path) -> str:
    """The error's message, with file names instead of paths."""
    return f"{Path(error.file).name}: {error.reason}".replace(str(folder), folder.name or "the folder")
