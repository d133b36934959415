"""Writes the sentences of a ticket: problem, request, remarks about other subjects, greeting and closing."""

import random
import re
from collections.abc import Sequence

from training.synthetic.content import Aside, Boundary, Content, Situation
from training.synthetic.grammar import sentence
from training.synthetic.scene import Scene

VOICES = ("formal", "neutral", "neutral", "friendly", "cross", "worried", "brisk")
HURRIED_VOICES = ("neutral", "friendly", "cross", "worried", "brisk", "brisk")
ORDER_LINES = (
    "Order {order}.", "My order number is {order}.", "Order number: {order}.", "The order is {order}.",
    "It's order {order}.", "Ref {order}.",
)  # fmt: skip


class Parts:
    """Writes the parts of one ticket about a given subject for a given team."""

    def __init__(
        self, content: Content, rng: random.Random, subject: Situation | Boundary, team: str, hurried: bool
    ) -> None:
        self.content, self.rng, self.subject, self.team = content, rng, subject, team
        self.others = [other for other in content.asides if other != team]
        voice = content.voices[rng.choice(HURRIED_VOICES if hurried else VOICES)]
        needs = subject.needs if isinstance(subject, Situation) else ""
        products = [product for product in content.products if not needs or needs in product.kinds]
        self.scene = Scene(content, rng, voice, rng.choice(products))
        self._used: set[str] = set()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def fresh(self, lines: Sequence[str]) -> str:
        """Pick a template that this ticket has not used yet, if there is one."""
        template = self.scene.pick([line for line in lines if line not in self._used] or lines)
        self._used.add(template)
        return template

    # --- the ticket's own subject

    def problem(self) -> str:
        """The problem, as a clause."""
        return self.scene.say(self.fresh(self.subject.lines["what"]))

    def problem_sentence(self) -> str:
        clause = self.problem()
        if self.chance(0.5):
            return sentence(clause)
        return sentence(self.scene.choose(self.scene.voice.lines["lead"], what=clause))

    def detail(self) -> str:
        return sentence(self.scene.choose(self.subject.lines["more"]))

    def request(self) -> str:
        """Ask for something in the customer's voice."""
        kind = self.scene.pick([kind for kind in ("do", "do", "want", "ask") if kind in self.subject.lines])
        return self.question() if kind == "ask" else self.voiced(kind)

    def voiced(self, kind: str) -> str:
        """Put a line of `do` or `want` into the words of this customer's voice."""
        words = self.scene.choose(self.subject.lines[kind])
        return sentence(self.scene.choose(self.scene.voice.lines[kind], **{kind: words}))

    def question(self) -> str:
        """Ask a question that stands alone."""
        return sentence(self.scene.choose(self.subject.lines["ask"]), "?")

    def problem_and_request(self) -> str:
        return joined(self.problem(), self.request(), self.rng)

    def matter(self, details: float = 0.6) -> list[str]:
        """The problem and the request, in one of several orders."""
        form = self.rng.random()
        more = [self.detail()] if self.chance(details) else []
        if form < 0.42:
            return [self.problem_sentence(), *more, self.request()]
        if form < 0.55:
            return [self.request(), self.problem_sentence(), *more]
        if form < 0.65:
            return [self.problem_and_request(), *more]
        if form < 0.72:
            return [*more, self.problem_and_request()]
        if form < 0.80:
            return [self.question(), *more]
        if form < 0.90:
            return [self.problem_sentence(), *more]
        return [self.problem_sentence(), sentence(self.problem()), *more, self.request()]

    def brief(self) -> list[str]:
        """The problem and the request in one sentence."""
        form = self.rng.random()
        if form < 0.3:
            return [self.problem_sentence()]
        if form < 0.5:
            return [self.question()]
        if form < 0.7 and "want" in self.subject.lines:
            return [self.voiced("want")]
        return [self.problem_and_request()]

    def boundary(self, boundary: Boundary) -> list[str]:
        """A ticket on the boundary of two teams: sentences that fit both, and one clue, in any order."""
        shared = sentence(self.scene.say(self.fresh(boundary.lines["shared"])))
        clue = sentence(self.scene.choose(boundary.clues[self.team]))
        told = [shared, clue] if self.chance(0.7) else [clue, shared]
        if self.chance(0.25):
            more = sentence(self.scene.say(self.fresh(boundary.lines["shared"])))
            told.insert(self.rng.randrange(3), more)
        if self.chance(0.25) and not told[0].endswith("?"):
            link = self.scene.pick((", and ", " - ", "; ", ", "))
            told[:2] = [told[0].rstrip(".") + link + lower_first(told[1])]
        if self.chance(0.85):
            told.insert(len(told) if self.chance(0.8) else 0, self.request())
        return told

    # --- other subjects

    def aside(self, tone: str) -> str:
        """A remark about another team's subject: all is "fine", or a small "trouble"."""
        first, second = self._aside(tone), self._aside(tone)
        frame = self.scene.pick(self.content.frames[tone]) if first != second else "{aside}"
        words = [self.scene.say(aside.text) for aside in (first, second)]
        return sentence(self.scene.say(frame, aside=words[0], aside2=words[1]))

    def past(self) -> list[str]:
        """One to three sentences about another team's subject that has been solved."""
        scene, frames = self.scene, self.content.frames
        team = scene.pick(self.others)
        words = {kind: scene.say(self._aside(kind, team).text) for kind in ("matter", "clause", "solved")}
        if self.chance(0.55):
            words["solved"] = scene.choose(frames["done"])
        words["settled"] = scene.choose(frames["settled"])
        told = [sentence(scene.choose(frames["past"], **words))]
        told += [
            sentence(scene.say(self.fresh(frames["glad"]))) for chance in (0.5, 0.2) if self.chance(chance)
        ]
        return told

    def negation(self) -> str:
        """A sentence that says what the ticket is not about."""
        topics = [self.scene.say(self._aside("not").text) for _ in range(2)]
        frame = self.scene.pick(self.content.frames["negation"])
        return sentence(self.scene.say(frame, topic=topics[0], topic2=topics[1]))

    def _aside(self, kind: str, team: str | None = None) -> Aside:
        """A remark about another team's subject that does not contradict this ticket."""
        fitting: list[Aside] = []
        while not fitting:
            asides = self.content.asides[team or self.scene.pick(self.others)][kind]
            fitting = [aside for aside in asides if self._fits(aside, kind)]
        text = self.fresh([aside.text for aside in fitting])
        return next(aside for aside in fitting if aside.text == text)

    def _fits(self, aside: Aside, kind: str) -> bool:
        """Whether a remark fits: only denied topics can contradict a ticket; others are on other orders."""
        if kind == "not":
            return aside.topic not in self.subject.avoid
        return self.subject.item != "no" or not aside.needs_item

    def history(self, count: int) -> list[str]:
        """Background sentences that mention no team's subject."""
        kinds = ["bought", "life", "life", *(["held"] if self.subject.item == "yes" else [])]
        lines = [self.fresh(self.content.filler[self.scene.pick(kinds)]) for _ in range(count)]
        return [sentence(self.scene.say(line)) for line in lines]

    # --- the whole ticket

    def letter(self, body: list[str], closing: bool = True, paragraphs: bool = False) -> str:
        """The sentences with a greeting, an order number, a mood and a closing, each only sometimes."""
        scene, voice = self.scene, self.scene.voice.lines
        if self.chance(0.25):
            at = self.rng.randrange(1, len(body) + 1) if closing else 0
            body.insert(at, sentence(scene.choose(voice["mood"])))
        if not scene.order_told and self.chance(0.3):
            at = self.rng.choice((0, len(body))) if closing else 0
            body.insert(at, scene.choose(ORDER_LINES))
        head = scene.choose(voice["greeting"]) if self.chance(0.55) else ""
        foot = scene.choose(voice["closing"]) if closing and self.chance(0.45) else ""
        lines = self.chance(0.5 if paragraphs else 0.08)
        middle = self._paragraphs(body) if paragraphs and lines else " ".join(body)
        text = ("\n\n" if lines else " ").join(part for part in (head, middle, foot) if part)
        return self._with_subject(text) if self.chance(0.03) else text

    def _with_subject(self, text: str) -> str:
        if "short" not in self.subject.lines:
            return text
        return f"Subject: {sentence(self.scene.choose(self.subject.lines['short']), '')}\n\n{text}"

    def _paragraphs(self, body: Sequence[str]) -> str:
        """Join the sentences to paragraphs of two to six."""
        out, since = [body[0]], 1
        for words in body[1:]:
            new = since >= 2 and (since >= 6 or self.chance(0.3))
            out.append(("\n\n" if new else " ") + words)
            since = 1 if new else since + 1
        return "".join(out)


def joined(clause: str, request: str, rng: random.Random) -> str:
    """Make one sentence of a clause and a request."""
    link = rng.choice((", so ", ", so ", ". ", " - ", "; "))
    return sentence(clause, "") + link + (request if link == ". " else lower_first(request))


def lower_first(text: str) -> str:
    """Start in lower case, unless with "I" or a name in capitals."""
    if re.match(r"I\b|[A-Z]{2}|[A-Z][a-z]+day\b", text):
        return text
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]
