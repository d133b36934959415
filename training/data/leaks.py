"""Label leaks: words that identify the team because somebody wrote them after the ticket was routed.

A new ticket does not contain them. A network that learns such a word validates perfectly and fails in
service.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from models.tickets.faults import Faults, printable
from training.data.tickets import Tickets

MOST_TICKETS = 20_000  # of a larger file, every n-th ticket is checked
FEWEST_TICKETS = 10  # of a team; with fewer, a word may be in all of them by chance
NEARLY_ALL = 0.95
SHOWN = 8
NAME_SHARE = 0.8  # least share of a team's tickets with its name
NAME_ELSEWHERE = 0.02  # largest share of the other tickets with it
_WORD = re.compile(r"\w{3,}")


def warn_leaks(train: Tickets, faults: Faults) -> None:
    """Warn of words in nearly all tickets of one team and in no others, and of teams' names in texts."""
    found = [
        f"{printable(word, 60)!r} ({share:.0%} of {printable(team, 60)!r}, "
        f"{'no' if alone else 'hardly any'} other)"
        for team, word, share, alone in find_leaks(train)
    ]
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        detail = (
            f"words that identify the team: {', '.join(found[:SHOWN])}{more}; if they are written into a "
            "ticket after a person chose its team, remove them from the export"
        )
        faults.add("label_leak", train.file, "keeps", detail)


def find_leaks(tickets: Tickets) -> Iterator[tuple[str, str, float, bool]]:
    """Yield (team, word or team's name, share of its tickets with it, True if no other team has it)."""
    step = max(1, -(-len(tickets) // MOST_TICKETS))
    texts, teams = tickets.texts[::step], tickets.teams[::step]
    sizes = Counter(teams)
    counted: dict[str, Counter[str]] = {team: Counter() for team in sizes}
    names = {team: " ".join(_WORD.findall(team.casefold())) for team in sizes}
    named: Counter[tuple[str, bool]] = Counter()  # (team, whether in its own tickets)
    for text, team in zip(texts, teams, strict=True):
        words = _WORD.findall(text.casefold())
        counted[team].update(set(words))
        line = f" {' '.join(words)} "
        named.update((name, name == team) for name, said in names.items() if said and f" {said} " in line)
    everywhere: Counter[str] = sum(counted.values(), Counter())
    for team in sorted(sizes):
        if sizes[team] < FEWEST_TICKETS:
            continue
        others = sum(sizes.values()) - sizes[team]
        if named[team, True] >= NAME_SHARE * sizes[team] and named[team, False] <= NAME_ELSEWHERE * others:
            yield team, team, named[team, True] / sizes[team], not named[team, False]
            continue
        for word, count in counted[team].most_common(1):
            if count >= NEARLY_ALL * sizes[team] and everywhere[word] == count:
                yield team, word, count / sizes[team], True
