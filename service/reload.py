"""Another bundle without a pause: verified and warmed first, swapped in for all workers or for none.

    python -m service.reload --url http://127.0.0.1:8000 --bundle runs/new
    python -m service.reload --url http://127.0.0.1:8000 --previous

Both call `POST /admin/reload` with the key in LARKFIELD_ADMIN_KEY. With several workers the supervisor asks
each to prepare the bundle; only when every one has it ready are they told to swap. Requests in flight finish
on the bundle they began with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request

from models.bundle import BundleError
from service.channel import Message, WorkerEnd
from service.core import Service
from service.problems import Problem
from service.routes import problem_responses, service_of, takes_json
from service.runtime import Runtime
from service.schema import ModelName, ReloadRequest, ReloadResponse

log = logging.getLogger("larkfield.reload")

router = APIRouter()


class Refused(Exception):
    """A reload that did not happen, and why."""


class Reloader:
    """Switches bundles: alone, or together with the other workers through the supervisor."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._prepared: Runtime | None = None
        self.channel: WorkerEnd | None = None
        self._watched: object = None
        if service.settings.bundle_watch_seconds and service.metrics.worker == 0:
            service.on_start.append(self._watch)

    async def reload(self, folder: Path | None, previous: bool) -> dict[str, Any]:
        """Switch to `folder`, to the previous bundle, or to the same again; Refused if it is not sound."""
        service = self._service
        if self.channel is not None:
            return await self._reload_all(self.channel, folder, previous)
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

    async def _reload_all(self, channel: WorkerEnd, folder: Path | None, previous: bool) -> dict[str, Any]:
        """Through the supervisor, which also knows what a worker that was replaced served before."""
        runtime = self._service.runtime
        answer = await channel.ask(
            {
                "op": "reload",
                "bundle": str(self._resolved(folder)),
                "previous": previous,
                "serving": runtime.config.digest if runtime else None,
            }
        )
        if answer.get("error"):
            raise Refused(answer["error"])
        return {"workers": answer["workers"]}

    def _resolved(self, folder: Path | None) -> Path:
        """The folder, or the one that is served; a link is followed now, not when it leads elsewhere."""
        runtime = self._service.runtime
        current = runtime.bundle.folder if runtime else self._service.settings.bundle
        return Path(os.path.realpath(folder or current))

    async def prepare(self, folder: Path, digest: str | None) -> str | None:
        """Verify, open and warm a bundle beside the one that answers; returns what is wrong with it.

        With a `digest` it must be that very bundle; the previous one is still in memory.
        """
        service = self._service
        if digest is not None and service.previous is not None and service.previous.config.digest == digest:
            self._prepared = service.previous
            return None
        try:
            prepared = await asyncio.to_thread(service.load, folder)
            if digest is not None and prepared.config.digest != digest:
                return f"{folder.name}: holds another bundle by now"
            self._prepared = prepared
        except BundleError as error:
            return reason(error, folder)
        except Exception as error:
            log.exception("a bundle could not be loaded")
            return f"the bundle could not be loaded ({type(error).__name__})"
        return None

    def commit(self) -> None:
        """Answer with the prepared bundle from now on."""
        if self._prepared is not None:
            self._service.swap(self._prepared)
            self._service.metrics.reloads.labels("switched").inc()
            log.info("bundle switched", extra={"version": self._prepared.version})
        self._prepared = None

    def abort(self) -> None:
        """Forget the prepared bundle."""
        self._prepared = None

    async def handle(self, message: Message) -> None:
        """What the supervisor says."""
        assert self.channel is not None
        if message["op"] == "prepare":
            error = await self.prepare(Path(message["bundle"]), message["digest"])
            digest = self._prepared.config.digest if self._prepared else None
            self.channel.send(
                {"op": "prepared", "reload": message["reload"], "error": error, "digest": digest}
            )
        elif message["op"] == "commit":
            if self._prepared is None:  # this worker was started in between
                await self.prepare(Path(message["bundle"]), message["digest"])
            self.commit()
            self.channel.send({"op": "committed", "reload": message["reload"]})
        elif message["op"] == "abort":
            self.abort()

    def _watch(self) -> None:
        asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Reload when the bundle's folder leads elsewhere or its config was replaced."""
        settings = self._service.settings
        seen = await asyncio.to_thread(identity, settings.bundle)
        while True:
            await asyncio.sleep(settings.bundle_watch_seconds)
            now = await asyncio.to_thread(identity, settings.bundle)
            if now == seen or now is None or self._service.draining:
                continue
            seen = now
            try:
                await self.reload(settings.bundle, previous=False)
            except Refused as refused:
                self._service.metrics.reloads.labels("refused").inc()
                log.warning("the changed bundle was refused", extra={"reason": str(refused)})


def identity(folder: Path) -> object:
    """What changes when another bundle stands at this path; None while none stands there."""
    try:
        status = (folder / "config.json").stat()
    except OSError:
        return None
    return os.path.realpath(folder), status.st_ino, status.st_mtime_ns, status.st_size


def reason(error: BundleError, folder: Path) -> str:
    """The error with names of files, but without the path to them."""
    return f"{Path(error.file).name}: {error.reason}".replace(str(folder), folder.name or "the folder")


@router.post(
    "/admin/reload",
    summary="Switch to another bundle",
    tags=["operation"],
    response_model=ReloadResponse,
    dependencies=[Depends(takes_json)],
    responses=problem_responses(401, 403, 409, 413, 415, 422, 500),
)
async def admin_reload(order: ReloadRequest, request: Request) -> ReloadResponse:
    """All workers answer with the new bundle, or, if it is not sound (409), all stay with the old one."""
    service = service_of(request)
    reloader: Reloader = request.app.state.reloader
    folder = Path(order.bundle) if order.bundle else None
    try:
        done = await reloader.reload(folder, order.previous)
    except Refused as refused:
        service.metrics.reloads.labels("refused").inc()
        log.warning("reload refused", extra={"reason": str(refused)})
        raise Problem(409, f"The bundle was refused, the old one stays. {refused}") from None
    runtime, previous = service.loaded(), service.previous
    return ReloadResponse(
        model=ModelName(name=runtime.name, version=runtime.version),
        previous=ModelName(name=previous.name, version=previous.version) if previous else None,
        workers=done["workers"],
    )


def install(app: FastAPI, service: Service) -> None:
    """Open POST /admin/reload."""
    app.state.reloader = Reloader(service)
    app.include_router(router)


def main() -> int:
    """Order a reload from the command line."""
    parser = argparse.ArgumentParser(prog="python -m service.reload", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--bundle", type=Path, help="the folder to serve from now on; default: the same again")
    what.add_argument("--previous", action="store_true", help="go back to the bundle served before")
    arguments = parser.parse_args()
    order: dict[str, Any] = {"previous": arguments.previous}
    if arguments.bundle:
        order["bundle"] = str(arguments.bundle.absolute())
    request = urllib.request.Request(
        arguments.url.rstrip("/") + "/admin/reload",
        json.dumps(order).encode(),
        {"content-type": "application/json", "x-api-key": os.environ.get("LARKFIELD_ADMIN_KEY", "")},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            print(json.dumps(json.load(response)))
    except urllib.error.HTTPError as error:
        print(json.load(error).get("detail", error.reason), file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{arguments.url} does not answer: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
