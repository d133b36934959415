"""Temporary folders that are removed even if the process that made them is killed.

A folder is held by a lock on a file inside. The kernel frees the lock with the last process that has it,
however that ends; a folder whose lock is free was left behind, and is removed by the next one that is made.
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
    """A temporary folder of this process, and of those that get its descriptor `lock`.

    `remove()` takes it away; so does the end of the process, or of the last reference to this.
    """

    def __init__(self, prefix: str) -> None:
        remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name: nobody may find it free.
        unnamed = self.path / f"{_LOCK}.new"
        self.lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)
        self.remove = weakref.finalize(self, _remove, self.path, self.lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str) -> None:
    """Remove this user's folders of that prefix that nobody holds any more."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    lock = os.open(Path(entry.path) / _LOCK, os.O_RDWR | os.O_NOFOLLOW)  # FileNotFoundError: not one of ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is held
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
