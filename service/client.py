"""A client for the service, synchronous and asynchronous: routes tickets and reports feedback.

    with Client("http://127.0.0.1:8000") as client:
        answer = client.route(text="Charged two times", ticket_id="T-1001")
        client.feedback("payment", ticket_id="T-1001")

A 429 or 503 is retried after the service's Retry-After, a 502, 504 or a broken connection after a growing
random pause. Both calls may be retried safely: routing changes nothing, and repeated feedback counts once.
All tries of one call have the same X-Request-ID. Needs httpx (the extra `client`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx

TRY_AGAIN = (429, 502, 503, 504)
LONGEST_PAUSE_SECONDS = 30.0


class RouterError(RuntimeError):
    """The service rejected the call, or did not answer in any try.

    `status` is the HTTP status, None without an answer; `problem` is the problem+json document, if any.
    """

    def __init__(
        self, message: str, status: int | None = None, problem: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


def retry_after_seconds(value: str | None) -> float | None:
    """A Retry-After header (seconds or an HTTP date) in seconds; None if missing or not valid."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def pauses(tries: int, first_seconds: float) -> Iterator[float | None]:
    """Seconds to wait after each try, doubling, with jitter; None after the last: give up."""
    for number in range(tries - 1):
        yield random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_SECONDS, first_seconds * 2**number)
    yield None


def answer_or_pause(
    outcome: httpx.Response | httpx.TransportError, pause: float | None
) -> dict[str, Any] | float:
    """The answer, or the seconds until the next try; RouterError if another try cannot help."""
    if isinstance(outcome, httpx.TransportError):
        if pause is None:
            raise RouterError(f"no answer: {type(outcome).__name__}") from outcome
        return pause
    if pause is None or outcome.status_code not in TRY_AGAIN:
        return read(outcome)
    asked = retry_after_seconds(outcome.headers.get("Retry-After"))
    return pause if asked is None else min(LONGEST_PAUSE_SECONDS, asked + pause)


def read(response: httpx.Response) -> dict[str, Any]:
    """The JSON of a successful answer; otherwise RouterError with the message of the service."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    problem = document if isinstance(document, dict) else {}
    message = problem.get("detail") or problem.get("title") or response.reason_phrase
    raise RouterError(f"{response.status_code}: {message}", response.status_code, problem)


class _Calls:
    """Builds the requests of both clients."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        tries: int = 5,
        first_pause_seconds: float = 0.2,
        timeout_seconds: float = 10.0,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.options: dict[str, Any] = {"base_url": url, "headers": headers, "timeout": timeout_seconds}
        self.tries = tries
        self.first_pause_seconds = first_pause_seconds

    @staticmethod
    def _ticket(text: str, **fields: str | None) -> dict[str, Any]:
        return {"text": text, **{name: value for name, value in fields.items() if value is not None}}

    @staticmethod
    def _feedback(
        team: str, ticket_id: str | None, request_id: str | None, source: str | None
    ) -> dict[str, Any]:
        if (ticket_id is None) == (request_id is None):
            raise ValueError("name the ticket by ticket_id or by request_id, one of the two")
        named = {"ticket_id": ticket_id} if ticket_id else {"request_id": request_id}
        return {"team": team, **named, **({"source": source} if source else {})}

    def _request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"method": "POST", "url": path, "json": body, "headers": {"X-Request-ID": uuid.uuid4().hex}}


