"""Measures a recipe on all data sets and compares it with its targets and the word-count baselines.

    python -m training.bench [--only larkfield synthetic ...] [--recipe default] [--out results.json]

Each run executes `python -m training.train` in a subprocess; each figure comes from its report or is measured
on its bundle. A data set takes minutes.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from models.bundle import Bundle, load_bundle, quiet_options
from models.network import Network, NetworkConfig
from training.assess.baselines import BASELINES, fit_baselines
from training.assess.evaluation import answer, evaluate
from training.command_line import guarded
from training.data.dataset import Columns, DataError, Dataset, Faults, load_dataset, read_tickets
from training.export.onnx_graph import to_onnx
from training.recipe import RecipeError, load_recipe

DATA = Path(__file__).parents[2] / "shared" / "data"
ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)  # of the splits of BANKING77
KEPT_IN_SCOPE = 0.95
LENGTHS = (12, 30, 60, 120)
MEGABYTE = 2**20


class FailedRun(RuntimeError):
    """A training run failed."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. `baselines` holds the same figure of each baseline, where it has one."""

    data: str
    measure: str
    measured: float
    target: float
    at_least: bool  # False: the target is a maximum
    baselines: dict[str, float]

    @property
    def met(self) -> bool:
        return self.measured >= self.target if self.at_least else self.measured <= self.target


@dataclass(frozen=True)
class Trained:
    """One finished run of the training command."""

    bundle: Bundle
    report: dict[str, Any]
    dataset: Dataset
    seconds: float


def train(folder: Path, data: Path, recipe: str, columns: Columns, report: str, seed: int = 0) -> Trained:
    """Run the training command and read what it wrote."""
    out = folder / f"{data.name}-{seed}"
    command = [sys.executable, "-m", "training.train", "--data", str(data), "--recipe", recipe]
    command += ["--out", str(out), "--team-column", columns.team, "--report", report, "--seed", str(seed)]
    started = time.perf_counter()
    run_command(command)
    seconds = time.perf_counter() - started
    content = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return Trained(load_bundle(out), content, load_dataset(data, columns=columns), seconds)


