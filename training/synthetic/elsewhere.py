"""Filler text without a request, and texts that belong to no team."""

import random
from dataclasses import dataclass

from training.synthetic.content import content
from training.synthetic.grammar import sentence
from training.synthetic.scene import Scene

NOISE_KINDS = {"fit": ("mash", "repeat"), "test": ("row", "symbols")}


@dataclass(frozen=True)
class OutOfScope:
    text: str
    kind: str  # job, weather, creative, knowledge, selling, other_company, chat, vague, other_language, noise


def filler(words: int, seed: int = 0, paragraph_words: int = 80, split: str = "test") -> str:
    """At least `words` words of text without a request or a team's subject.

    Paragraphs have about `paragraph_words` words and are separated by empty lines. `split` is "fit"
    (sentences that synthetic tickets also use) or "test" (sentences that are in no synthetic ticket).
    """
    lines = content().filler[{"test": "story", "fit": "life"}[split]]
    rng = random.Random(seed)
    scene = _scene(rng)
    paragraphs: list[list[str]] = [[]]
    used: set[str] = set()
    count = 0
    while count < words:
        line = sentence(scene.choose(lines))
        if line in used:
            continue
        used.add(line)
        if sum(len(one.split()) for one in paragraphs[-1]) >= paragraph_words:
            paragraphs.append([])
        paragraphs[-1].append(line)
        count += len(line.split())
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs)


def out_of_scope(count: int, seed: int = 0, *, split: str = "test") -> list[OutOfScope]:
    """Texts that belong to no team, the kinds in turn.

    `split` is "fit", for fitting a detector, or "test", for evaluating it; the two have no template, language
    or kind of keyboard noise in common.
    """
    rng = random.Random(f"{split}-{seed}")
    lines = content().out_of_scope[split]
    kinds = [*sorted(lines), "noise"]
    texts = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        text = _noise(rng, split) if kind == "noise" else _scene(rng).choose(lines[kind])
        texts.append(OutOfScope(text, kind))
    return texts


def _scene(rng: random.Random) -> Scene:
    known = content()
    return Scene(known, rng, known.voices["neutral"], rng.choice(known.products))


def _noise(rng: random.Random, split: str) -> str:
    """Random keyboard noise."""
    kind = rng.choice(NOISE_KINDS[split])
    if kind == "mash":
        words = [
            "".join(rng.choice("asdfghjkl") for _ in range(rng.randint(4, 12)))
            for _ in range(rng.randint(1, 4))
        ]
        return " ".join(words)
    if kind == "repeat":
        return rng.choice("aehlm") * rng.randint(6, 40)
    if kind == "row":
        row = rng.choice(("qwertyuiop", "zxcvbnm", "poiuytrewq", "mnbvcxz", "1234567890"))
        return (row * 3)[rng.randrange(5) :][: rng.randint(6, 24)]
    return "".join(rng.choice("#$%&*@;/=+-_~^<>") for _ in range(rng.randint(4, 20)))
