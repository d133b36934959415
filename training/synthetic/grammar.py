"""A small phrase grammar.

A template is text with two marks:

    [a|b|c]   one of the alternatives, which may contain marks; one may be empty
    {slot}    the text that the caller's `slots` returns for this name

"[I|we] bought {thing} [last week|{ago}|]" is one line that expands to dozens of sentences. Parsed templates
are cached. Choices use the caller's random generator in reading order, so that a seed determines every byte.
"""

import random
import re
from collections.abc import Callable
from functools import cache

Slots = Callable[[str], str]
# A sequence of: plain text, a slot's name in a 1-tuple, or a list of alternatives (each a sequence again).
Node = str | tuple[str] | list["Sequence"]
Sequence = list[Node]

_MARK = re.compile(r"[\[\]|]|\{([a-z_0-9]+)\}|[{}]")


class GrammarError(ValueError):
    """A template that cannot be read; the message quotes it."""


@cache
def parse(template: str) -> Sequence:
    """Read a template; raises GrammarError when its brackets do not match."""
    open_choices: list[list[Sequence]] = [[[]]]
    at = 0
    for mark in _MARK.finditer(template):
        if mark.start() > at:
            open_choices[-1][-1].append(template[at : mark.start()])
        at = mark.end()
        if mark.group() == "[":
            open_choices.append([[]])
        elif mark.group() == "|" and len(open_choices) > 1:
            open_choices[-1].append([])
        elif mark.group() == "]" and len(open_choices) > 1:
            done = open_choices.pop()
            open_choices[-1][-1].append(done)
        elif mark.group(1):
            open_choices[-1][-1].append((mark.group(1),))
        else:
            raise GrammarError(f"stray {mark.group()!r} in template {template!r}")
    if len(open_choices) != 1:
        raise GrammarError(f"a '[' is never closed in template {template!r}")
    if at < len(template):
        open_choices[-1][-1].append(template[at:])
    return open_choices[0][0]


def expand(template: str, rng: random.Random, slots: Slots) -> str:
    """A text from `template`; `slots(name)` returns the text of {name}."""
    return tidy(_write(parse(template), rng, slots))


def _write(sequence: Sequence, rng: random.Random, slots: Slots) -> str:
    out = []
    for node in sequence:
        if isinstance(node, str):
            out.append(node)
        elif isinstance(node, tuple):
            out.append(slots(node[0]))
        else:
            out.append(_write(node[int(rng.random() * len(node))], rng, slots))
    return "".join(out)


def tidy(text: str) -> str:
    """Remove the extra spaces that empty alternatives leave, and write "an" before a vowel."""
    text = re.sub(r" {2,}", " ", text)
    text = re.sub(r"\b([Aa]) (?=[aeio]|u[nmp])(?!one\b|uni)", r"\1n ", text)
    return re.sub(r" +([,.;:?!)])", r"\1", text).strip()


def sentence(clause: str, stop: str = ".") -> str:
    """Make a clause a sentence: first letter upper case, a stop at the end unless it has one."""
    clause = clause.strip()
    clause = clause[:1].upper() + clause[1:]
    return clause if clause[-1:] in ".?!:" else clause + stop
