"""Errors as `application/problem+json` (RFC 9457). They never repeat a value of the request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

CONTENT_TYPE = b"application/problem+json"
# Characters of an unknown field's name that an error shows.
SHOWN_NAME = 64
_NOT_JSON = "not valid JSON in UTF-8"


class Problem(HTTPException):
    """An error with a status; `detail` and `errors` are sent to the client unchanged.

    It derives from the framework's HTTPException, so FastAPI lets it through wherever it is raised.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: list[dict[str, str]] | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.errors = errors
        self.header_list = headers or []
        self.close = close

    def document(self, request_id: str) -> dict[str, Any]:
        """The problem document of RFC 9457."""
        document: dict[str, Any] = {
            "type": "about:blank",
            "title": title(self.status),
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
        }
        if self.errors is not None:
            document["errors"] = self.errors
        return document

    def body(self, request_id: str) -> bytes:
        """The document as JSON."""
        return orjson.dumps(self.document(request_id))


def title(status: int) -> str:
    """The standard phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def unavailable(detail: str, retry_after_seconds: int) -> Problem:
    """503 with Retry-After."""
    return Problem(503, detail, headers=[(b"retry-after", b"%d" % retry_after_seconds)])


def problem_of(error: Exception) -> Problem:
    """The problem for an exception of ours or of the framework; 500 for any other exception."""
    if isinstance(error, Problem):
        return error.with_traceback(None)  # the traceback holds references to the request's frames
    if isinstance(error, RequestValidationError):
        return invalid(error, skip=1)
    if isinstance(error, ValidationError):
        return invalid(error)
    if not isinstance(error, HTTPException):
        return unknown_error()
    if error.status_code == 400:  # FastAPI's answer to a body that is not UTF-8 or nested too deep
        return not_json()
    given = (error.headers or {}).items()
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
    detail = {404: "There is nothing at this address.", 405: "This address does not support this method."}
    return Problem(error.status_code, detail.get(error.status_code, str(error.detail)), headers=headers)


def unknown_error() -> Problem:
    """500 without the cause."""
    return Problem(500, "An internal error occurred. Look up the request id in the service's log.")


def invalid(error: ValidationError | RequestValidationError, skip: int = 0) -> Problem:
    """422 that names each wrong field and what was expected, without the value.

    `skip` is the number of leading parts of a field's location to omit: FastAPI's begin with "body" or
    "query".
    """
    errors = []
    for item in error.errors()[:20]:
        place = () if item["type"] == "json_invalid" else item["loc"][skip:]  # it would be a byte offset
        field = ".".join(map(_shown, place)) or "body"
        message = "unknown field" if item["type"] == "extra_forbidden" else _message(item)
        errors.append({"field": field, "message": message})
    return not_as_expected(errors)


def not_as_expected(errors: list[dict[str, str]]) -> Problem:
    """422 with a list of errors, {"field", "message"} each."""
    named = "; ".join(f"{each['field']}: {each['message']}" for each in errors[:5])
    return Problem(422, f"The request is not as expected. {named}", errors=errors)


def not_json() -> Problem:
    """422 for a body that cannot be parsed."""
    return not_as_expected([{"field": "body", "message": _NOT_JSON}])


def _shown(part: int | str) -> str:
    text = str(part)
    safe = "".join(c if c.isprintable() else "?" for c in text[:SHOWN_NAME])
    return safe + ("…" if len(text) > SHOWN_NAME else "")


def _message(item: Any) -> str:
    if item["type"] == "json_invalid":
        return _NOT_JSON  # the parser's message may quote the body
    return str(item["msg"])
