"""JSON calls to a helpdesk, with every failure named: away, denied, gone, rejected, changed by another."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import httpx

from service.client import retry_after_seconds
from service.connect.desk import Conflict, Denied, DeskAway, Gone, Rejected

CALL_SECONDS = 20.0  # for a whole call: a helpdesk that sends a byte now and then hangs as well
READ_SECONDS = 10.0
LARGEST_ANSWER_BYTES = 16 << 20
_MESSAGES = ("message", "error", "detail", "description", "details", "errorMessages", "errors")
_SHOWN = 200  # characters of a helpdesk's own message


class Api:
    """The HTTP API of one helpdesk under `url`."""

    def __init__(self, url: str, headers: dict[str, str], auth: tuple[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            headers={"Accept": "application/json", "User-Agent": "larkfield-connect", **headers},
            auth=auth,
            timeout=READ_SECONDS,
            trust_env=False,  # .netrc would add credentials of its own
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON at a path; parameters that are None are left out."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return self.call("GET", path, parameters=given)[0]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        parameters: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[Any, httpx.Headers]:
        """The JSON and the headers of an answer, None for an empty one; DeskError says what went wrong."""
        # An empty dictionary would delete the query of a path that has one.
        request = self._client.build_request(
            method, self.url + path, json=body, params=parameters or None, headers=headers
        )
        place = f"{method} {request.url.path}"
        try:
            response = self._client.send(request, stream=True)
            try:
                content = _content(response, place)
            finally:
                response.close()
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            raise DeskAway(f"{place}: no answer ({type(error).__name__})") from None
        _raise_for_status(response, content, place)
        if not content.strip():
            return None, response.headers
        try:
            return json.loads(content), response.headers
        except ValueError:
            kind = response.headers.get("Content-Type", "no content type").partition(";")[0]
            raise DeskAway(
                f"{place}: the answer is {kind}, not JSON; is this the API, or a login page in front of it?"
            ) from None


def _content(response: httpx.Response, place: str) -> bytes:
    """The body of an answer; DeskAway if it does not end in time or is too large."""
    until, parts, size = monotonic() + CALL_SECONDS, [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > LARGEST_ANSWER_BYTES:
            raise DeskAway(f"{place}: the answer is larger than {LARGEST_ANSWER_BYTES >> 20} MB")
        if monotonic() > until:
            raise DeskAway(f"{place}: the answer did not end within {CALL_SECONDS:g} s")
        parts.append(part)
    return b"".join(parts)


def _raise_for_status(response: httpx.Response, content: bytes, place: str) -> None:
    status = response.status_code
    if status < 300:
        return
    said = f"{place}: {status} {_message(content) or response.reason_phrase}"
    if status in (408, 425, 429) or status >= 500:
        raise DeskAway(said, retry_after_seconds(response.headers.get("Retry-After")))
    if status < 400:
        raise DeskAway(f"{place}: redirected ({status}); is the url of this desk right?")
    if status in (401, 403):
        raise Denied(said)
    if status in (404, 410):
        # A page of HTML says that the address is wrong, not that the ticket is gone.
        html = response.headers.get("Content-Type", "").startswith("text/html")
        raise DeskAway(said) if html else Gone(said)
    if status in (409, 412):
        raise Conflict(said)
    raise Rejected(said)


def _message(content: bytes) -> str:
    """The message in an error's JSON; "" where there is none: a page of HTML says nothing here."""
    try:
        document = json.loads(content)
    except ValueError:
        return ""
    found: list[Any] = [document]
    if isinstance(document, dict):
        # Some desks say what is wrong in one field and where in another.
        found = [document[name] for name in _MESSAGES if document.get(name)] or found
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in found]
    return " ".join("; ".join(texts).split())[:_SHOWN]
