"""The disk cache of compiled kernels; incomplete or damaged files are detected and replaced."""

import contextlib
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable

DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> pathlib.Path:
    """$LARKFIELD_CACHE, or larkfield-router in the user's cache folder."""
    chosen = os.environ.get("LARKFIELD_CACHE")
    if chosen:
        return pathlib.Path(chosen)
    parent = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(parent) / "larkfield-router"


def cached(path: pathlib.Path, build: Callable[[], bytes]) -> bytes:
    """The cached bytes at `path`, or those of `build`, which are then cached.

    A file is the SHA-256 of the content, then the content; anything else is built again. Two processes may
    build the same entry at once: each renames a complete file into place. A folder that cannot be written to
    costs a build in every process, and no error.
    """
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    digest, content = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if content and hashlib.sha256(content).digest() == digest:
        return content
    content = build()
    with contextlib.suppress(OSError):
        write_atomically(path, hashlib.sha256(content).digest() + content)
    return content


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        temporary = pathlib.Path(file.name)
        try:
            file.write(content)
            file.close()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
