"""Names and numbers of groups, for desks whose tickets name their group by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.connect.desk import Rejected

NO_GROUP = ""  # the name of the group of a ticket that has none


class Groups:
    """Read once by `read` (name -> number), and again when one is not known."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read
        self._numbers: dict[str, int] = {}

    def name(self, number: int | None) -> str:
        """The group's name; one that is gone or not to be seen is called by its number."""
        if number is None:
            return NO_GROUP
        if number not in self._numbers.values():
            self._numbers = self._read()
        return next((name for name, each in self._numbers.items() if each == number), f"group {number}")

    def number(self, name: str) -> int:
        """The group's number. Rejected if there is no such group."""
        if name not in self._numbers:
            self._numbers = self._read()
        if name not in self._numbers:
            raise Rejected(f"there is no group {name!r} that this user may see")
        return self._numbers[name]

    def missing(self, names: Iterable[str]) -> list[str]:
        """A sentence for `check` for each name that is no group."""
        self._numbers = self._read()
        return [
            f"WRONG: there is no group {name!r} that this user may see"
            for name in names
            if name != NO_GROUP and name not in self._numbers
        ]
