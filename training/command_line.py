"""What the commands share: argument types with bounds, and errors shown as one message."""

import argparse
import math
import signal
import sys
import threading
from collections.abc import Callable

REFUSED = 2  # exit code for unusable input, the same as argparse's
INTERRUPTED = 130  # 128 + SIGINT, as in a shell


def guarded(
    program: str, command: Callable[[], int], *expected: type[Exception], stopped: str = "stopped"
) -> int:
    """Run a command; print `expected` errors, OSError and Ctrl-C as one message and return an exit code.

    The handler for Ctrl-C is installed here, because children of some parents (`nohup`, CI systems) start
    with SIGINT ignored.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {where}{error.strerror or error}", file=sys.stderr)
    except expected as error:
        print(f"{program}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\n{program}: {stopped}", file=sys.stderr)
        return INTERRUPTED
    return REFUSED


def whole(least: int, most: int) -> Callable[[str], int]:
    """For argparse: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return number

    return read


def within(least: float, most: float) -> Callable[[str], float]:
    """For argparse: a number from `least` to `most`."""
    return _number(lambda number: least <= number <= most, f"number from {least:g} to {most:g}")


def share(*, ends: bool) -> Callable[[str], float]:
    """For argparse: a share between 0 and 1; `ends` says whether 0 and 1 themselves are allowed."""
    if ends:
        return _number(lambda number: 0 <= number <= 1, "share from 0 to 1")
    return _number(lambda number: 0 < number < 1, "share between 0 and 1")


def _number(accepts: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not accepts(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a {expected}")
        return number

    return read