def run_command(command: list[str]) -> None:
    """Run the training command, which prints its errors; FailedRun if it fails."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise FailedRun(f"{' '.join(command[1:])} ended with exit code {code}")


def larkfield(folder: Path, recipe: str) -> list[Figure]:
    run = train(folder, DATA / "larkfield", recipe, Columns(), "ids")
    validation = run.report["validation"]
    worst_style = min(style["accuracy"] for style in validation["per_style"].values())
    robust = {one["router"]: one for one in run.report["robustness"]}
    lost = {name: 100 * (one["clean"] - one["typos"]) for name, one in robust.items()}
    right = {one["router"]: float(one["correct"]) for one in run.report["routers"]}
    long = {name: min(one["long"].values()) for name, one in robust.items()}
    size = sum(path.stat().st_size for path in run.bundle.folder.iterdir()) / MEGABYTE
    name = "Larkfield"
    return [
        Figure(name, "validation tickets right, of 600", right.pop("transformer"), 598, True, right),
        Figure(name, "accuracy in the worst style", worst_style, 0.97, True, {}),
        Figure(name, "points lost to typing errors", lost.pop("transformer"), 1.0, False, lost),
        Figure(
            name, "request anywhere in 2,000 words, worst place", long.pop("transformer"), 0.97, True, long
        ),
        Figure(
            name, "calibration error, 15 bins", run.report["validation"]["calibration_error"], 0.02, False, {}
        ),
        Figure(name, "seconds of the whole command", run.seconds, 300, False, {}),
        Figure(name, "megabytes of the bundle", size, 8, False, {}),
        *speed(run.bundle),
    ]


def synthetic(folder: Path, recipe: str) -> list[Figure]:
    """Train without data, on synthetic tickets, and evaluate on real ones."""
    out = folder / "synthetic"
    command = [sys.executable, "-m", "training.train", "--recipe", recipe, "--out", str(out)]
    run_command([*command, "--report", "none"])
    real = read_tickets(DATA / "larkfield" / "valid.csv", Columns(), Faults())
    written = read_tickets(out.with_name(f"{out.name}.tickets.csv"), Columns(), Faults())
    accuracy = {
        name: float(
            (make().fit(written.texts, written.teams).predict(real.texts) == np.array(real.teams)).mean()
        )
        for name, make in BASELINES.items()
    }
    measured = evaluate(load_bundle(out), real).accuracy
    return [Figure("synthetic tickets", "accuracy on Larkfield's valid.csv", measured, 0.9, True, accuracy)]


def banking77(folder: Path, recipe: str) -> list[Figure]:
    columns = Columns(team="category")
    runs = [train(folder, DATA / "banking77", recipe, columns, "none", seed) for seed in SEEDS]
    accuracy = [run.report["validation"]["accuracy"] for run in runs]
    beside = [baseline_accuracy(run.dataset) for run in runs]
    baselines = {name: float(np.mean([one[name] for one in beside])) for name in BASELINES}
    error = float(np.mean([run.report["validation"]["calibration_error"] for run in runs]))
    name = "BANKING77"
    return [
        Figure(
            name,
            f"accuracy, 10 % held out, {len(SEEDS)} seeds",
            float(np.mean(accuracy)),
            0.93,
            True,
            baselines,
        ),
        Figure(name, "calibration error, 15 bins", error, 0.02, False, {}),
        Figure(
            name,
            "seconds of the whole command",
            float(np.mean([run.seconds for run in runs])),
            300,
            False,
            {},
        ),
    ]


def clinc150(folder: Path, recipe: str) -> list[Figure]:
    columns = Columns(team="intent")
    run = train(folder, DATA / "clinc150", recipe, columns, "none")
    foreign = read_tickets(DATA / "clinc150" / "oos_valid.csv", columns, Faults()).texts
    known = run.dataset.valid
    recall = recall_out_of_scope(
        answer(run.bundle, known.texts).logits.max(axis=1), answer(run.bundle, foreign).logits.max(axis=1)
    )
    accuracy, recalls = {}, {}
    for name, make in BASELINES.items():
        pipeline = make().fit(run.dataset.train.texts, run.dataset.train.teams)
        accuracy[name] = float((pipeline.predict(known.texts) == np.array(known.teams)).mean())
        score: Callable[[Sequence[str]], np.ndarray] = getattr(
            pipeline, "predict_proba" if hasattr(pipeline, "predict_proba") else "decision_function"
        )
        recalls[name] = recall_out_of_scope(score(known.texts).max(axis=1), score(foreign).max(axis=1))
    measured = run.report["validation"]["accuracy"]
    name = "CLINC150"
    return [
        Figure(name, "accuracy in scope", measured, 0.96, True, accuracy),
        Figure(name, "out-of-scope recall, 95 % in scope kept", recall, 0.75, True, recalls),
        Figure(
            name, "calibration error, 15 bins", run.report["validation"]["calibration_error"], 0.02, False, {}
        ),
        Figure(name, "seconds of the whole command", run.seconds, 300, False, {}),
    ]


def desk(file: str, columns: Columns, data: str) -> Callable[[Path, str], list[Figure]]:
    """The figures of a helpdesk's export (`shared/data/desks`).

    A part chosen by hash is held out from training and from the choice of all thresholds. Both baselines are
    trained on all other tickets.
    """

    def figures_of(folder: Path, recipe: str) -> list[Figure]:
        faults = Faults()
        tickets = read_tickets(DATA / "desks" / f"{file}.csv", columns, faults)
        faults.stop_if_fatal()
        apart = np.array([is_held_out(text) for text in tickets.texts])
        rest, held_out = (tickets.select(np.flatnonzero(rows).tolist()) for rows in (~apart, apart))
        source = folder / f"{file}.csv"
        with source.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([("text", "team"), *zip(rest.texts, rest.teams, strict=True)])
        run = train(folder, source, recipe, Columns(), "none")
        found = evaluate(run.bundle, held_out)
        beside = {one.name: one for one in fit_baselines(rest, held_out)}
        accuracy = {name: one.accuracy for name, one in beside.items()}
        macro_f1 = {name: one.macro_f1 for name, one in beside.items()}
        return [
            Figure(data, "accuracy, held out", found.accuracy, accuracy["TF-IDF + SVM"], True, accuracy),
            Figure(data, "macro-F1, held out", found.macro_f1, macro_f1["TF-IDF + SVM"], True, macro_f1),
            Figure(data, "calibration error, held out", found.calibration_error, 0.03, False, {}),
            Figure(data, "routed, held out", found.coverage, 0.1, True, {}),
            Figure(data, "seconds of the whole command", run.seconds, 300, False, {}),
        ]

    return figures_of


def is_held_out(text: str) -> bool:
    """Whether a ticket belongs to the held-out fifth, by a hash of its text."""
    return int(hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:8], 16) % 5 == 4


def recall_out_of_scope(known: np.ndarray, foreign: np.ndarray) -> float:
    """The share of `foreign` scores below the score that KEPT_IN_SCOPE of the `known` scores exceed."""
    return float((foreign < np.quantile(known, 1 - KEPT_IN_SCOPE)).mean())


def baseline_accuracy(dataset: Dataset) -> dict[str, float]:
    actual = np.array(dataset.valid.teams)
    return {
        name: float(
            (
                make().fit(dataset.train.texts, dataset.train.teams).predict(dataset.valid.texts) == actual
            ).mean()
        )
        for name, make in BASELINES.items()
    }


def speed(bundle: Bundle) -> list[Figure]:
    """The time of one ticket through the graph, as a ratio to the network of the baseline recipe."""
    options = quiet_options()
    options.intra_op_num_threads = 1
    vocabulary = min(2_864, bundle.config.vocab_size)
    words = np.random.default_rng(0).integers(2, vocabulary, (1, max(LENGTHS)))
    graph = to_onnx(Network(NetworkConfig(vocab_size=2_864, teams=5)).eval())
    model = (bundle.folder / "model.onnx").read_bytes()
    baseline, ours = (
        onnxruntime.InferenceSession(one, options, providers=["CPUExecutionProvider"])
        for one in (graph, model)
    )
    return [
        Figure(
            "Larkfield",
            f"inference time relative to the baseline network, {length} tokens",
            time_ratio(ours, baseline, words[:, :length]),
            1.0,
            False,
            {},
        )
        for length in LENGTHS
    ]


def time_ratio(ours: Any, baseline: Any, ids: np.ndarray, rounds: int = 60, calls: int = 20) -> float:
    """The median over `rounds` of the ratio of both sessions' times, measured alternately."""
    ratios = []
    for _ in range(rounds):
        times = []
        for session in (ours, baseline):
            started = time.perf_counter()
            for _ in range(calls):
                session.run(["logits"], {"input_ids": ids})
            times.append(time.perf_counter() - started)
        ratios.append(times[0] / times[1])
    return float(np.median(ratios))


