"""Neutral filler sentences that make a ticket long, and texts that belong to no team."""

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
    """Write at least `words` words of text without a request or a team's subject.

    Paragraphs have about `paragraph_words` words and an empty line between them.
    `split` is "test" (no synthetic ticket holds such sentences) or "fit" (those of the synthetic tickets).
    """
    lines = content().filler[{"test": "story", "fit": "life"}[split]]
    rng = random.Random(seed)
    scene = _scene(rng)
    paragraphs: list[list[str]] = [[]]
    told: set[str] = set()
    count = 0
    while count < words:
        line = sentence(scene.choose(lines))
        if line in told:
            continue
        told.add(line)
        if sum(len(said.split()) for said in paragraphs[-1]) >= paragraph_words:
            paragraphs.append([])
        paragraphs[-1].append(line)
        count += len(line.split())
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs)


def out_of_scope(count: int, seed: int = 0, *, split: str = "test") -> list[OutOfScope]:
    """Write texts that belong to no team, each kind in turn.

    `split` is "fit" (may set a threshold or train a detector) or "test" (may only judge one): the two share
    no template, no language and no kind of keyboard noise.
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
