"""The nine styles of tickets; `write` writes one ticket."""

import random
from collections.abc import Callable

from training.synthetic import spelling
from training.synthetic.content import Boundary, Content, Situation
from training.synthetic.grammar import sentence
from training.synthetic.parts import Parts, lower_first, upper_first
from training.synthetic.untidy import untidy


def write(content: Content, rng: random.Random, subject: Situation | Boundary, team: str, style: str) -> str:
    """Write one ticket for `team` about `subject` (a Boundary for the style "boundary")."""
    parts = Parts(content, rng, subject, team, hurried=style in ("short", "typos"))
    text = STYLES[style](parts)
    text = spelling.personal(text, rng, parts.scene.voice.contractions)
    return untidy(text, rng) if style == "typos" else text


def plain(parts: Parts) -> str:
    body = parts.matter()
    if parts.chance(0.3):
        body.insert(parts.rng.choice((0, len(body))), *parts.history(1))
    return parts.letter(body)


def distractor(parts: Parts) -> str:
    """Other teams' subjects are mentioned in passing."""
    body = parts.matter(details=0.25)
    for _ in range(parts.rng.choice((1, 1, 2))):
        tone = parts.rng.choice(("fine", "fine", "trouble"))
        body.insert(parts.rng.randrange(len(body) + 1), parts.aside(tone))
    return parts.letter(body)


def request_last(parts: Parts) -> str:
    """The request is the last sentence; what comes before may be about anything."""
    body = parts.history(parts.rng.choice((0, 1, 1, 2)))
    if not body or parts.chance(0.35):
        body += parts.past() if parts.chance(0.5) else [parts.aside("fine")]
    if parts.chance(0.7):
        body += [parts.problem_sentence(), parts.request()]
    else:
        body.append(parts.problem_and_request() if parts.chance(0.6) else parts.question())
    return parts.letter(body, closing=False)


def negation(parts: Parts) -> str:
    """The ticket says what it is not about."""
    body, denied = parts.matter(details=0.25), parts.negation()
    form = parts.rng.random()
    if form < 0.3:
        turn = parts.scene.choose(parts.content.frames["turn"])
        body[0] = f"{upper_first(turn)} {lower_first(body[0])}"
    elif form < 0.5:
        link = parts.scene.pick((", but ", ", just ", "; ", ": "))
        return parts.letter([denied.rstrip(".") + link + lower_first(body[0]), *body[1:]])
    at = 0 if parts.chance(0.8) else 1
    return parts.letter([*body[:at], denied, *body[at:]])


def short(parts: Parts) -> str:
    """One line: a headline, a bare question or a bare fact."""
    scene, lines = parts.scene, parts.content.short
    if parts.chance(0.65):
        return _everyday(parts)
    form = parts.rng.random()
    if form < 0.86:
        line = scene.choose(parts.subject.lines["short" if form < 0.68 else "ask"])
    else:
        line = min((parts.problem() for _ in range(3)), key=len)
    if parts.chance(0.75):
        line = upper_first(line)
    if parts.chance(0.35):
        line = scene.choose(_order_once(parts, lines["before"]), line=lower_first(line))
    if parts.chance(0.45):
        line = scene.choose(_order_once(parts, lines["after"]), line=line.rstrip("?."))
    elif parts.chance(0.5):
        line = sentence(line)
    return line


def _everyday(parts: Parts) -> str:
    """A few everyday words, as people type them into a chat."""
    line = parts.scene.choose(parts.content.everyday[parts.team])
    if parts.chance(0.55):
        line = upper_first(line)
    if parts.chance(0.3):
        line = parts.scene.choose(_order_once(parts, parts.content.short["after"]), line=line.rstrip("?."))
    elif parts.chance(0.4):
        line = sentence(line)
    return line


def _order_once(parts: Parts, lines: list[str]) -> list[str]:
    return [line for line in lines if not (parts.scene.order_told and "{order}" in line)]


def typos(parts: Parts) -> str:
    return parts.letter(parts.matter(details=0.3))


def long(parts: Parts) -> str:
    """Some paragraphs of background; problem and request are anywhere in it."""
    rng = parts.rng
    story = parts.history(rng.randint(7, 15))
    if parts.chance(0.4):
        at = rng.randrange(len(story))
        story[at:at] = parts.past() if parts.chance(0.4) else [parts.aside(rng.choice(("fine", "trouble")))]
    body = parts.matter(details=0.9)
    if parts.chance(0.35):
        body.insert(0, parts.problem_sentence())
    places = sorted(rng.randrange(len(story) + 1) for _ in body)
    if parts.chance(0.6):
        places = places[:1] * len(body)
    for place, words in zip(reversed(places), reversed(body), strict=True):
        story.insert(place, words)
    return parts.letter(story, paragraphs=True)


def boundary(parts: Parts) -> str:
    """Only one clue says which of two teams the ticket is for."""
    assert isinstance(parts.subject, Boundary)
    return parts.letter(parts.boundary(parts.subject))


def two_topics(parts: Parts) -> str:
    """First a solved problem of another team, then the request, often in one sentence."""
    past = parts.past()
    if parts.chance(0.3):
        past += parts.past() if parts.chance(0.5) else [parts.aside("fine")]
    body = parts.brief() if parts.chance(0.65) else parts.matter(details=0.2)
    if parts.chance(0.4):
        pivot = parts.scene.choose(parts.content.frames["pivot"])
        body[0] = f"{upper_first(pivot)} {lower_first(body[0])}"
    return parts.letter(past + body)


STYLES: dict[str, Callable[[Parts], str]] = {
    "plain": plain,
    "distractor": distractor,
    "request_last": request_last,
    "negation": negation,
    "short": short,
    "typos": typos,
    "long": long,
    "boundary": boundary,
    "two_topics": two_topics,
}
