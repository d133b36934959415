"""The faults of ticket files: one entry for each kind and file, with the numbers of all affected rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

# stops: nothing is trained. drops: the rows are left out and counted. keeps: the rows are used.
Effect = Literal["stops", "drops", "keeps"]
ROWS_SHOWN = 8


class DataError(ValueError):
    """The data cannot be used; the message lists every fault that was found."""


@dataclass
class Fault:
    """One kind of fault in one file, with the numbers of all affected rows."""

    kind: str
    file: str
    effect: Effect
    detail: str
    rows: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        detail = printable(self.detail)
        if not self.rows:
            outcome = {"stops": "fatal", "drops": "dropped", "keeps": "kept"}[self.effect]
            return f"{self.file}: {detail} ({outcome})"
        outcome = {"stops": "cannot be used", "drops": "dropped", "keeps": "kept"}[self.effect]
        shown = ", ".join(map(str, self.rows[:ROWS_SHOWN])) + (", …" if len(self.rows) > ROWS_SHOWN else "")
        noun = "row" if len(self.rows) == 1 else "rows"
        return f"{self.file}: {len(self.rows):,} {noun} {outcome}: {detail} ({noun} {shown})"


class Faults:
    """All faults of a data set, one entry for each kind and file."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], Fault] = {}

    def add(self, kind: str, file: str, effect: Effect, detail: str, row: int | None = None) -> None:
        fault = self._faults.setdefault((kind, file), Fault(kind, file, effect, detail))
        if row is not None:
            fault.rows.append(row)

    def __iter__(self) -> Iterator[Fault]:
        order = {"stops": 0, "drops": 1, "keeps": 2}
        return iter(sorted(self._faults.values(), key=lambda fault: order[fault.effect]))

    def count(self, kind: str) -> int:
        """Rows with faults of this kind, over all files."""
        return sum(len(fault.rows) for fault in self if fault.kind == kind)

    def dropped(self, file: str) -> int:
        """The number of rows of this file that were dropped for a fault.

        Rows without a team are not counted: every helpdesk has tickets that nobody has solved yet.
        """
        return sum(
            len(fault.rows)
            for fault in self
            if fault.file == file and fault.effect == "drops" and fault.kind != "empty_team"
        )

    @property
    def fatal(self) -> bool:
        """Whether a fault makes the data unusable."""
        return any(fault.effect == "stops" for fault in self)

    def stop_if_fatal(self) -> None:
        """Raise DataError with all faults so far if one of them is fatal."""
        if self.fatal:
            raise DataError("\n".join(["the data cannot be used:", *(f"  - {fault}" for fault in self)]))

    def to_json(self) -> list[dict]:
        return [{**asdict(fault), "count": len(fault.rows)} for fault in self]


def printable(text: str, most: int = 2_000) -> str:
    """The text for a terminal: without control characters and invalid bytes, cut after `most` characters."""
    shown = "".join(one if one.isprintable() else "\ufffd" for one in text[:most])
    return shown + ("…" if len(text) > most else "")
