"""The connector as a process beside the service: started with it, replaced if it ends, ended with it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("larkfield.connect")

_AGAIN_SECONDS = 5.0
_END_SECONDS = 40.0


@contextmanager
def connector_beside(config: Path) -> Iterator[None]:
    """Run `python -m service.connect run` for as long as the block runs."""
    command = [sys.executable, "-m", "service.connect", "run", "--config", str(config)]
    ending = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while not ending.is_set():
            process = subprocess.Popen(command, start_new_session=True)  # Ctrl-C reaches the service alone
            running[:] = [process]
            if ending.is_set():
                process.terminate()
            status = process.wait()
            if not ending.wait(_AGAIN_SECONDS if status else 0.0):
                log.error("the connector ended, it is started again", extra={"status": status})

    thread = threading.Thread(target=keep, name="connector", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        for process in running:
            process.terminate()
        thread.join(_END_SECONDS)
