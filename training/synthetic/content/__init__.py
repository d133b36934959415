"""Reads the templates of the synthetic tickets, which are TOML files for people to edit."""

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
TEAMS = ("delivery", "returns", "payment", "warranty", "account")
POWERED = {"electric", "battery", "motor", "heat", "light"}
FLAGS = ("item", "needs")  # keys of a situation that hold no lines


@dataclass(frozen=True)
class Product:
    name: str
    short: str
    parts: tuple[str, ...]
    kinds: frozenset[str]
    plural: bool


@dataclass(frozen=True)
class Situation:
    """A subject that customers write to one team about."""

    team: str
    name: str
    item: str  # does the customer have the thing: "yes", "no" or "any"
    needs: str  # a kind that the product must be of, or ""
    often: int  # how many times as common as the rarest
    avoid: frozenset[str]  # topics that an aside must not touch
    lines: dict[str, list[str]]  # what, more, do, want, ask, short


@dataclass(frozen=True)
class Boundary:
    """Two teams' tickets with the same words; only `clues[team]` tells them apart."""

    name: str
    item: str
    avoid: frozenset[str]
    lines: dict[str, list[str]]  # shared, do, want, ask
    clues: dict[str, list[str]]  # by team


@dataclass(frozen=True)
class Voice:
    """The templates of one kind of writer."""

    name: str
    contractions: float  # the share of tickets that contract where they can
    lines: dict[str, list[str]]  # greeting, lead, do, want, mood, closing


@dataclass(frozen=True)
class Aside:
    """A remark about another team's subject."""

    text: str
    topic: str | None
    needs_item: bool


@dataclass(frozen=True)
class Content:
    products: tuple[Product, ...]
    situations: dict[str, tuple[Situation, ...]]  # by team
    boundaries: tuple[Boundary, ...]
    voices: dict[str, Voice]
    phrases: dict[str, str]
    faults: dict[str, dict[str, list[str]]]
    asides: dict[str, dict[str, tuple[Aside, ...]]]  # by team and tone
    frames: dict[str, list[str]]
    filler: dict[str, list[str]]
    short: dict[str, list[str]]  # before and after a ticket of one line
    everyday: dict[str, list[str]]  # tickets of a few words, by team
    out_of_scope: dict[str, dict[str, list[str]]] = field(repr=False)


@lru_cache(maxsize=1)
def content() -> Content:
    """Read every content file once."""
    asides = _read("asides")
    return Content(
        products=tuple(_product(name, values) for name, values in _read("products").items()),
        situations={team: _situations(team) for team in TEAMS},
        boundaries=tuple(_boundary(name, values) for name, values in _read("boundaries").items()),
        voices={name: _voice(name, values) for name, values in _read("voices").items()},
        phrases=_read("phrases"),
        faults={kind: _lines(values) for kind, values in _read("faults").items()},
        asides={team: _asides(asides[team]) for team in TEAMS},
        frames=_lines(asides["frames"]),
        filler=_lines(_read("filler")),
        short=_lines(_read("short")),
        everyday=_lines(_read("everyday")),
        out_of_scope={part: _lines(values) for part, values in _read("out_of_scope").items()},
    )


def _read(name: str) -> dict:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _lines(values: dict) -> dict[str, list[str]]:
    """The multi-line strings of a table, one template a line."""
    return {key: text.strip().splitlines() for key, text in values.items() if isinstance(text, str)}


def _product(name: str, values: dict) -> Product:
    plural = values.get("plural", False)
    kinds = frozenset(values["kinds"])
    kinds |= {"powered"} if kinds & POWERED else set()
    kinds |= {"plural"} if plural else set()
    return Product(name, values["short"], tuple(values["parts"]), kinds, plural)


def _situations(team: str) -> tuple[Situation, ...]:
    return tuple(
        Situation(
            team=team,
            name=name,
            item=values["item"],
            needs=values.get("needs", ""),
            often=values.get("often", 1),
            avoid=frozenset(values.get("avoid", ())),
            lines={key: lines for key, lines in _lines(values).items() if key not in FLAGS},
        )
        for name, values in _read(team).items()
    )


def _boundary(name: str, values: dict) -> Boundary:
    lines = {key: found for key, found in _lines(values).items() if key not in FLAGS}
    clues = {team: _lines(values[team])["clue"] for team in TEAMS if team in values}
    return Boundary(name, values["item"], frozenset(values["avoid"]), lines, clues)


def _voice(name: str, values: dict) -> Voice:
    return Voice(name, values["contractions"], _lines(values))


def _asides(values: dict) -> dict[str, tuple[Aside, ...]]:
    return {tone: tuple(map(_aside, lines)) for tone, lines in _lines(values).items()}


def _aside(line: str) -> Aside:
    """Read the marks before a line: "@" needs the thing at hand, "~topic" names what it touches."""
    needs_item, topic = line.startswith("@"), None
    line = line.removeprefix("@")
    if line.startswith("~"):
        topic, line = line[1:].split(" ", 1)
    return Aside(line, topic, needs_item)
