"""Measures how faithful word attributions are: `python -m service.tools.faithfulness`.

An attribution is faithful if the decision depends on the tokens that it ranks first. As in the ERASER
benchmark (DeYoung et al. 2020), the top 5, 10, 20 and 50 % of a ticket's tokens are removed, and kept alone:

    comprehensiveness  fall of the chosen team's probability without these tokens, mean over the shares; high
    is good sufficiency        its fall with only these tokens; low is good

The time of each method is measured too, and the time of an explanation over HTTP. The gradient methods need
torch (`training.export.gradients`).
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from models.text import join
from service.explain import explanations as explain
from service.inference.runtime import Runtime, pad
from service.settings import SHIPPED_BUNDLE, Settings
from service.tools.processes import router

SHARES = (0.05, 0.10, 0.20, 0.50)
# Exact Shapley values need 2 to the power of this many runs.
SHORT = 9
AT_TOKENS, LONG_TOKENS = 55, 500

Attribution = Callable[[Sequence[int], np.ndarray], np.ndarray]


@dataclass
class Score:
    """Means of one method over tickets."""

    comprehensiveness: float
    sufficiency: float
    milliseconds: float

    @property
    def difference(self) -> float:
        """Comprehensiveness minus sufficiency: the one number that the methods are ranked by."""
        return self.comprehensiveness - self.sufficiency


class Methods:
    """Attributions of one bundle: each takes ids and contrast (teams,), and returns a number per token."""

    def __init__(self, runtime: Runtime, seed: int = 0) -> None:
        self.runtime = runtime
        self.generator = np.random.default_rng(seed)

    def all(self) -> dict[str, Attribution]:
        """The methods that need only the bundle, by name."""
        found: dict[str, Attribution] = {}
        if explain.has_effects(self.runtime):
            found["decomposition"] = self.decomposition
        return found | {
            "leave one out": self.leave_one_out,
            "leave one out, unknown in its place": self.unknown_in_its_place,
            f"leave out one of {explain.MOST_ABLATIONS} stretches": self.stretches,
            "attention, mean received": self.attention_mean,
            "attention rollout": self.attention_rollout,
            "random": lambda ids, contrast: self.generator.random(len(ids)),
        }

    def margin(self, rows: Sequence[Sequence[int]], contrast: np.ndarray) -> np.ndarray:
        """contrast · logits of each row of ids."""
        difference: np.ndarray = self.runtime.run(pad(rows)) @ contrast.astype(np.float32)
        return difference

    def decomposition(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        feed = {"input_ids": np.array([ids], np.int64), "contrast": contrast[None].astype(np.float32)}
        effects: np.ndarray = self.runtime.session.run(["effects"], feed)[0][0]
        return effects

    def leave_one_out(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        rows = [list(ids), *(explain.without(ids, [place]) for place in range(len(ids)))]
        whole, *parts = self.margin(rows, contrast)
        return whole - np.array(parts)

    def unknown_in_its_place(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        rows = np.tile(np.array(ids), (len(ids) + 1, 1))
        rows[np.arange(1, len(ids) + 1), np.arange(len(ids))] = 1
        whole, *parts = self.margin(rows.tolist(), contrast)
        return whole - np.array(parts)

    def stretches(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        groups = np.array_split(np.arange(len(ids)), min(len(ids), explain.MOST_ABLATIONS))
        rows = [list(ids), *(explain.without(ids, group.tolist()) for group in groups)]
        whole, *parts = self.margin(rows, contrast)
        means = [(whole - part) / len(group) for group, part in zip(groups, parts, strict=True)]
        return np.concatenate(list(map(np.full, map(len, groups), means)))

    def attention_mean(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        received: np.ndarray = self.runtime.attention(pad([ids]))[1][0].mean(axis=(0, 1, 2))
        return received

    def attention_rollout(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        """Abnar and Zuidema (2020): heads averaged, half of each row left to the residual stream."""
        flow = np.eye(len(ids))
        for weights in self.runtime.attention(pad([ids]))[1][0].mean(axis=1):
            flow = (0.5 * weights + 0.5 * np.eye(len(ids))) @ flow
        received: np.ndarray = flow.mean(axis=0)
        return received

    def shapley(self, ids: Sequence[int], contrast: np.ndarray) -> np.ndarray:
        """Exact: every token's mean contribution over all orders in which tokens can come."""
        count = len(ids)
        subsets = [subset for size in range(count + 1) for subset in combinations(range(count), size)]
        margins = self.margin([[ids[place] for place in subset] for subset in subsets], contrast)
        value = dict(zip(subsets, margins, strict=True))
        effects = np.zeros(count)
        for subset in subsets:
            weight = 1 / (count * math.comb(count - 1, len(subset))) if len(subset) < count else 0.0
            for place in set(range(count)) - set(subset):
                effects[place] += weight * (value[tuple(sorted((*subset, place)))] - value[subset])
        return effects


def score(runtime: Runtime, method: Attribution, tickets: Sequence[Sequence[int]]) -> Score:
    """Comprehensiveness, sufficiency and median time of a method on tickets (ids)."""
    falls, milliseconds = [], []
    for ids in tickets:
        logits = runtime.run(pad([ids]))[0]
        contrast = explain.contrast_of(logits, 1.0)
        began = time.perf_counter()
        effects = method(ids, contrast.weights[0])
        milliseconds.append(1e3 * (time.perf_counter() - began))
        falls.append(
            _falls(runtime, ids, np.argsort(-np.asarray(effects, float), kind="stable"), contrast.team)
        )
    comprehensiveness, sufficiency = np.mean(falls, axis=0)
    return Score(float(comprehensiveness), float(sufficiency), median(milliseconds))


