"""Trains on every data set and compares the bundle with simpler routers and with its targets.

    python -m training.bench [--sets it_helpdesk ...] [--seeds 0 1 2] [--device cpu] [--out results.json]

Part of each set is held out: training, the choice of thresholds and calibration never see it, and all figures
are measured on it. The other routers are trained on all other tickets. Each run executes
`python -m training.train` in a subprocess and takes minutes.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from models.bundle import Bundle, load_bundle, quiet_options
from models.network import Network, NetworkConfig
from training.assess import held_out
from training.assess.evaluation import answer, evaluate
from training.assess.robustness import measure as measure_robustness
from training.command_line import guarded, whole
from training.data.dataset import Columns, DataError, Faults, read_tickets
from training.data.tickets import Tickets
from training.export.onnx_graph import to_onnx
from training.fit.device import DEVICE_NAMES
from training.recipe import LARGEST_SEED, RecipeError, load_recipe

DATA = Path(__file__).parents[2] / "shared" / "data"
ROOT = Path(__file__).parents[1]
GIVEN_AWAY = 0.05  # of coverage, at most, compared with what the order by confidence allows
LENGTHS = (12, 30, 60, 120)
MEGABYTE = 2**20


class FailedRun(RuntimeError):
    """A training run failed."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. `others` holds the same figure of each simpler router, where it has one."""

    data: str
    measure: str
    measured: float
    target: float
    at_least: bool  # False: the target is a maximum
    others: dict[str, float]

    @property
    def met(self) -> bool:
        return self.measured >= self.target if self.at_least else self.measured <= self.target


@dataclass(frozen=True)
class DataSet:
    """Labelled tickets below `DATA`, and the part of them that is held out.

    `held_out` is a file, or the share of the tickets that a hash of the text and the seed chooses. `accuracy`
    is the target if it is higher than the accuracy of SVM; `foreign` is a file of texts of no team.
    """

    file: str
    columns: Columns
    held_out: str | float = 0.2
    accuracy: float = 0.0
    foreign: str = ""

    def split(self, seed: int) -> tuple[Tickets, Tickets]:
        """(the tickets to train and validate on, the held out ones)."""
        tickets = self.read(self.file)
        if isinstance(self.held_out, str):
            return tickets, self.read(self.held_out)
        apart = np.array([is_held_out(text, self.held_out, seed) for text in tickets.texts])
        rest, held = (tickets.select(np.flatnonzero(rows).tolist()) for rows in (~apart, apart))
        return rest, held

    def read(self, file: str) -> Tickets:
        faults = Faults()
        tickets = read_tickets(DATA / file, self.columns, faults)
        faults.stop_if_fatal()
        return tickets


SETS = {
    "banking77": DataSet("banking77/train.csv", Columns(team="category"), 0.1, accuracy=0.94),
    "clinc150": DataSet(
        "clinc150/train.csv",
        Columns(team="intent"),
        "clinc150/valid.csv",
        accuracy=0.955,
        foreign="clinc150/oos_valid.csv",
    ),
    "it_helpdesk": DataSet("desks/it_helpdesk.csv", Columns(text=("title", "body"), team="group")),
    "complaints": DataSet("desks/complaints.csv", Columns(text=("narrative",), team="product")),
    "five_languages": DataSet("desks/five_languages.csv", Columns(text=("subject", "body"), team="queue")),
    "larkfield": DataSet("larkfield/train.csv", Columns(), "larkfield/valid.csv", accuracy=599 / 600),
}
SYNTHETIC = "synthetic"


def is_held_out(text: str, share: float, seed: int = 0) -> bool:
    """Whether a ticket belongs to the held-out `share`, by a hash of its text and the seed."""
    normalized = " ".join(text.casefold().split())
    return int(hashlib.sha256(f"{seed} {normalized}".encode()).hexdigest()[:8], 16) < share * 16**8


@dataclass(frozen=True)
class Training:
    """How each training command is run."""

    folder: Path
    recipe: str
    device: str

    def run(self, name: str, *arguments: str) -> tuple[Bundle, float]:
        """The bundle `name` and the minutes that the command took; FailedRun if it fails."""
        out = self.folder / name
        command = [sys.executable, "-m", "training.train", "--recipe", self.recipe, "--out", str(out)]
        command += ["--device", self.device, "--report", "none", *arguments]
        started = time.perf_counter()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode  # the command prints its errors
        if code:
            raise FailedRun(f"{' '.join(command[1:])} ended with exit code {code}")
        return load_bundle(out), (time.perf_counter() - started) / 60


