"""From tickets and a recipe to a trained network: tokenize, distil, add outlier text, run the loop."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as Library

from models.network import Network, NetworkConfig
from models.tokenizer import Tokenizer, build_piece_tokenizer, build_word_tokenizer, extend_vocabulary
from training.data.batches import TokenIds
from training.data.dataset import Dataset, fingerprint
from training.fit.device import CPU, Device, LaunchCounter
from training.fit.distributed import world_size
from training.fit.loop import Epoch, Examples, fit
from training.fit.mixing import mix
from training.fit.progress import Progress
from training.fit.word_counts import describe, fit_word_counts, sample_weights
from training.recipe import Recipe
from training.teachers.embeddings import init_from_encoder, materialize_embeddings
from training.teachers.encoder import Teacher, load_teacher
from training.teachers.outlier_text import (
    drop_similar,
    embed_in_outlier_text,
    filler_sentences,
    outlier_text,
    sentences,
    short_texts,
)
from training.teachers.soft_labels import soft_labels_for
from training.versions import library_versions

ENCODE_BATCH = 1024
FEWEST_EPOCHS = 3
RANDOM_SENTENCES = 2_000  # outlier sentences beside the fixed ones
FILLER_SCENES = 60  # synthetic scenes whose filler sentences are also outlier text
TOKENS_PER_WORD = 1.25  # of outlier text; keeps a ticket embedded in it within the window
MOST_COUNTS = 2**23  # numbers in the word counts' table of pairs; with many teams it has fewer rows
SHORT_OUTLIERS = 0.5  # share of the outlier texts without a ticket that have a few words
NO_TICKET = -1  # row number of outlier text without a ticket


def find_teacher(recipe: Recipe, device: Device = CPU) -> Teacher | None:
    """The packaged sentence encoder, if the recipe uses it and it is installed."""
    teacher = load_teacher(device.torch_device) if recipe.teacher == "encoder" else None
    if recipe.teacher == "encoder" and teacher is None:
        print("no sentence encoder is installed (pip install larkfield-router[distill]): training without it")
    return teacher


def make_tokenizer(dataset: Dataset, recipe: Recipe, teacher: Teacher | None) -> Tokenizer:
    """The words of the training tickets and, with an encoder, the English words of its vocabulary."""
    words = vocabulary_of(dataset.train.texts, recipe)
    return Tokenizer(extend_vocabulary(words, teacher.words) if teacher else words, recipe.max_tokens)


def vocabulary_of(texts: Sequence[str], recipe: Recipe) -> Library:
    """The vocabulary of the tickets: their words, and pieces of them where the recipe has pieces."""
    if recipe.pieces:
        return build_piece_tokenizer(texts, recipe.min_count, recipe.pieces)
    return build_word_tokenizer(texts, recipe.min_count)


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
    whole = network_config(recipe, tokenizer, dataset.teams)
    network = Network(replace(whole, counts=0))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{tokenizer.vocab_size:,} vocabulary entries, {parameters:,} parameters, recipe {recipe.name}")
    # Tickets are cut to what the network reads at once, in training as in serving.
    reader = Tokenizer(tokenizer.library, max(recipe.window, recipe.whole) or recipe.max_tokens)
    train_examples = encode(dataset.train.texts, dataset.train.teams, reader, dataset.teams)
    valid_examples = encode(dataset.valid.texts, dataset.valid.teams, reader, dataset.teams)
    tickets = train_examples
    if teacher:
        trained = vocabulary_of(dataset.train.texts, recipe).get_vocab_size()
        init_from_encoder(network, tokenizer, trained, train_examples.tokens, teacher)
    if recipe.teacher != "none":
        train_examples = add_soft_labels(train_examples, dataset, recipe, reader, teacher)
        assert train_examples.soft is not None
        tickets = replace(tickets, soft=train_examples.soft[: len(tickets.targets)])
        train_examples = add_outliers(train_examples, dataset, recipe, reader, teacher)
    counts = None
    if recipe.counts:
        texts = outliers(train_examples)
        counts, settings = fit_word_counts(
            whole,
            tickets,
            valid_examples,
            texts,
            tokenizer,
            recipe.seed,
            groups=dataset.train.template_groups,
        )
        train_examples = balanced(train_examples, settings.balance)
        print(describe(settings))
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
        materialize_embeddings(network)
    return (mix(network, counts, valid_examples) if counts else network), history


def outliers(examples: Examples) -> TokenIds:
    """The outlier texts: the examples with a uniform soft label."""
    if examples.soft is None:
        return TokenIds.from_rows([])
    uniform = (examples.soft == examples.soft[:, :1]).all(dim=1)
    return examples.tokens.select(np.flatnonzero(uniform.numpy()))


def balanced(examples: Examples, balance: float) -> Examples:
    """The examples with larger weights for small teams (`sample_weights`); unweighted if `balance` is 0.

    An example without a hard label (`trust` 0) has the mean weight of the teams under its soft label.
    """
    if not balance:
        return examples
    targets = examples.targets
    weight = torch.from_numpy(sample_weights(targets.numpy(), balance))
    if examples.soft is not None and examples.trust is not None:
        of_team = torch.ones(examples.soft.shape[1]).index_put((targets,), weight)
        weight = torch.where(examples.trust == 0, examples.soft @ of_team, weight)
    return replace(examples, importance=weight)


def within_budget(recipe: Recipe, tokens: int) -> Recipe:
    """The recipe, with fewer epochs if they would read more than `max_train_tokens` tokens."""
    if not recipe.max_train_tokens:
        return recipe
    epochs = min(recipe.epochs, max(FEWEST_EPOCHS, round(recipe.max_train_tokens / max(1, tokens))))
    return replace(recipe, epochs=epochs)


def add_soft_labels(
    examples: Examples, dataset: Dataset, recipe: Recipe, reader: Tokenizer, teacher: Teacher | None
) -> Examples:
    """The training examples with soft labels and vectors, followed by their augmented copies."""
    texts, targets, count = dataset.train.texts, examples.targets, len(examples.tokens)
    order = np.random.default_rng((recipe.seed, 2)).permutation(count)
    tokens_read = np.cumsum(examples.tokens.lengths[order])
    rows = order[tokens_read <= recipe.max_teacher_tokens]
    augmented = (
        int((tokens_read <= recipe.max_teacher_tokens - tokens_read[len(rows) - 1]).sum()) if len(rows) else 0
    )
    labels = soft_labels_for(
        [texts[row] for row in rows],
        targets.numpy()[rows],
        len(dataset.teams),
        teacher,
        augmented=augmented,
        seed=recipe.seed,
    )
    soft = torch.nn.functional.one_hot(targets, len(dataset.teams)).float()
    trust = torch.ones(count)
    soft[rows], trust[rows] = torch.from_numpy(labels.soft), 1 - recipe.soft_labels
    if labels.vectors is None or labels.augmented_soft is None or labels.augmented_vectors is None:
        return replace(examples, soft=soft, trust=trust)
    vectors = torch.zeros(count, labels.vectors.shape[1])
    vectors[rows] = torch.from_numpy(labels.vectors)
    augmented_texts = reader.encode_batch(list(labels.augmented_texts))
    return Examples(
        examples.tokens.followed_by(TokenIds.from_rows(encoding.ids for encoding in augmented_texts)),
        torch.cat([targets, targets[rows[:augmented]]]),
        torch.cat([soft, torch.from_numpy(labels.augmented_soft)]),
        torch.cat([trust, torch.zeros(augmented)]),
        torch.cat([vectors, torch.from_numpy(labels.augmented_vectors)]),
    )


def add_outliers(
    examples: Examples, dataset: Dataset, recipe: Recipe, reader: Tokenizer, teacher: Teacher | None
) -> Examples:
    """The training examples followed by outlier text, alternately alone and with a ticket embedded in it.

    It has `recipe.outlier_exposure` tokens per token of the tickets. A ticket in outlier text keeps its soft
    label; the soft label of outlier text alone is uniform. Neither has a vector to predict.
    """
    if examples.soft is None or examples.trust is None or not recipe.outlier_exposure:
        return examples
    texts, lengths = dataset.train.texts, examples.tokens.lengths[: len(dataset.train)]
    source = [*sentences(RANDOM_SENTENCES, recipe.seed), *filler_sentences(FILLER_SCENES, recipe.seed)]
    short: list[str] = []  # without an encoder nothing tells which of them this desk's tickets resemble
    if teacher and examples.vectors is not None:
        of_tickets = examples.vectors[: len(texts)].numpy()
        source = drop_similar(source, teacher.vectors(source), of_tickets)
        short = short_texts()
        short = drop_similar(short, teacher.vectors(short), of_tickets)
    own = set(vocabulary_of(texts, recipe).get_vocab())
    unseen_words = [word for word in teacher.words if word not in own] if teacher else []
    generator = np.random.default_rng((recipe.seed, 3))
    rows: list[int] = []
    encoded: list[list[int]] = []
    room = recipe.outlier_exposure * lengths.sum()
    while source and room > 0:
        row = int(generator.integers(len(texts))) if len(rows) % 2 else NO_TICKET
        # Half of the examples fill the half window that serving uses for long tickets (models.windows).
        window = (recipe.window or reader.max_tokens) // int(generator.integers(1, 3))
        free = max(0, window - (0 if row == NO_TICKET else int(lengths[row])))
        words = int(generator.uniform(0, free) / TOKENS_PER_WORD)
        if row == NO_TICKET and short and generator.random() < SHORT_OUTLIERS:
            text = " ".join(outlier_text(short, 1, generator, unseen_words))
        elif row == NO_TICKET:
            text = " ".join(outlier_text(source, words, generator, unseen_words))
        else:
            text = embed_in_outlier_text(texts[row], source, words, generator, unseen_words)
        ids = reader.encode(text).ids
        rows.append(row)
        encoded.append(ids)
        room -= len(ids)
    return _append_outliers(examples, np.array(rows, dtype=np.int64), encoded)


def _append_outliers(examples: Examples, rows: np.ndarray, encoded: list[list[int]]) -> Examples:
    """Append the `encoded` outlier texts; `rows` are the tickets in them, or NO_TICKET."""
    if examples.soft is None or examples.trust is None or not encoded:
        return examples
    alone = torch.from_numpy(rows == NO_TICKET)
    ticket = torch.from_numpy(np.maximum(rows, 0))
    teams = examples.soft.shape[1]
    vectors = examples.vectors
    return Examples(
        examples.tokens.followed_by(TokenIds.from_rows(encoded)),
        torch.cat([examples.targets, examples.targets[ticket]]),
        torch.cat([examples.soft, torch.where(alone[:, None], 1 / teams, examples.soft[ticket])]),
        torch.cat([examples.trust, torch.where(alone, 0.0, examples.trust[ticket])]),
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
        counts=min(recipe.counts, MOST_COUNTS // (len(teams) + 1)),
        embedding_dropout=recipe.embedding_dropout,
        bigram_dropout=recipe.bigram_dropout,
    )


def encode(
    texts: Sequence[str], labels: Sequence[str], tokenizer: Tokenizer, teams: Sequence[str]
) -> Examples:
    """Token ids and team numbers of the texts, encoded in chunks to bound memory."""
    pieces = (texts[start : start + ENCODE_BATCH] for start in range(0, len(texts), ENCODE_BATCH))
    ids = (encoding.ids for piece in pieces for encoding in tokenizer.encode_batch(piece))
    number = {team: index for index, team in enumerate(teams)}
    return Examples(TokenIds.from_rows(ids), torch.tensor([number[label] for label in labels]))


def run_identity(dataset: Dataset, recipe: Recipe) -> str:
    """A hash of everything that determines a run's weights: data, recipe, versions, threads, world size."""
    parts = [fingerprint(dataset.train), fingerprint(dataset.valid), json.dumps(recipe.to_json())]
    parts += [json.dumps(library_versions()), str(torch.get_num_threads()), str(world_size())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