def _falls(runtime: Runtime, ids: Sequence[int], ranked: np.ndarray, team: int) -> tuple[float, float]:
    rows: list[list[int]] = [list(ids)]
    for share in SHARES:
        top = set(ranked[: max(1, round(share * len(ids)))].tolist())
        rows.append([each for place, each in enumerate(ids) if place not in top])
        rows.append([each for place, each in enumerate(ids) if place in top])
    logits = runtime.run(pad(rows)).astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    whole, *others = (powers / powers.sum(axis=1, keepdims=True))[:, team]
    return whole - float(np.mean(others[0::2])), whole - float(np.mean(others[1::2]))


def table(scores: dict[str, Score]) -> str:
    """The scores as a Markdown table, most faithful first."""
    lines = [
        "| method | comprehensiveness | sufficiency | difference | ms per ticket |",
        "|---|---|---|---|---|",
    ]
    for name, each in sorted(scores.items(), key=lambda item: -item[1].difference):
        figures = f"{each.comprehensiveness:.3f} | {each.sufficiency:.3f} | {each.difference:.3f}"
        lines.append(f"| {name} | {figures} | {each.milliseconds:.2f} |")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------- over HTTP


def call_milliseconds(port: int, texts: Sequence[str], level: str, rounds: int) -> float:
    """Median time of POST /route on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times = []
    for number in range(rounds + 1):  # the first round only warms up
        for text in texts:
            body = json.dumps({"text": text, "explain": level}).encode()
            began = time.perf_counter()
            connection.request("POST", "/route", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise SystemExit(f"POST /route answered {response.status}: {answer[:200]!r}")
            if number:
                times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def call_table(bundle: Path, runtime: Runtime, texts: Sequence[str]) -> str:
    """Each level over HTTP for tickets of about 55 tokens and one of 500."""

    def count(text: str) -> int:
        return runtime.tokenizer.encode(join(None, text).text).total

    near = [text for text in texts if abs(count(text) - AT_TOKENS) <= 5][:40] or list(texts[:40])
    words = " ".join(texts[:200]).split()
    low, high = 1, len(words)
    while low < high:  # the longest start of all texts with at most 500 tokens
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(" ".join(words[:middle])) <= LONG_TOKENS else (low, middle - 1)
    long = " ".join(words[:low])
    lines = [
        f"| `explain` | {AT_TOKENS} tokens, ms | times plain | {count(long)} tokens, ms |",
        "|---|---|---|---|",
    ]
    with router(bundle=bundle.absolute(), log_requests=False) as server:
        plain = 0.0
        for level in ("none", "tokens", "heads", "full"):
            short = call_milliseconds(server.port, near, level, 5)
            plain = plain or short
            longer = call_milliseconds(server.port, [long], level, 25)
            lines.append(f"| {level} | {short:.2f} | {short / plain:.1f} | {longer:.2f} |")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------- command


def read_texts(path: Path) -> list[str]:
    """The column `text` of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if "text" not in (rows.fieldnames or ()):
            raise SystemExit(f"{path}: a column named 'text' is needed, found {rows.fieldnames}")
        return [row["text"] for row in rows]


def gradient_methods(bundle: Path) -> dict[str, Attribution]:
    """The gradient methods; {} with a message if torch is missing or cannot read the graph."""
    try:
        from training.export.gradients import candidates

        return candidates(bundle)
    except (ImportError, ValueError) as problem:
        print(f"without the gradient methods: {problem}\n", file=sys.stderr)
        return {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        "python -m service.tools.faithfulness",
        description="Measure how faithful and how fast the methods are.",
    )
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/larkfield/valid.csv"))
    parser.add_argument("--tickets", type=int, default=200, help="how many tickets, drawn with seed 0")
    parser.add_argument("--without-calls", action="store_true", help="do not measure over HTTP")
    options = parser.parse_args(arguments)
    if not options.data.exists():
        raise SystemExit(f"{options.data} is not there; name a CSV file with a column 'text' with --data")
    texts = read_texts(options.data)
    runtime = Runtime.load(options.bundle, Settings(provider="cpu"))
    drawn = np.random.default_rng(0).permutation(len(texts))[: options.tickets]
    tickets = _ids(runtime, [texts[number] for number in drawn])
    methods = Methods(runtime)
    everything = methods.all() | gradient_methods(options.bundle)
    print(f"{len(tickets)} tickets of {options.data.name}, mean {np.mean([*map(len, tickets)]):.0f} tokens\n")
    print(table({name: score(runtime, method, tickets) for name, method in everything.items()}))
    short = [ids for ids in _ids(runtime, _short_parts(texts)) if 3 <= len(ids) <= SHORT][: options.tickets]
    if short:
        print(f"\n{len(short)} sentences of 3 to {SHORT} tokens, where Shapley values can be exact\n")
        exact: dict[str, Any] = everything | {"Shapley, exact": methods.shapley}
        print(table({name: score(runtime, method, short) for name, method in exact.items()}))
    if not options.without_calls:
        print(f"\n{call_table(options.bundle, runtime, texts)}")


def _ids(runtime: Runtime, texts: Sequence[str]) -> list[list[int]]:
    encodings = runtime.tokenizer.encode_batch([join(None, text).text for text in texts])
    return [encoding.ids for encoding in encodings if encoding.count > 1]


def _short_parts(texts: Sequence[str]) -> list[str]:
    """Sentences of the tickets, each once."""
    return list(dict.fromkeys(part.strip() for text in texts for part in text.replace("?", ".").split(".")))


if __name__ == "__main__":
    main()
