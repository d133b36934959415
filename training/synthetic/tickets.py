"""The stream of synthetic tickets: draws style, team and situation, and repeats no text."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from training.synthetic.content import TEAMS, Boundary, Situation, content
from training.synthetic.styles import STYLES, write

# Tickets per 100; hard styles are more frequent than in a real shop, because training gains most from them.
STYLE_SHARES = {
    "plain": 8, "distractor": 9, "request_last": 5, "negation": 5, "short": 36, "typos": 5, "long": 4,
    "boundary": 12, "two_topics": 16,
}  # fmt: skip
TEAM_SHARES = {"delivery": 25, "returns": 20, "payment": 21, "warranty": 18, "account": 16}
MOST = 1_000_000  # tickets of one file; takes minutes, and all texts are kept in memory to avoid duplicates
MAX_TRIES = 100  # attempts at a new text; short ones repeat in large sets

T = TypeVar("T")


@dataclass(frozen=True)
class Ticket:
    ticket_id: str
    text: str
    team: str
    style: str


class Deck(Generic[T]):
    """Draws without replacement, and shuffles again when all cards are drawn, so that none is left out."""

    def __init__(self, cards: Sequence[T], rng: random.Random) -> None:
        self._cards, self._rng = list(cards), rng
        self._left: list[T] = []

    def deal(self) -> T:
        if not self._left:
            self._left = list(self._cards)
            self._rng.shuffle(self._left)
        return self._left.pop()


class Stream:
    """An endless, seeded stream of tickets."""

    def __init__(
        self, seed: int, teams: Sequence[str] = TEAMS, styles: Sequence[str] = tuple(STYLES)
    ) -> None:
        self._content, self._rng = content(), random.Random(seed)
        self._styles = Deck(_by_share(STYLE_SHARES, styles), self._rng)
        self._teams = {style: Deck(_by_share(TEAM_SHARES, teams), self._rng) for style in styles}
        self._situations = {
            team: Deck(_by_often(self._content.situations[team]), self._rng) for team in teams
        }
        sides = [(pair, team) for pair in self._content.boundaries for team in pair.clues if team in teams]
        self._sides = Deck(sides, self._rng)
        self._written: set[str] = set()
        self._count = 0

    def __iter__(self) -> Iterator[Ticket]:
        return self

    def __next__(self) -> Ticket:
        subject, team, style = self.deal()
        text = self._new_text(subject, team, style)
        self._count += 1
        return Ticket(f"S-{self._count:06d}", text, team, style)

    def deal(self) -> tuple[Situation | Boundary, str, str]:
        """Draw subject, team and style of the next ticket."""
        style = self._styles.deal()
        if style == "boundary":
            return *self._sides.deal(), style
        team = self._teams[style].deal()
        return self._situations[team].deal(), team, style

    def _new_text(self, subject: Situation | Boundary, team: str, style: str) -> str:
        for _ in range(MAX_TRIES):
            text = write(self._content, self._rng, subject, team, style)
            key = text.casefold()
            if key not in self._written:
                break
        self._written.add(key)
        return text


def generate(
    count: int, seed: int = 0, *, teams: Sequence[str] = TEAMS, styles: Sequence[str] = tuple(STYLES)
) -> list[Ticket]:
    """Write `count` tickets; equal arguments give equal tickets on every machine."""
    stream = Stream(seed, teams, styles)
    return [next(stream) for _ in range(count)]


def _by_share(shares: dict[str, int], chosen: Sequence[str]) -> list[str]:
    return [name for name, share in shares.items() if name in chosen for _ in range(share)]


def _by_often(situations: Sequence[Situation]) -> list[Situation]:
    return [situation for situation in situations for _ in range(situation.often)]
