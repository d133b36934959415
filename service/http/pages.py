"""The web pages: static files from `web/`, and the numbers that `/learn` shows.

All files are read when this module is imported, so a request cannot reach other files.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import Response

from service.api.problems import Problem
from service.explain import attention_lesson as lesson
from service.inference.service import Service

WEB = Path(__file__).parent / "web"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
# No inline scripts, no other servers, no frames: injected markup cannot run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",  # revalidate each time; with the ETag that is a short 304
    "vary": "accept-encoding",
}
DOCUMENTS = {"/": "index", "/review": "review", "/today": "today", "/upload": "upload", "/learn": "learn"}
PREFIXES = ("/web/", "/learn/")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class File:
    """One static file, plain and gzipped."""

    content_type: str
    body: bytes
    gzipped: bytes
    etag: str


def _read(path: Path) -> File:
    body = path.read_bytes()
    compressor = zlib.compressobj(9, wbits=31)
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return File(CONTENT_TYPES[path.suffix], body, compressor.compress(body) + compressor.flush(), etag)


FILES = {path.name: _read(path) for path in sorted(WEB.iterdir()) if path.suffix in CONTENT_TYPES}


def _serve(request: Request, file: File) -> Response:
    headers = HEADERS | {"etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = file.gzipped, headers | {"content-encoding": "gzip"}
    return Response(body, media_type=file.content_type, headers=headers)


@router.get("/")
@router.get("/review")
@router.get("/today")
@router.get("/upload")
@router.get("/learn")
async def page(request: Request) -> Response:
    """One of the pages."""
    return _serve(request, FILES[DOCUMENTS[request.url.path] + ".html"])


@router.get("/web/{name}")
async def asset(request: Request, name: str) -> Response:
    """A script, style sheet or picture of the page."""
    if name not in FILES:
        raise Problem(404, "There is no such file.")
    return _serve(request, FILES[name])


@router.get("/learn/numbers")
async def learn_numbers() -> Response:
    """The steps of the attention formula and the figures per key size."""
    return _json(lesson.numbers())


@router.get("/learn/draw")
async def learn_draw(
    d_k: Annotated[int, Query(ge=1, le=1024)], seed: Annotated[int, Query(ge=0, lt=2**32)] = 0
) -> Response:
    """One random query with 32 random keys."""
    return _json(lesson.draw(d_k, seed))


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")


def install(app: FastAPI, _: Service) -> None:
    """Add the pages, which need no API key."""
    app.include_router(router)
    rules: Any = app.rules  # type: ignore[attr-defined]
    rules.open(*DOCUMENTS, *(prefix + "*" for prefix in PREFIXES))
