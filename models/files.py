"""Atomic writing: a reader sees the old or the new content of a file, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing; flush it to disk and rename it when the block ends.

    If the block raises, the temporary file is removed and `path` is unchanged. Several processes may write
    the same path at once; the last rename wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
