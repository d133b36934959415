"""Temporary folders that are removed even if their process is killed.

A process locks a file in its folder. The kernel releases the lock when the last process that has it ends, for
whatever reason. Creating a new folder removes old ones whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_LOCK = "held"


class TemporaryFolder:
    """A temporary folder of this process and of those that inherit its descriptor `lock`.

    It is removed by `remove()`, at exit, or when this object is garbage collected.
    """

    def __init__(self, prefix: str) -> None:
        remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Lock the file before it gets its name, so that no process sees it unlocked.
        unnamed = self.path / f"{_LOCK}.new"
        self.lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)
        self.remove = weakref.finalize(self, _remove, self.path, self.lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str) -> None:
    """Remove this user's folders with that prefix whose lock is free."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    lock = os.open(
        Path(entry.path) / _LOCK, os.O_RDWR | os.O_NOFOLLOW
    )  # FileNotFoundError: another program's folder
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
