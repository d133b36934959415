"""From labelled tickets to a bundle that `python -m service` serves.

    python -m training.train --data tickets.csv --out runs/mine
    python -m training.train --data folder/ --text-column subject --text-column body \\
        --team-column queue --out runs/mine

`run` lists the steps in their order. If a run is stopped or killed, the same command continues it after the
last complete epoch.
"""

import argparse
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models.bundle import Bundle, BundleError, check_replaceable, write_bundle
from models.tokenizer import UNKNOWN_ID
from models.tradeoff import HIGHEST_PRECISION, LOWEST_PRECISION
from training.assess.checks import Checks, check
from training.assess.evaluation import Answers, Evaluation
from training.assess.label_errors import write_suspects
from training.assess.reading import choose_reading
from training.command_line import guarded, share, whole, within
from training.data.columns import add_column_flags, columns_of
from training.data.corrections import read_all
from training.data.dataset import DataError, Dataset, find_files, load_dataset
from training.export.bundle_builder import calibrate, uncalibrated_bundle, validate, with_metrics
from training.export.onnx_graph import to_onnx
from training.fit import distributed
from training.fit.device import CPU, DEVICE_NAMES, Device, DeviceError, choose_device
from training.fit.loop import CheckpointError, Epoch
from training.fit.trainer import find_teacher, make_tokenizer, train
from training.recipe import LARGEST_SEED, MOST_EPOCHS, Recipe, RecipeError, load_recipe, recipe_names
from training.report import card, console, figures, page
from training.report.next_steps import Step, next_steps
from training.synthetic import MOST, generate, write_csv
from training.synthetic.dataset import add_synthetic

SYNTHETIC_TICKETS = 6_000
LONGEST_NAME = 200


@dataclass(frozen=True)
class Run:
    """The result of a training run."""

    bundle: Bundle
    dataset: Dataset
    recipe: Recipe
    history: list[Epoch]
    answers: Answers
    evaluation: Evaluation
    checks: Checks
    steps: list[Step]


def run(
    dataset: Dataset,
    recipe: Recipe,
    out: Path,
    name: str,
    report: str = "texts",
    done: Sequence[dict[str, str]] = (),
    device: Device = CPU,
    precision: float | None = None,
    shown: str = "",
    command: Sequence[str] = (),
) -> Run | None:
    """Tokenize, train, export, calibrate, evaluate, compare, report, and write the bundle to `out`.

    `report`: "texts" shows tickets, "ids" only their ids; "none" skips baselines, robustness and label
    errors. `done` are corrections that a person made before. The next steps name the bundle as `shown` and
    repeat the words of `command`; a report without texts, which others may read, has none. With several
    processes
    (`training.fit.distributed`), ranks above 0 return None after training.
    """
    teacher = find_teacher(recipe, device)
    tokenizer = make_tokenizer(dataset, recipe, teacher)
    if tokenizer.vocab_size <= UNKNOWN_ID + 1:
        raise DataError(
            f"no word occurs {recipe.min_count} times in the training tickets; "
            "add tickets or lower the recipe's min_count"
        )
    print(outline(recipe, teacher is not None))
    work = out.with_name(f".{out.name}.training")
    network, history = train(dataset, recipe, tokenizer, work / "checkpoint.pt", teacher, device)
    if not all(math.isfinite(epoch.loss + epoch.valid_loss) for epoch in history):
        raise RecipeError(
            f"the loss is infinite or not a number: lower the learning rate, which is {recipe.learning_rate}"
        )
    if distributed.rank() > 0:
        return None
    model = to_onnx(network)
    bundle = uncalibrated_bundle(model, tokenizer, dataset, recipe, out, name)
    bundle = choose_reading(bundle, dataset.valid, recipe.whole)
    bundle = calibrate(bundle, dataset, precision)
    answers, evaluation = validate(bundle, dataset.valid)
    bundle = with_metrics(bundle, answers, evaluation)
    checks = Checks() if report == "none" else check(bundle, dataset, recipe.seed)
    texts = report == "texts"
    content = figures.figures(bundle.config, dataset, history, answers, evaluation, checks, texts)
    steps = next_steps(content, shown, command) if command else []
    content["next_steps"] = [asdict(step) for step in steps] if texts else []  # they name files
    write_bundle(
        out,
        model=model,
        tokenizer_json=tokenizer.library.to_str(),
        config=bundle.config,
        model_card=card.model_card(bundle.config, dataset, evaluation, checks),
        reports={"report.html": page.page(content), "report.json": figures.to_json(content)},
    )
    write_suspects(label_errors(out), checks.suspects, dataset, texts, done)
    shutil.rmtree(work, ignore_errors=True)
    return Run(bundle, dataset, recipe, history, answers, evaluation, checks, steps)