class Client(_Calls):
    """The synchronous client; threads may share it."""

    def __enter__(self) -> Self:
        self.http = httpx.Client(**self.options)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def route(
        self,
        text: str,
        *,
        subject: str | None = None,
        ticket_id: str | None = None,
        source: str | None = None,
        explain: str | None = None,
    ) -> dict[str, Any]:
        """The answer of POST /route; RouterError if the service rejects it or does not answer.

        `source` names the helpdesk that the id is from, if there are several.
        """
        ticket = self._ticket(text, subject=subject, ticket_id=ticket_id, source=source, explain=explain)
        return self._send(self._request("/route", ticket))

    def feedback(
        self,
        team: str,
        *,
        ticket_id: str | None = None,
        request_id: str | None = None,
        source: str | None = None,
    ) -> dict[str, Any]:
        """Report the team that solved a ticket; it is on disk when this returns.

        `source` is the one that /route was given with the id.
        """
        body = self._feedback(team, ticket_id, request_id, source)
        return self._send(self._request("/feedback", body))

    def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        for pause in pauses(self.tries, self.first_pause_seconds):
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = self.http.request(**request)
            except httpx.TransportError as error:
                outcome = error
            result = answer_or_pause(outcome, pause)
            if isinstance(result, dict):
                return result
            time.sleep(result)
        raise AssertionError("the last try returns or raises")


class AsyncClient(_Calls):
    """The asynchronous client, for asyncio."""

    async def __aenter__(self) -> Self:
        self.http = httpx.AsyncClient(**self.options)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def route(
        self,
        text: str,
        *,
        subject: str | None = None,
        ticket_id: str | None = None,
        source: str | None = None,
        explain: str | None = None,
    ) -> dict[str, Any]:
        """The answer of POST /route; RouterError if the service rejects it or does not answer.

        `source` names the helpdesk that the id is from, if there are several.
        """
        ticket = self._ticket(text, subject=subject, ticket_id=ticket_id, source=source, explain=explain)
        return await self._send(self._request("/route", ticket))

    async def feedback(
        self,
        team: str,
        *,
        ticket_id: str | None = None,
        request_id: str | None = None,
        source: str | None = None,
    ) -> dict[str, Any]:
        """Report the team that solved a ticket; it is on disk when this returns.

        `source` is the one that /route was given with the id.
        """
        body = self._feedback(team, ticket_id, request_id, source)
        return await self._send(self._request("/feedback", body))

    async def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        for pause in pauses(self.tries, self.first_pause_seconds):
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = await self.http.request(**request)
            except httpx.TransportError as error:
                outcome = error
            result = answer_or_pause(outcome, pause)
            if isinstance(result, dict):
                return result
            await asyncio.sleep(result)
        raise AssertionError("the last try returns or raises")


def main(arguments: list[str] | None = None) -> int:
    """Route a ticket or report feedback, and print JSON; the API key is read from LARKFIELD_API_KEY."""
    parser = argparse.ArgumentParser(prog="python -m service.client", description=main.__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    commands = parser.add_subparsers(dest="command", required=True)
    route = commands.add_parser("route", help="route one ticket")
    route.add_argument("text", help="the ticket's text; - reads it from standard input")
    route.add_argument("--subject")
    route.add_argument("--ticket-id")
    route.add_argument("--source", help="the helpdesk that the id is from")
    route.add_argument("--explain", choices=["none", "tokens", "heads", "full"])
    feedback = commands.add_parser("feedback", help="report the team that solved a ticket")
    feedback.add_argument("team")
    named = feedback.add_mutually_exclusive_group(required=True)
    named.add_argument("--ticket-id")
    named.add_argument("--request-id")
    feedback.add_argument("--source", help="the helpdesk that the id is from")
    chosen = parser.parse_args(arguments)
    with Client(chosen.url, api_key=os.environ.get("LARKFIELD_API_KEY")) as client:
        try:
            if chosen.command == "route":
                text = sys.stdin.read() if chosen.text == "-" else chosen.text
                answer = client.route(
                    text,
                    subject=chosen.subject,
                    ticket_id=chosen.ticket_id,
                    source=chosen.source,
                    explain=chosen.explain,
                )
            else:
                answer = client.feedback(
                    chosen.team,
                    ticket_id=chosen.ticket_id,
                    request_id=chosen.request_id,
                    source=chosen.source,
                )
        except RouterError as error:
            print(error, file=sys.stderr)
            return 1
    print(json.dumps(answer, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
