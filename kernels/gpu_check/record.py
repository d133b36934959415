"""What is found, as JSON lines: one for the run, one for each figure, one for each stage's result."""

import dataclasses
import json
import pathlib
import time
from typing import Any

PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"


class NotRun(Exception):
    """A stage cannot run here; the message says why."""


class Failed(Exception):
    """A stage found something wrong; the message says what."""


@dataclasses.dataclass(frozen=True)
class Record:
    """Appends to a file, a line at a time, so that what was found survives whatever comes after it."""

    path: pathlib.Path | None
    stage: str

    def add(self, **facts: Any) -> None:
        if self.path is None:
            return
        line = json.dumps({"stage": self.stage, "time": round(time.time(), 3)} | facts, default=str)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def figure(self, name: str, **figures: Any) -> None:
        """One measurement, printed and kept."""
        shown = ", ".join(f"{key} {_short(value)}" for key, value in figures.items() if value is not None)
        print(f"    {name}: {shown}", flush=True)
        self.add(figure=name, **figures)

    def result(self, result: str, reason: str, seconds: float) -> None:
        """How the stage ended: PASS, FAIL or NOT RUN, and why if not PASS."""
        first_line = reason.splitlines()[0] if reason else ""
        print(f"{result:8} {self.stage} ({seconds:.0f} s){': ' + first_line if reason else ''}", flush=True)
        self.add(result=result, reason=reason, seconds=round(seconds, 1))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_short(one)}" for key, one in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def results(path: pathlib.Path) -> dict[str, str]:
    """The stages' results so far, from the file."""
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {line["stage"]: line["result"] for line in lines if "result" in line}
