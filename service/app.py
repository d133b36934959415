"""The FastAPI application: `create_app(settings)` returns it, ready for a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.schema import BatchRequest, RouteRequest
from service.explain import explanations
from service.feedback import desk, drift, endpoint, shadow
from service.http import admin, pages, routes, tradeoff, upload
from service.http.middleware import Middleware
from service.inference.service import Service
from service.observe import tracing
from service.observe.logs import Writer
from service.observe.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("larkfield")

# Each has `install(app, service)`, which adds routes, explainers, observers and metrics.
PARTS = (explanations, pages, tradeoff, upload, endpoint, desk, drift, shadow, admin, tracing)
_PUBLISH_SECONDS = 1.0
DESCRIPTION = "Routes helpdesk tickets to teams, with a calibrated confidence and an explanation."


class Application(FastAPI):
    """FastAPI inside one `Middleware`, which checks every request and turns errors into problem documents."""

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(**options)
        self.state.service = service
        self.rules = Middleware(super().__call__, service, direct={"/route": routes.route_ticket})
        self.entry: ASGIApp = self.rules
        origins = [origin.strip() for origin in service.settings.cors_origins.split(",") if origin.strip()]
        if origins:
            self.entry = CORSMiddleware(
                self.rules,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
                expose_headers=["x-request-id", "retry-after"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.entry(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """The framework's middleware without its error handling: exceptions reach our `Middleware`."""
        return AsyncExitStackMiddleware(self.router)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, including the schemas of the bodies that FastAPI does not parse."""
        if not self.openapi_schema:
            document = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for model in (RouteRequest, BatchRequest):
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= schema.pop("$defs", {})
                schemas[model.__name__] = schema
            self.openapi_schema = document
        return self.openapi_schema


def create_app(
    settings: Settings | None = None,
    *,
    metrics: Metrics | None = None,
    writer: Writer | None = None,
    on_load_failure: Callable[[], None] | None = None,
    bundle: Path | None = None,
    copy: Path | None = None,
) -> Application:
    """The application of one worker; it loads its bundle in the background after the start.

    `bundle` replaces the folder in the settings. If `copy` is given, the files are read from there.
    """
    settings = settings or Settings()
    service = Service(settings, metrics or Metrics(settings.metrics_folder), writer)
    app = Application(
        service,
        title="Larkfield router",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(service, bundle or settings.bundle, copy, on_load_failure),
    )
    app.include_router(routes.router)
    for part in PARTS:
        part.install(app, service)
    service.metrics.reserve_space()
    return app


def _lifespan(
    service: Service, bundle: Path, copy: Path | None, on_load_failure: Callable[[], None] | None
) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service, bundle, copy, on_load_failure))
        publishing = asyncio.create_task(_publish(service))
        for start in service.on_start:
            start()
        yield
        loading.cancel()
        publishing.cancel()
        service.engine.close()
        for stop in service.on_stop:
            await asyncio.to_thread(stop)

    return lifespan


async def _load(
    service: Service, bundle: Path, copy: Path | None, on_failure: Callable[[], None] | None
) -> None:
    """Load the first bundle; skip the swap if a reload has already loaded a newer one."""
    try:
        runtime = await asyncio.to_thread(service.load, copy or bundle)
        runtime.bundle = replace(runtime.bundle, folder=bundle)
        if service.runtime is None:
            service.swap(runtime)
    except Exception as error:
        log.error("the bundle was not loaded", extra={"reason": str(error)})
        if on_failure is not None:
            on_failure()


async def _publish(service: Service) -> None:
    while True:
        service.publish()
        await asyncio.sleep(_PUBLISH_SECONDS)
