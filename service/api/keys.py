"""API keys: a list of valid keys, compared in constant time; the key file is reloaded when it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from pydantic import SecretStr

log = logging.getLogger("larkfield.keys")

_LOOK_SECONDS = 1.0


class Keys:
    """The keys of one kind, from a setting and from a file (one a line; `#` begins a comment)."""

    def __init__(self, setting: SecretStr, file: Path | None) -> None:
        self._fixed = _digests(setting.get_secret_value().split(","))
        self._file = file
        self._from_file: tuple[bytes, ...] = ()
        self._seen: tuple[int, int, int] | None = None
        self._looked = -_LOOK_SECONDS
        if file is not None:
            self._from_file = _digests(_lines(file))  # OSError if the file is missing: the start fails
            self._seen = _state(file)
        self.required = file is not None or bool(self._fixed)

    def admits(self, key: bytes | None) -> bool:
        """Whether `key` is valid; it is always compared with every key, so the time tells nothing."""
        self._reload_file()
        digest = hashlib.sha256(key or b"").digest()
        found = False
        for known in (*self._fixed, *self._from_file):
            found |= hmac.compare_digest(digest, known)
        return found and bool(key)

    def _reload_file(self) -> None:
        """Reload the file if it changed; if it cannot be read, keep the present keys."""
        now = monotonic()
        if self._file is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            state = _state(self._file)
            if state != self._seen:
                self._from_file = _digests(_lines(self._file))
                self._seen = state
                log.info("key file reloaded", extra={"keys": len(self._from_file)})
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            log.warning("the key file cannot be read; the present keys stay valid", extra={"error": why})


def presented(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key in the ASGI headers `Authorization: Bearer …` or `X-API-Key`; None if they differ."""
    keys = set()
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.add(value[7:].strip())
        elif name == b"x-api-key":
            keys.add(value.strip())
    return keys.pop() if len(keys) == 1 else None


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _lines(file: Path) -> list[str]:
    # utf-8-sig: Windows programs write a byte order mark, which is no part of the first key.
    return [line.partition("#")[0] for line in file.read_text(encoding="utf-8-sig").splitlines()]


def _digests(keys: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(key.strip().encode()).digest() for key in keys if key.strip())