def label_errors(out: Path) -> Path:
    return out.with_name(f"{out.name}.label_errors.csv")


def unused_folder(out: Path) -> Path:
    """`out`, or if it holds a bundle the first free of `out`-2, `out`-3, …, so that none is overwritten."""
    free, number = out, 1
    while (free / "config.json").exists():
        number += 1
        free = out.with_name(f"{out.name}-{number}")
    return free


def compare_command(old: Path, new: Path, options: argparse.Namespace, dataset: Dataset) -> str:
    """The command that compares two bundles on the tickets that neither was trained on."""
    _, valid = find_files(options.data, options.valid)
    command = ["python", "-m", "training.compare", str(old), str(new), "--data", str(valid or options.data)]
    if dataset.valid_share is not None:
        command += ["--held-out", f"{dataset.valid_share:g}"]
    for name in options.text_column or ():
        command += ["--text-column", name]
    for team, other in options.merge_team or ():
        command += ["--merge-team", f"{team}={other}"]
    for flag in ("team_column", "id_column", "time_column", "encoding", "skip_rows", "corrections"):
        value = getattr(options, flag)
        if value and (flag, value) != ("team_column", "team"):
            command += [f"--{flag.replace('_', '-')}", str(value)]
    return shlex.join(command)


def check_out(out: Path, name: str) -> None:
    """BundleError before training if the bundle could not be written to `out` afterwards."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise BundleError(out, f"a bundle's name has 1 to {LONGEST_NAME} characters, this one {len(name)}")
    check_replaceable(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent):
            pass
    except OSError as error:
        raise BundleError(out, f"cannot be written: {(error.strerror or str(error)).lower()}") from None


def outline(recipe: Recipe, with_encoder: bool) -> str:
    """The steps of the run: without a terminal, the next output is the end of the first epoch."""
    steps = [
        f"{'at most ' if recipe.max_train_tokens else ''}{recipe.epochs} epochs",
        "calibration and checks",
    ]
    if recipe.teacher == "encoder" and with_encoder:
        steps.insert(0, "a sentence encoder reads the tickets (a few minutes without output)")
    elif recipe.teacher != "none":
        steps.insert(0, "word-count models are fitted")
    return f"recipe {recipe.name}: {', then '.join(steps)}"


def synthetic_tickets(out: Path, count: int, seed: int) -> Path:
    """Write synthetic tickets to a file beside the bundle, for a person to read; returns the file."""
    path = out.with_name(f"{out.name}.tickets.csv")
    write_csv(path, generate(count, seed))
    print(f"no --data: {count:,} synthetic tickets written to {path.name}")
    return path


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m training.train",
        description="Train a router on labelled tickets and write it as a bundle.",
        epilog="If a run is stopped, the same command continues it after the last complete epoch.",
    )
    made.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="a CSV, Excel, JSON or Parquet file, or a folder with train.* and valid.* "
        f"(default: {SYNTHETIC_TICKETS:,} synthetic tickets of the Larkfield shop)",
    )
    made.add_argument(
        "--valid", type=Path, metavar="PATH", help="tickets to validate on (default: a share of --data)"
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the bundle to")
    made.add_argument(
        "--recipe", default="default", metavar="NAME", help=f"{', '.join(recipe_names())} (default: default)"
    )
    made.add_argument(
        "--synthetic",
        type=whole(1, MOST),
        default=0,
        metavar="N",
        help="train also on N synthetic tickets of the Larkfield shop (training.synthetic)",
    )
    made.add_argument(
        "--corrections",
        type=Path,
        metavar="FILE",
        help="the label_errors.csv of an earlier run with `corrected_team` filled in",
    )
    made.add_argument(
        "--report",
        choices=("texts", "ids", "none"),
        default="texts",
        help="texts: with what customers wrote; ids: tickets by id only; none: without baselines, robustness "
        "and label errors (default: texts)",
    )
    made.add_argument(
        "--device",
        choices=DEVICE_NAMES,
        default="auto",
        help="auto: a GPU where PyTorch finds one, else the CPU; emulator: the CPU, with every attention "
        "executed by attention.cu itself, thousands of times slower (default: auto)",
    )
    made.add_argument(
        "--precision",
        type=within(LOWEST_PRECISION, HIGHEST_PRECISION),
        metavar="SHARE",
        help="share of routed tickets that should be right (default: the highest of .99, .98, .95, .90 that "
        "routes a tenth of the tickets); serving can choose another",
    )
    made.add_argument("--name", help="the bundle's name (default: the name of its folder)")
    add_column_flags(made)
    checks = made.add_argument_group("checks")
    checks.add_argument(
        "--valid-share",
        type=share(ends=False),
        metavar="SHARE",
        help="share of --data to validate on, without a validation file (default: 0.2; 0.15 from 3,000 "
        "tickets, 0.1 from 5,000)",
    )
    checks.add_argument(
        "--time-column", metavar="NAME", help="validate on the newest tickets, by the time in this column"
    )
    checks.add_argument(
        "--min-tickets",
        type=whole(1, 1_000_000),
        default=5,
        metavar="N",
        help="teams with fewer training tickets are dropped (default: 5)",
    )
    checks.add_argument(
        "--max-dropped",
        type=share(ends=True),
        default=0.05,
        metavar="SHARE",
        help="stop if a larger share of a file's rows cannot be used (default: 0.05)",
    )
    settings = made.add_argument_group("override the recipe")
    settings.add_argument("--epochs", type=whole(1, MOST_EPOCHS), metavar="N")
    settings.add_argument("--seed", type=whole(0, LARGEST_SEED), metavar="N")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    distributed.start()
    if distributed.rank() > 0:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # only rank 0 prints
    return guarded(
        "training.train",
        lambda: command(options, sys.argv[1:] if arguments is None else arguments),
        BundleError,
        CheckpointError,
        DataError,
        DeviceError,
        RecipeError,
        stopped="stopped; the same command continues it after the last complete epoch",
    )


def command(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the training that the flags describe; returns the exit code."""
    changes = {
        name: getattr(options, name) for name in ("epochs", "seed") if getattr(options, name) is not None
    }
    if options.epochs is not None:
        changes["max_train_tokens"] = 0  # --epochs overrides the token budget
    recipe = load_recipe(options.recipe, **changes)
    device = choose_device(options.device)
    asked = options.out.resolve()
    out = unused_folder(asked)
    if out != asked:
        print(f"{options.out} holds a bundle and is not overwritten: this run writes {out.name}")
    name = options.name if options.name is not None else out.name
    check_out(out, name)
    done = read_all([options.corrections, label_errors(out)])  # fails before training if unreadable
    dataset = dataset_of(options, recipe, out)
    for fault in dataset.faults:
        print(fault)
    print(
        f"{len(dataset.train):,} tickets to train on, {len(dataset.valid):,} to validate on, "
        f"{len(dataset.teams)} teams"
    )
    shown = options.out.with_name(out.name)
    result = run(
        dataset,
        recipe,
        out,
        name,
        options.report,
        done,
        device=device,
        precision=options.precision,
        shown=str(shown),
        command=["python", "-m", "training.train", *arguments],
    )
    distributed.stop()
    if result is None:
        return 0
    print(console.summary(result.bundle, dataset, result.evaluation, result.checks, label_errors(out).name))
    for step in result.steps:
        print(f"next: {step.reason}\n      {step.command}")
    print(f"bundle: {shown}   serve it: make serve BUNDLE={shown}")
    if out != asked and options.data:
        print(f"compare: {compare_command(options.out, shown, options, dataset)}")
    return 0


def dataset_of(options: argparse.Namespace, recipe: Recipe, out: Path) -> Dataset:
    """The checked tickets of `--data`, or synthetic ones, or both."""
    if options.data is None and distributed.world_size() > 1:
        raise DataError("several processes need --data")
    dataset = load_dataset(
        options.data or synthetic_tickets(out, options.synthetic or SYNTHETIC_TICKETS, recipe.seed),
        options.valid,
        columns=columns_of(options),
        min_tickets=options.min_tickets,
        valid_share=options.valid_share,
        max_dropped=options.max_dropped,
        encoding=options.encoding,
        skip_rows=options.skip_rows,
        corrections=options.corrections,
    )
    if options.data and options.synthetic:
        dataset = add_synthetic(dataset, options.synthetic, recipe.seed)
    return dataset


if __name__ == "__main__":
    sys.exit(main())
