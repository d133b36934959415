"""Small ticket files of this suite's own wording, quick to learn."""

import csv
import random
from pathlib import Path

OPENINGS = ("Hello,", "Good morning.", "Hi there,", "To whom it may concern:", "")
THINGS = ("lawn mower", "parasol", "door mat", "lamp", "rake", "plant pot", "sofa cover", "toaster")
REQUESTS = {
    "garden": ("when should I prune the {0}?", "my {0} has gone rusty outside", "weeds grow over the {0}"),
    "kitchen": (
        "the {0} smells burnt",
        "does the {0} go in the dishwasher",
        "recipe for my {0}",
    ),
    "billing": ("the invoice for the {0} is wrong", "I paid twice for one {0}", "please refund the {0}"),
}


def ticket_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Tickets with a number of their own, so that no two texts are equal."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        team = sorted(REQUESTS)[number % len(REQUESTS)]
        request = generator.choice(REQUESTS[team]).format(generator.choice(THINGS))
        text = f"{generator.choice(OPENINGS)} {request} reference {seed}{number:05d}"
        rows.append({"ticket_id": f"E-{seed}{number:05d}", "text": text, "team": team})
    return rows


def write_csv(path: Path, rows: list[dict[str, str]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path
