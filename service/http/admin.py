"""`POST /admin/reload`: switch all workers to another bundle; if one of them cannot, none switches."""

from __future__ import annotations

import logging
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request

from service.api.problems import Problem
from service.api.schema import ModelName, ReloadRequest, ReloadResponse
from service.http.routes import problem_responses, service_of
from service.inference.reload import Refused, Reloader
from service.inference.service import Service

log = logging.getLogger("larkfield.reload")

router = APIRouter()


@router.post(
    "/admin/reload",
    summary="Switch to another bundle",
    tags=["operation"],
    response_model=ReloadResponse,
    responses=problem_responses(401, 403, 409, 413, 415, 422, 500),
)
async def admin_reload(order: ReloadRequest, request: Request) -> ReloadResponse:
    """Switch all workers to the new bundle. If it is not valid (409), all keep the old one."""
    service = service_of(request)
    reloader: Reloader = request.app.state.reloader
    folder = Path(order.bundle) if order.bundle else None
    try:
        done = await reloader.reload(folder, order.previous)
    except Refused as refused:
        if not refused.busy:
            service.metrics.reloads.labels("refused").inc()
        log.warning("reload refused", extra={"reason": str(refused)})
        raise Problem(409, f"The bundle was refused; the old one stays in service. {refused}") from None
    runtime, previous = service.loaded(), service.previous
    return ReloadResponse(
        model=ModelName(name=runtime.name, version=runtime.version),
        previous=ModelName(name=previous.name, version=previous.version) if previous else None,
        workers=done["workers"],
    )


def install(app: FastAPI, service: Service) -> None:
    """Add POST /admin/reload."""
    app.state.reloader = Reloader(service)
    app.include_router(router)