def figures_of(name: str, training: Training, seed: int) -> list[Figure]:
    """Train on one set and measure everything on its held out tickets."""
    chosen = SETS[name]
    rest, held = chosen.split(seed)
    source = training.folder / f"{name}.csv"
    with source.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "team"), *zip(rest.texts, rest.teams, strict=True)])
    bundle, minutes = training.run(f"{name}-{seed}", "--data", str(source), "--seed", str(seed))
    figures = [
        *quality(name, chosen, bundle, rest, held),
        *routing(name, bundle, held),
        Figure(name, "calibration error", held_out.error_of_confidence(bundle, held), 0.03, False, {}),
        Figure(name, "minutes of the training command", minutes, 5, False, {}),
    ]
    if chosen.foreign:
        foreign = chosen.read(chosen.foreign).texts
        recall = held_out.out_of_scope_recall(bundle, held.texts, foreign)
        figures.append(Figure(name, "out-of-scope recall, 96 % in scope kept", recall, 0.8, True, {}))
    if name == "larkfield":
        robust = measure_robustness("ours", lambda texts: answer(bundle, texts).teams, held)
        figures.append(Figure(name, "accuracy with typing errors", robust.typos, 0.985, True, {}))
        worst = min(robust.long.values())
        figures.append(Figure(name, "request in 2,000 words, worst place", worst, 0.9, True, {}))
        figures.append(Figure(name, "megabytes of the bundle", megabytes(bundle), 10, False, {}))
        figures += speed(bundle)
    return figures


def quality(name: str, chosen: DataSet, bundle: Bundle, rest: Tickets, held: Tickets) -> list[Figure]:
    """Accuracy, macro-F1 and lost teams beside the simpler routers, which are trained on `rest`."""
    ours = np.array(answer(bundle, held.texts).teams)
    others = {router: predict(held.texts) for router, predict in held_out.routers(rest).items()}
    right = {router: held_out.accuracy(predicted, held) for router, predicted in others.items()}
    f1 = {router: held_out.macro_f1(predicted, held) for router, predicted in others.items()}
    lost = len(held_out.teams_lost(ours, others[held_out.SVM], held, rest))
    target = max(right[held_out.SVM], chosen.accuracy)
    return [
        Figure(
            name, f"accuracy on {len(held):,} tickets", held_out.accuracy(ours, held), target, True, right
        ),
        Figure(name, "macro-F1", held_out.macro_f1(ours, held), f1[held_out.SVM], True, f1),
        Figure(name, "teams with recall 0 that the SVM recalls", lost, 0, False, {}),
    ]


def routing(name: str, bundle: Bundle, held: Tickets) -> list[Figure]:
    """For each precision: the share routed, and how right it is."""
    figures = []
    for precision in held_out.PRECISIONS:
        found = held_out.routed_at(precision, bundle, held)
        least = found.possible - GIVEN_AWAY
        figures.append(Figure(name, f"routed at {precision:.2f}", found.coverage, least, True, {}))
        if found.routed:
            right, allowed = found.right / found.routed, found.least_right / found.routed
            figures.append(Figure(name, f"right of those, at {precision:.2f}", right, allowed, True, {}))
    return figures


def megabytes(bundle: Bundle) -> float:
    return sum(path.stat().st_size for path in bundle.folder.iterdir()) / MEGABYTE


def synthetic(training: Training) -> list[Figure]:
    """Train without data, on synthetic tickets, and evaluate on real ones."""
    bundle, _ = training.run(SYNTHETIC)
    real = SETS["larkfield"].read("larkfield/valid.csv")
    written = bundle.folder.with_name(f"{bundle.folder.name}.tickets.csv")
    tickets = read_tickets(written, Columns(), Faults())
    accuracy = {
        router: held_out.accuracy(predict(real.texts), real)
        for router, predict in held_out.routers(tickets).items()
    }
    measured = evaluate(bundle, real).accuracy
    return [Figure("synthetic tickets", "accuracy on Larkfield's valid.csv", measured, 0.9, True, accuracy)]


def averaged(runs: list[list[Figure]]) -> list[Figure]:
    """The mean of each figure over the runs that have it, in the order of the first run."""
    by_measure: dict[str, list[Figure]] = {}
    for figure in (figure for run in runs for figure in run):
        by_measure.setdefault(figure.measure.split(" on ")[0], []).append(figure)
    return [
        Figure(
            same[0].data,
            same[0].measure,
            float(np.mean([one.measured for one in same])),
            float(np.mean([one.target for one in same])),
            same[0].at_least,
            {router: float(np.mean([one.others[router] for one in same])) for router in same[0].others},
        )
        for same in by_measure.values()
    ]


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
    """The table, with the same figure of each simpler router that has it."""
    head = ["data", "measure", "ours", "target", "met", *held_out.ROUTERS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in figures:
        others = [f"{one.others[name]:.4g}" if name in one.others else "-" for name in held_out.ROUTERS]
        target = f"{'≥' if one.at_least else '≤'} {one.target:.4g}"
        cells = [one.data, one.measure, f"{one.measured:.4g}", target, "yes" if one.met else "no", *others]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.bench", description="Train on every data set and print the table of targets."
    )
    names = [*SETS, SYNTHETIC]
    parser.add_argument("--sets", nargs="+", choices=names, default=names, metavar="SET")
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=whole(0, LARGEST_SEED),
        default=[0],
        metavar="N",
        help="of the split and of training; the figures are means (default: 0)",
    )
    parser.add_argument("--device", choices=DEVICE_NAMES, default="auto", help="as in training.train")
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
        training = Training(Path(folder), options.recipe, options.device)
        for name in options.sets:
            if name == SYNTHETIC:
                figures += synthetic(training)
            else:
                figures += averaged([figures_of(name, training, seed) for seed in options.seeds])
            print(to_markdown(figures), flush=True)
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    if options.out:
        options.out.write_text(
            json.dumps([{**asdict(one), "met": one.met} for one in figures], indent=1) + "\n"
        )
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
