"""The running connector: a web server, and for each desk two threads: one handles events, one searches."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from service.client import Client
from service.connect import adapters
from service.connect.config import Config, ConfigError, store_path
from service.connect.desk import Desk
from service.connect.events import EventStore
from service.connect.metrics import Metrics
from service.connect.sweep import Sweeper
from service.connect.webhook import MOST_REQUESTS, Receiver, create_app
from service.connect.worker import Worker

log = logging.getLogger("larkfield.connect")

_END_SECONDS = 30.0  # for the event that is being handled: its calls have limits of their own


@dataclass
class Parts:
    """What the commands work with."""

    config: Config
    store: EventStore
    metrics: Metrics
    router: Client
    desks: dict[str, Desk]
    workers: dict[str, Worker] = field(default_factory=dict)


@contextlib.contextmanager
def assembled(config: Config, path: Path) -> Iterator[Parts]:
    """Everything but the threads; ConfigError names the desk whose secret is missing."""
    desks, key = {}, _named("router", lambda: config.router.secret("api_key"))
    for name, desk in config.desks.items():
        desks[name] = _named(f"desks.{name}", lambda desk=desk: adapters.opened(desk))
        _named(f"desks.{name}", lambda desk=desk: desk.secret("webhook_secret"))
    try:
        store = EventStore(store_path(config, path))
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"connect.store: {store_path(config, path)} cannot be used: {error}") from None
    metrics = Metrics(store, list(desks))
    with contextlib.closing(store), Client(config.router.url, api_key=key, tries=2) as router:
        parts = Parts(config, store, metrics, router, desks)
        page = config.router.page or config.router.url
        for name, desk in config.desks.items():
            parts.workers[name] = Worker(name, desk, desks[name], store, metrics, router, page)
        yield parts


def _named(place, read):  # type: ignore[no-untyped-def]
    """What `read()` returns; a ConfigError also says in which table the key is."""
    try:
        return read()
    except ConfigError as error:
        raise ConfigError(f"{place}.{error}") from None


def run(parts: Parts) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. StoreBusy if another connector runs."""
    parts.store.own()
    loops: list[Worker | Sweeper] = list(parts.workers.values())
    for name, desk in parts.config.desks.items():
        if desk.sweep_seconds:
            wake = parts.workers[name].wake
            loops.append(
                Sweeper(name, desk.sweep_seconds, parts.desks[name], parts.store, parts.metrics, wake)
            )
    threads = [threading.Thread(target=loop.run, name=loop.name, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(_receivers(parts), parts.store, parts.metrics),
            host=parts.config.connect.host,
            port=parts.config.connect.port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=5,
        )
    )
    try:
        server.run()
    except SystemExit:  # the address is taken; uvicorn has logged it
        return 2
    finally:
        for loop in loops:
            loop.stop()
        for thread in threads:
            thread.join(_END_SECONDS)
    return 0


def _receivers(parts: Parts) -> dict[str, Receiver]:
    return {
        name: Receiver(
            parts.desks[name],
            adapters.signature_of(desk),
            desk.secret("webhook_secret"),
            parts.workers[name].wake.set,
        )
        for name, desk in parts.config.desks.items()
    }
