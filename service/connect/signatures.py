"""Whether a webhook is from the desk: each way compares in constant time.

A shared secret may also come as `Authorization: Bearer …`, as a Basic password, as `X-API-Key`, or, for desks
that can set no header, as the last part of the address.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
from collections.abc import Callable, Mapping

Headers = Mapping[str, str]


def admits(signature: str, secret: str, headers: Headers, body: bytes, in_address: str | None) -> bool:
    """Whether the body is signed as `signature` says, or the request carries the secret itself."""
    signed = CHECKS[signature](secret.encode(), headers, body)
    return signed or _carries(secret.encode(), headers, in_address)


def _hub(algorithm: str) -> Callable[[bytes, Headers, bytes], bool]:
    """`X-Hub-Signature: algorithm=hex`, as W3C WebSub 7.1 has it."""

    def check(secret: bytes, headers: Headers, body: bytes) -> bool:
        expected = f"{algorithm}={hmac.new(secret, body, algorithm).hexdigest()}"
        return _same(expected.encode(), headers.get("x-hub-signature", ""))

    return check


def _zendesk(secret: bytes, headers: Headers, body: bytes) -> bool:
    """base64 of HMAC-SHA256 over timestamp and body (developer.zendesk.com, "Verifying webhooks")."""
    moment = headers.get("x-zendesk-webhook-signature-timestamp", "").encode("utf-8", "surrogateescape")
    expected = base64.b64encode(hmac.new(secret, moment + body, "sha256").digest())
    return _same(expected, headers.get("x-zendesk-webhook-signature", ""))


def _none(secret: bytes, headers: Headers, body: bytes) -> bool:
    """A desk that does not sign: the request must carry the secret."""
    return False


CHECKS: dict[str, Callable[[bytes, Headers, bytes], bool]] = {
    "sha1": _hub("sha1"),
    "sha256": _hub("sha256"),
    "zendesk": _zendesk,
    "none": _none,
}


def _carries(secret: bytes, headers: Headers, in_address: str | None) -> bool:
    kind, _, value = headers.get("authorization", "").partition(" ")
    found = _same(secret, headers.get("x-api-key", "")) | _same(secret, in_address or "")
    if kind.lower() == "bearer":
        found |= _same(secret, value.strip())
    elif kind.lower() == "basic":
        with contextlib.suppress(binascii.Error):
            password = base64.b64decode(value, validate=True).partition(b":")[2]
            found |= _same(secret, password.decode("latin-1"))
    return found


def _same(expected: bytes, given: str) -> bool:
    """Equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(expected, given.encode("utf-8", "surrogateescape"))