def to_markdown(figures: list[Figure]) -> str:
    """The table, with the ratio to each baseline that has the same figure."""
    names = list(BASELINES)
    head = ["data", "measure", "target", "measured", "met", *(f"ratio to {name}" for name in names)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in figures:
        ratios = [
            f"{one.measured / one.baselines[name]:.3f} ({one.baselines[name]:.4g})"
            if one.baselines.get(name)
            else "-"
            for name in names
        ]
        sign = "≥" if one.at_least else "≤"
        cells = [
            one.data,
            one.measure,
            f"{sign} {one.target:g}",
            f"{one.measured:.4g}",
            "yes" if one.met else "no",
        ]
        lines.append("| " + " | ".join([*cells, *ratios]) + " |")
    return "\n".join(lines)


SETS: dict[str, Callable[[Path, str], list[Figure]]] = {
    "larkfield": larkfield,
    "synthetic": synthetic,
    "banking77": banking77,
    "clinc150": clinc150,
    "it_helpdesk": desk("it_helpdesk", Columns(text=("title", "body"), team="group"), "IT help desk"),
    "complaints": desk("complaints", Columns(text=("narrative",), team="product"), "complaints"),
    "five_languages": desk(
        "five_languages", Columns(text=("subject", "body"), team="queue"), "five languages"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.bench", description="Train on every data set and print the table of targets."
    )
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS), metavar="SET")
    parser.add_argument("--recipe", default="default", metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the figures as JSON")
    options = parser.parse_args(arguments)
    return guarded("training.bench", lambda: measure(options), DataError, RecipeError, FailedRun)


def measure(options: argparse.Namespace) -> int:
    """Print the table after each data set; 0 if every target is met, else 1."""
    load_recipe(options.recipe)
    if not DATA.is_dir():
        raise DataError(f"{DATA}: no such folder; put the data sets there")
    if options.out:
        options.out.touch()  # fails now, not after minutes, if it cannot be written
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            figures += SETS[name](Path(folder), options.recipe)
            print(to_markdown(figures), flush=True)
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    if options.out:
        options.out.write_text(
            json.dumps([{**asdict(one), "met": one.met} for one in figures], indent=1) + "\n"
        )
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
