"""What the default recipe adds: pairs, the way past the blocks, windows, teachers, averages."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional
from training_examples import ticket_rows, write_csv

import training.train as train_command
from models.bundle import load_bundle, quiet_options
from models.network import MAX_DISTANCE, PAIR_MULTIPLIER, Network, NetworkConfig, bigram_rows
from models.tokenizer import Tokenizer, build_word_tokenizer, extend_vocabulary
from models.windows import MAX_TOKENS, read_windows, select_window, windows
from training.data.batches import TokenIds
from training.data.dataset import load_dataset
from training.export.from_onnx import from_onnx
from training.export.onnx_graph import to_onnx
from training.fit import trainer as learn
from training.fit.loop import cosine, token_dropout
from training.fit.trainer import add_outliers, encode
from training.recipe import FOLDER, load_recipe
from training.synthetic import filler
from training.teachers.embeddings import (
    ProjectedEmbedding,
    common_pairs,
    materialize_embeddings,
    pair_vectors,
)
from training.teachers.encoder import load_teacher
from training.teachers.outlier_text import (
    MIN_LETTERS_REPLACED,
    drop_similar,
    embed_in_outlier_text,
    filler_sentences,
    outlier_text,
    replace_words,
    sentences,
)
from training.teachers.soft_labels import soft_labels_for

YES = np.array(True)
SIZES = {"vocab_size": 60, "teams": 4, "d": 16, "heads": 4, "feed_forward": 32, "positions": "relative"}
CONFIGS = [
    NetworkConfig(**SIZES),
    NetworkConfig(**SIZES, bigrams=50),
    NetworkConfig(**SIZES, wide=8),
    NetworkConfig(**SIZES, bigrams=50, wide=8),
]


def network_of(config: NetworkConfig) -> Network:
    """A network whose every parameter matters, with its tables as they are stored."""
    torch.manual_seed(0)
    network = Network(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    materialize_embeddings(network)
    return network


def padded(lengths: list[int], vocab_size: int = 60) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(lengths))
    ids = torch.randint(1, vocab_size, (len(lengths), max(lengths)), generator=generator)
    return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], 0)


# ------------------------------------------------------------------------------------------ the network


def test_a_pair_is_a_token_and_its_left_neighbour():
    rows = bigram_rows(torch.tensor([[3, 5, 3, 5]]), 11).tolist()[0]
    assert rows == [
        3,
        (3 * PAIR_MULTIPLIER + 5) % 11,
        (5 * PAIR_MULTIPLIER + 3) % 11,
        (3 * PAIR_MULTIPLIER + 5) % 11,
    ]


@pytest.mark.parametrize("config", CONFIGS[1:])
def test_padding_changes_nothing(config):
    network, ids = network_of(config), padded([7, 3])
    torch.testing.assert_close(network(ids)[1:], network(ids[1:, :3]), atol=1e-6, rtol=1e-6)
    assert network(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()


def test_relative_positions_see_distance_not_place():
    network = network_of(CONFIGS[0])
    mask = network.relative(60)
    assert mask.shape == (4, 60, 60)
    assert torch.equal(mask[:, 0, 5], mask[:, 40, 45])
    assert torch.equal(mask[:, 0, MAX_DISTANCE], mask[:, 0, 59])
    assert not torch.equal(mask[:, 10, 5], mask[:, 5, 10])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("lengths", [[1], [2], [40], [300], [40, 17, 1]])
def test_the_graph_gives_what_torch_gives(config, lengths):
    network, ids = network_of(config), padded(lengths)
    model = to_onnx(network)
    session = onnxruntime.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        logits, weights = network(ids, return_weights=True)
        again = from_onnx(model)(ids)
    got, got_weights = session.run(["logits", "attention"], {"input_ids": ids.numpy(), "with_attention": YES})
    np.testing.assert_allclose(got, logits.numpy(), atol=2e-5)
    np.testing.assert_allclose(got_weights, weights.numpy(), atol=1e-5)
    np.testing.assert_allclose(again.numpy(), logits.numpy(), atol=1e-6)


def held(network: Network, ids: torch.Tensor, contrast: torch.Tensor) -> torch.Tensor:
    """Effects of one ticket by automatic differentiation: weights, gate, norm scales and ReLUs held."""
    config = network.config
    pairs = bigram_rows(ids[None], config.bigrams)[0]
    deep = (network.token(ids) + network.bigram(pairs)).detach().requires_grad_()
    wide = (network.wide.token(ids) + network.wide.bigram(pairs)).detach().requires_grad_()

    def norm(layer, x):
        deviation = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * layer.weight + layer.bias

    def heads(x):
        return x.unflatten(-1, (config.heads, -1)).transpose(0, 1)

    x = deep
    for block in network.blocks:
        layer, normed = block.attention, norm(block.norm_1, x)
        q, k, v = heads(layer.W_Q(normed)), heads(layer.W_K(normed)), heads(layer.W_V(normed))
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + network.relative(len(ids))
        x = x + layer.W_O((torch.softmax(scores, -1).detach() @ v).transpose(0, 1).flatten(1))
        x = x + block.down(functional.relu(block.up(norm(block.norm_2, x))))
    gate = network.wide.gate(wide).softmax(0).detach()
    past = norm(network.wide.norm, (gate * wide).sum(0))
    difference = network.head(torch.cat([norm(network.norm, x).mean(0), past])) @ contrast
    by_deep, by_wide = torch.autograd.grad(difference, [deep, wide])
    effects = (by_deep * (deep - network.token.weight[2:].mean(0))).sum(-1)
    effects = effects + (by_wide * (wide - network.wide.token.weight[2:].mean(0))).sum(-1)
    return effects.detach()


def test_effects_count_pairs_and_the_way_past_the_blocks():
    network, ids = network_of(CONFIGS[3]), padded([23, 9])
    contrast = torch.tensor([1.0, -1.0, 0.0, 0.0])
    session = onnxruntime.InferenceSession(
        to_onnx(network), quiet_options(), providers=["CPUExecutionProvider"]
    )
    feed = {"input_ids": ids.numpy(), "contrast": contrast.numpy()[None]}
    (effects,) = session.run(["effects"], feed)
    np.testing.assert_allclose(effects[0], held(network, ids[0], contrast).numpy(), atol=1e-4)
    np.testing.assert_allclose(effects[1, :9], held(network, ids[1, :9], contrast).numpy(), atol=1e-4)
    assert not effects[1, 9:].any()


# ------------------------------------------------------------------------------------------ long tickets


@pytest.mark.parametrize("tokens", [1, 8, 9, 12, 13, 100, 1001])
def test_windows_cover_every_token_and_overlap_by_half(tokens):
    pieces = windows(tokens, 8)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == tokens
    for (start, end), (following, _) in itertools.pairwise(pieces):
        assert end - start == 8
        assert 0 < following - start <= 4


def test_the_window_with_the_largest_logit_is_selected_and_short_tickets_are_read_whole():
    shapes = []

    def run(ids: np.ndarray) -> np.ndarray:
        """Team 1 is as likely as the id 9 is frequent."""
        shapes.append(ids.shape)
        return np.stack([np.zeros(len(ids)), (ids == 9).mean(axis=1)], axis=1).astype(np.float32)

    long, short = np.full(700, 3), np.full(5, 3)
    long[650:660], short[0] = 9, 9
    batch = np.zeros((2, 700), np.int64)
    batch[0], batch[1, :5] = long, short
    logits, chosen = read_windows(run, batch, 20)
    assert chosen[0][0] < 655 < chosen[0][1]
    assert logits[0].argmax() == 1
    assert chosen[1] == (0, 5)
    assert max(rows * tokens for rows, tokens in shapes) <= MAX_TOKENS
    assert read_windows(run, batch[1:, :5], 20)[1] == [(0, 5)]
    assert shapes[-1] == (1, 5)
    assert (
        max(tokens for _, tokens in shapes[:-1]) == 10
    )  # a outlier_text's windows are half as long: no padding
    assert read_windows(run, batch, 0)[1] == [(0, 700), (0, 5)]


def test_tickets_up_to_the_limit_are_scored_whole_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("models.windows.MAX_TOKENS", 100)
    shapes = []

    def run(ids: np.ndarray) -> np.ndarray:
        shapes.append(ids.shape)
        return np.stack([ids[:, 0], (ids != 0).sum(axis=1)], axis=1).astype(np.float32)

    lengths = [90, 21, 5, 300, 90]
    batch = np.zeros((len(lengths), 300), np.int64)
    for row, length in enumerate(lengths):
        batch[row, :length] = row + 1
    logits, chosen = read_windows(run, batch, 20, whole=90)
    assert [chosen[row] for row in (0, 1, 2, 4)] == [(0, 90), (0, 21), (0, 5), (0, 90)]
    assert logits[[0, 1, 2, 4]].tolist() == [[1, 90], [2, 21], [3, 5], [5, 90]]
    assert chosen[3][1] - chosen[3][0] == 10  # a long ticket is read in halves of a window
    assert max(rows * tokens for rows, tokens in shapes if rows > 1) <= 100


def test_the_median_over_windows_is_subtracted_as_background():
    outlier_text, request = [0.0, 2.0, 0.1], [1.4, 1.9, 0.0]
    long = np.array([outlier_text] * 8 + [request] + [outlier_text] * 8, np.float32)
    which, logits = select_window(long, is_long=True)
    assert which == 8
    assert logits.argmax() == 0
    assert logits.max() < 1.4
    assert select_window(long, is_long=False)[0] == 0
    np.testing.assert_array_equal(select_window(long, is_long=False)[1], long[0])


# ---------------------------------------------------------------------------------------------- learning


def test_thinned_tickets_lose_a_share_and_have_no_holes():
    ids = padded([50] * 200 + [3] * 20 + [30] * 20)
    thinned = token_dropout(ids, 0.2, np.random.default_rng(0)).numpy()
    real = thinned != 0
    assert (real == (np.cumsum(~real, axis=1) == 0)).all()  # padding only at the end
    assert 0.88 < real[:200].sum() / 10_000 < 0.92  # 0.8 stay, and 0.1 become unknown
    assert 0.09 < (thinned[:200] == 1).sum() / 10_000 < 0.14
    np.testing.assert_array_equal(thinned[200:220, :3], ids[200:220, :3])
    assert token_dropout(ids, 0.0, np.random.default_rng(0)) is ids
    alone = token_dropout(padded([4] * 500), 0.9, np.random.default_rng(0))
    assert (alone != 0).any(dim=1).all()


def test_the_rate_rises_then_falls():
    rates = [cosine(step, 100) for step in range(100)]
    assert np.argmax(rates) == 10
    assert rates[0] < 0.1
    assert rates[-1] < 0.03
    assert max(rates) == pytest.approx(1.0)


def labelled(count: int) -> tuple[list[str], np.ndarray]:
    rows = ticket_rows(count)
    teams = sorted({row["team"] for row in rows})
    return [row["text"] for row in rows], np.array([teams.index(row["team"]) for row in rows])


def test_word_counts_doubt_a_wrong_label_out_of_fold():
    texts, targets = labelled(240)
    wrong = targets.copy()
    wrong[::20] = (wrong[::20] + 1) % 3
    labels = soft_labels_for(texts, wrong, 3, None, augmented=0, seed=0)
    assert labels.vectors is None
    np.testing.assert_allclose(labels.soft.sum(axis=1), 1, atol=1e-5)
    assert (labels.soft.argmax(axis=1) == targets).mean() > 0.95


def test_two_teams_and_rare_teams_can_be_taught():
    texts, targets = labelled(60)
    two = soft_labels_for(texts, np.minimum(targets, 1), 2, None, augmented=0, seed=0)
    assert (two.soft.argmax(axis=1) == np.minimum(targets, 1)).mean() > 0.9
    rare = np.concatenate([targets[:50], [3], targets[51:]])
    with pytest.warns(UserWarning, match="least populated"):
        assert soft_labels_for(texts, rare, 4, None, augmented=0, seed=0).soft.shape == (60, 4)


def test_copies_with_other_numbers_do_not_teach_a_wrong_label():
    texts, targets = labelled(120)
    wrong = targets.copy()
    wrong[0] = (targets[0] + 1) % 3
    copies = [f"{texts[0]} {number}" for number in range(20)]
    labels = soft_labels_for(texts + copies, np.append(wrong, [wrong[0]] * 20), 3, None, augmented=0, seed=0)
    assert (labels.soft[120:].argmax(axis=1) == targets[0]).all()


def test_one_template_for_each_team_can_be_taught():
    texts = [f"the rake {n} is bent" for n in range(5)] + [f"charged twice, order {n}" for n in range(5)]
    found = soft_labels_for(texts, np.repeat([0, 1], 5), 2, None, augmented=0, seed=0).soft
    assert (found.argmax(axis=1) == np.repeat([0, 1], 5)).all()
    more = [*texts, "where is my parcel", "the hose leaks"]
    found = soft_labels_for(more, np.repeat([0, 1, 1], [5, 5, 2]), 2, None, augmented=0, seed=0).soft
    assert np.isfinite(found).all()


def test_informed_embeddings_become_a_table():
    torch.manual_seed(0)
    network = Network(CONFIGS[3]).eval()
    vectors = torch.randn(60, 20)
    network.token = ProjectedEmbedding(vectors, 30, 16).eval()
    network.wide.token = ProjectedEmbedding(vectors, 30, 8).eval()
    network.bigram = ProjectedEmbedding(torch.randn(50, 20), 50, 16).eval()
    network.wide.bigram = ProjectedEmbedding(torch.randn(50, 20), 50, 8).eval()
    ids = padded([12, 5])
    before = network(ids)
    untaught = network.token.table()[40] - vectors[40] @ network.token.projection
    assert untaught.abs().max() < 1e-6
    materialize_embeddings(network)
    for owner in (network, network.wide):
        for table in (owner.token, owner.bigram):
            assert torch.equal(table.weight, table.weight.half().float())
    torch.testing.assert_close(network(ids), before, atol=0.02, rtol=0.02)


def test_common_pairs_stand_within_tickets_and_are_words():
    tokens = TokenIds.from_rows([[2, 3, 4, 2, 3], [2, 3, 1, 5], [2, 3]])
    left, right, count = common_pairs(tokens, [False, False, True, True, True, False], 10)
    assert [left.tolist(), right.tolist(), count.tolist()] == [[2], [3], [4]]  # 3 4, 4 2: too rare
    joined = TokenIds.from_rows([[2, 3], [4, 2], [3, 4], [2, 3], [4, 2], [3, 4], [2, 3], [4, 2, 3]])
    left, right, _ = common_pairs(joined, [False, False, True, True, True], 10)
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(2, 3), (4, 2)]
    assert [len(part) for part in common_pairs(TokenIds.from_rows([[2]]), [False] * 3, 5)] == [0, 0, 0]


class SaysMore:
    """Stands in for an encoder: of a pair it says the sum of its words, and of "a b" one thing more."""

    def __init__(self, vocabulary: list[str], vectors: np.ndarray) -> None:
        self.known = dict(zip(vocabulary, vectors, strict=True))

    def vectors(self, texts: list[str]) -> np.ndarray:
        found = np.stack([sum(self.known[word] for word in text.split()) for text in texts])
        found[texts.index("a b"), -1] += 1
        return found


def test_a_pair_starts_from_what_its_words_do_not_say():
    vocabulary = ["[PAD]", "[UNK]", *"abcdefgh"]
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    vectors[:, -1] = 0
    pairs = list(itertools.permutations(range(10), 2))
    tokens = TokenIds.from_rows([list(pair) for pair in pairs for _ in range(3)])
    rows = 997
    found = pair_vectors(vocabulary, vectors, tokens, rows, SaysMore(vocabulary, vectors))
    assert (
        np.argmax(found[:, -1])
        == np.argmax(np.linalg.norm(found, axis=1))
        == (2 * PAIR_MULTIPLIER + 3) % rows
    )
    assert not found[(1 * PAIR_MULTIPLIER + 3) % rows].any()  # [UNK] b


def test_more_words_follow_those_of_the_tickets():
    words = build_word_tokenizer(["rake rake hose hose"])
    more = extend_vocabulary(words, ["apple", "rake", "zinc"])
    assert [more.id_to_token(i) for i in range(more.get_vocab_size())] == [
        "[PAD]",
        "[UNK]",
        "hose",
        "rake",
        "apple",
        "zinc",
    ]
    assert Tokenizer(more, 10).encode("Rake the zinc").ids == [3, 1, 5]


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> Path:
    """The default recipe with less of everything."""
    text = (FOLDER / "default.toml").read_text()
    for setting, value in {"epochs": 3, "batch_size": 16, "window": 16, "bigrams": 64}.items():
        lines = [
            line if not line.startswith(f"{setting} =") else f"{setting} = {value}"
            for line in text.split("\n")
        ]
        text = "\n".join(lines)
    path = tmp_path_factory.mktemp("recipe") / "quick.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return load_dataset(write_csv(tmp_path_factory.mktemp("data") / "t.csv", ticket_rows(240)))


def test_it_trains_without_the_encoder(quick, dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learn, "load_teacher", lambda device: None)
    result = train_command.run(dataset, load_recipe(str(quick)), tmp_path / "out", "out", "none")
    assert "training without it" in capsys.readouterr().out
    assert result.evaluation.accuracy > 0.9
    bundle = load_bundle(tmp_path / "out")
    assert bundle.config.window == 16


def test_a_stopped_run_continues_to_the_same_weights(quick, dataset, tmp_path):
    recipe = load_recipe(str(quick))
    words = build_word_tokenizer(dataset.train.texts)

    def weights(checkpoint: Path) -> torch.Tensor:
        network, _ = learn.train(dataset, recipe, Tokenizer(words, recipe.max_tokens), checkpoint)
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    whole = weights(tmp_path / "whole.pt")
    real_fit = learn.fit

    def stopped(*arguments, on_epoch, **others):
        def stop(epoch):
            on_epoch(epoch)
            if epoch.number == 2:
                raise KeyboardInterrupt

        return real_fit(*arguments, on_epoch=stop, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            weights(tmp_path / "stopped.pt")
    assert torch.equal(weights(tmp_path / "stopped.pt"), whole)


# ------------------------------------------------------------------------------------------ outlier text


def test_outlier_sentences_are_many_and_different():
    found = sentences()
    assert len(set(found)) == len(found) > 100
    assert len(set(sentences(1000))) > 800
    assert all(sentence[-1] in ".?!" and "\n" not in sentence for sentence in found)


def test_a_ticket_is_embedded_unchanged_in_outlier_text():
    generator = np.random.default_rng(0)
    places = []
    for _ in range(50):
        text = embed_in_outlier_text("The rake is bent.", sentences(), 60, generator)
        assert 60 <= len(text.split()) - 4 <= 60 + 20
        places.append(text.index("The rake is bent.") / len(text))
    assert min(places) < 0.1
    assert max(places) > 0.8


def test_some_longer_words_are_replaced_by_unseen_ones():
    generator = np.random.default_rng(0)
    sentence = "The rake and the old shed were bent again"
    made = [replace_words(sentence, ["quasar"], generator).split() for _ in range(50)]
    assert all(len(words) == 9 for words in made)
    assert 0.2 < np.mean([word == "quasar" for words in made for word in words]) * 9 / 5 < 0.6
    kept = [
        word
        for words in made
        for word, old in zip(words, sentence.split(), strict=True)
        if len(old) < MIN_LETTERS_REPLACED
    ]
    assert "quasar" not in kept
    found = outlier_text(["The rake was bent."], 400, generator, ["quasar"])
    assert 0.3 < np.mean(["quasar" in sentence for sentence in found]) < 0.6
    assert outlier_text(["The rake was bent."], 8, generator) == ["The rake was bent."] * 2


def test_training_and_robustness_share_no_filler_sentence():
    found = filler_sentences(5)
    assert len(set(found)) == len(found) > 100
    tests = {sentence for seed in range(5) for sentence in filler(400, seed, paragraph_words=1).split("\n\n")}
    assert not tests & set(found)


def test_sentences_like_a_ticket_are_left_out():
    vectors = np.eye(3, dtype=np.float32)
    tickets = np.array([[0.6, 0.0, 0.8], [0.0, 0.4, 0.0]], np.float32)
    assert drop_similar(["a", "b", "c"], vectors, tickets) == ["b"]


def test_examples_among_prose_keep_their_team_and_prose_has_none(quick, dataset):
    recipe = load_recipe(str(quick), window=60)
    reader = Tokenizer(build_word_tokenizer(dataset.train.texts), 60)
    plain = encode(dataset.train.texts, dataset.train.teams, reader, dataset.teams)
    soft = functional.one_hot(plain.targets, 3).float()
    plain = dataclasses.replace(plain, soft=soft, trust=torch.full((len(plain.targets),), 0.5))
    more = add_outliers(plain, dataset, recipe, reader, None)
    added = slice(len(plain.tokens), None)
    added_tokens = more.tokens.lengths[added].sum()
    assert 0 <= added_tokens - recipe.outlier_exposure * len(plain.tokens.flat) < 60
    assert more.tokens.lengths.max() <= 60
    alone = more.trust[added] == 0
    assert 0.4 < alone.double().mean() < 0.6
    assert torch.equal(more.soft[added][alone], torch.full_like(more.soft[added][alone], 1 / 3))
    assert torch.equal(more.soft[added][~alone].argmax(dim=1), more.targets[added][~alone])
    assert torch.equal(more.soft[: added.start], soft)


# --------------------------------------------------------------------------------------------- the encoder


@pytest.fixture(scope="module")
def teacher():
    found = load_teacher()
    if found is None:
        pytest.skip("the extra `distill` is not installed")
    return found


def test_texts_of_similar_meaning_have_similar_vectors(teacher):
    vectors = teacher.vectors(["I want my money back", "please refund me", "the tomatoes are ripe"])
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert vectors[0] @ vectors[1] > 0.2 + vectors[0] @ vectors[2]


def test_vectors_do_not_depend_on_what_is_read_beside(teacher):
    alone = teacher.vectors(["a cracked plate"])
    beside = teacher.vectors(["a cracked plate", "one two three four five six seven eight nine ten"])
    np.testing.assert_allclose(alone[0], beside[0], atol=0.02)


def test_the_encoder_teaches_other_wordings_too(teacher, monkeypatch):
    monkeypatch.setattr(teacher, "words", ["invoice", "bill", "receipt", "dish", "plate", "bowl"] * 1)
    monkeypatch.setattr(teacher, "_words", None)
    monkeypatch.setattr("training.teachers.soft_labels.NEIGHBOURS", 3)
    texts, targets = labelled(90)
    labels = soft_labels_for(texts, targets, 3, teacher, augmented=40, seed=0)
    assert labels.vectors.shape == (90, 384)
    assert len(labels.augmented_texts) == len(labels.augmented_soft) == len(labels.augmented_vectors) == 40
    assert sum(a.lower() != b for a, b in zip(texts, labels.augmented_texts, strict=False)) > 20
    assert (labels.soft.argmax(axis=1) == targets).mean() > 0.95


def test_the_recipe_is_one_for_all_and_keeps_the_body():
    recipe = load_recipe("default")
    assert (recipe.blocks, recipe.heads, recipe.d, recipe.feed_forward) == (2, 4, 64, 256)
    assert recipe.window < recipe.max_tokens


def test_rows_follow_rows():
    both = TokenIds.from_rows([[1, 2], [3]]).followed_by(TokenIds.from_rows([[4], [5, 6, 7]]))
    assert both.padded(np.arange(4)).tolist() == [[1, 2, 0], [3, 0, 0], [4, 0, 0], [5, 6, 7]]
