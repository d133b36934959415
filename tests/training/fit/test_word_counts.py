"""The linear part of the network: closed form, predictions without the ticket itself, folded tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.network import NetworkConfig, WordCounts, bigram_rows, repeats
from models.tokenizer import Tokenizer, build_piece_tokenizer
from training.data.batches import MOST_TOKENS, TokenIds, batches_by_length
from training.fit import word_counts
from training.fit.loop import Examples, predict
from training.fit.mixing import PRIOR_SHARE, choose_share
from training.fit.trainer import balanced, outliers
from training.fit.word_counts import (
    count_tokens,
    describe,
    fit_weights,
    fit_word_counts,
    gram_matrix,
    leave_one_out,
    ngrams,
    one_against_rest,
    pair_rows,
    sample_weights,
)

VOCABULARY = ["[PAD]", "[UNK]", "rake", "raked", "hose", "##ke"]
NOTHING = TokenIds.from_rows([])
ALONE = np.arange(40)  # no two tickets of one template
TOKENS = TokenIds.from_rows([[2, 4, 2], [], [3], [4, 4, 4, 4], [5, 1]])


def test_a_token_that_occurs_four_times_counts_twice():
    counted, paired = count_tokens(TOKENS, len(VOCABULARY), 11)
    assert counted.toarray()[3].tolist() == [0, 0, 0, 0, 2, 0]
    np.testing.assert_allclose(counted.toarray()[0], [0, 0, 2 / np.sqrt(2), 0, 1, 0])
    assert not counted.toarray()[1].any()
    assert paired.shape == (5, 11)
    for row in (0, 2, 3, 4):
        ids = torch.from_numpy(TOKENS.padded(np.array([row])).numpy())
        expected = bigram_rows(ids, 11)[0].tolist()
        assert pair_rows(TOKENS, 11)[TOKENS.starts[row] : TOKENS.starts[row + 1]].tolist() == expected


def test_words_with_similar_spelling_share_ngrams():
    assert ngrams("rake") == {" ra", "rak", "ake", "ke ", " rak", "rake", "ake ", " rake", "rake "}
    assert ngrams("##ke") == {"ke "}
    grams = fit_weights(TokenIds.from_rows([[2], [3], [2, 3]] + [[4]] * 9), VOCABULARY, 7).ngrams.toarray()
    assert grams[2] @ grams[3] > 0.2
    assert not grams[2] @ grams[4]
    lengths = np.linalg.norm(grams, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1)


def products_of(tickets: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = np.arange(tickets) % 3
    vectors = generator.normal(size=(tickets, 8)) + np.eye(3, 8)[targets]
    return (vectors @ vectors.T).astype(np.float32), targets


@pytest.mark.parametrize("balance", [0.0, 0.6])
def test_leave_one_out_equals_fitting_without_the_ticket(balance):
    products, targets = products_of(30)
    targets[targets == 2] = np.where(np.arange(10) < 6, 0, 2)  # teams of different sizes
    weight = sample_weights(targets, balance)
    found = leave_one_out(products, one_against_rest(targets, 3), 2.0 / weight, np.arange(30))
    for ticket in range(0, 30, 7):
        others = np.delete(np.arange(30), ticket)
        loaded = products[np.ix_(others, others)] + np.diag(2.0 / weight[others])
        expected = products[ticket, others] @ np.linalg.solve(loaded, one_against_rest(targets, 3)[others])
        np.testing.assert_allclose(found[ticket], expected, atol=1e-3)


def test_a_group_is_left_out_as_a_whole():
    products, targets = products_of(30)
    groups = np.arange(30)
    groups[[4, 5, 17]] = 4
    y, weight = one_against_rest(targets, 3), sample_weights(targets, 0.3)
    found = leave_one_out(products, y, 2.0 / weight, groups)
    alone = leave_one_out(products, y, 2.0 / weight, np.arange(30))
    others = np.delete(np.arange(30), [4, 5, 17])
    loaded = products[np.ix_(others, others)] + np.diag(2.0 / weight[others])
    expected = products[np.ix_([4, 5, 17], others)] @ np.linalg.solve(loaded, y[others])
    np.testing.assert_allclose(found[[4, 5, 17]], expected, atol=1e-3)
    np.testing.assert_array_equal(found[others], alone[others])


def test_copies_of_a_ticket_do_not_choose_a_small_penalty():
    """The words are the same in both teams, so that only a copy tells the team."""
    generator = np.random.default_rng(0)
    vectors = np.repeat(generator.normal(size=(40, 60)), 3, axis=0) / np.sqrt(60)
    products, targets = (vectors @ vectors.T).astype(np.float32), np.repeat(np.arange(40) % 2, 3)
    apart = word_counts.choose(products, targets, 2, np.repeat(np.arange(40), 3))
    alone = word_counts.choose(products, targets, 2, np.arange(120))
    assert alone.accuracy == 1
    assert apart.accuracy < 0.7


def test_sample_weights_favour_small_teams_and_average_one():
    weight = sample_weights(np.array([0] * 9 + [1]), 0.5)
    assert weight[-1] == pytest.approx(3 * weight[0])
    assert weight.mean() == pytest.approx(1)
    examples = Examples(TOKENS, torch.tensor([0, 0, 0, 0, 1]))
    assert balanced(examples, 0.0).importance is None
    assert balanced(examples, 0.5).importance.argmax() == 4
    trust, soft = torch.tensor([1.0, 1, 1, 1, 0]), torch.tensor([[1.0, 0]] * 4 + [[0.5, 0.5]])
    found = balanced(replace(examples, soft=soft, trust=trust), 0.5).importance
    assert found[0] < found[4] < balanced(examples, 0.5).importance[4]


TEXTS = {
    "garden": ["the rake is bent", "a hose leaks", "rakes and hoses", "the mower stopped", "hose hose hose"],
    "money": [
        "charged twice",
        "the invoice is wrong",
        "refund my money",
        "an invoice came twice",
        "charge it",
    ],
}


@pytest.fixture(scope="module")
def fitted():
    texts = [text for team in TEXTS.values() for text in team * 3]
    tokenizer = Tokenizer(build_piece_tokenizer(texts, pieces=50), 100)
    tokens = TokenIds.from_rows(one.ids for one in tokenizer.encode_batch(texts))
    examples = Examples(tokens, torch.tensor([0] * 15 + [1] * 15))
    config = NetworkConfig(tokenizer.vocab_size, 2, positions="relative", counts=64)
    counts, settings = fit_word_counts(config, examples, examples, NOTHING, tokenizer, seed=0, groups=ALONE)
    return tokenizer, examples, counts, settings


def test_the_tables_give_the_scores_of_ridge_regression(fitted):
    tokenizer, examples, counts, settings = fitted
    entries = sorted(tokenizer.library.get_vocab().items(), key=lambda entry: entry[1])
    weights = fit_weights(examples.tokens, [entry for entry, _ in entries], 64)
    vectors = weights.vectors(examples.tokens)
    targets = examples.targets.numpy()
    loaded = gram_matrix(vectors) + np.diag(settings.penalty / sample_weights(targets, settings.balance))
    learned = np.linalg.solve(loaded, one_against_rest(targets, 2))
    texts = ["the hose is wrong", "hoses hoses hoses", "invoiced", "quartz"]
    tokens = TokenIds.from_rows(one.ids for one in tokenizer.encode_batch(texts))
    expected = inner_of(weights.vectors(tokens), vectors) @ learned / settings.temperature
    np.testing.assert_allclose(predict(counts, tokens).numpy(), expected, atol=0.02)


def test_teachers_decide_what_the_labels_leave_open(fitted):
    """The tickets about hoses have the label of either team; their soft label says the second."""
    tokenizer, _, counts, _ = fitted
    texts = ["the rake is bent", "charged twice", "hose", "hose"] * 10
    soft = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.2, 0.8], [0.2, 0.8]] * 10)
    tokens = TokenIds.from_rows(one.ids for one in tokenizer.encode_batch(texts))
    examples = Examples(tokens, torch.tensor([0, 1, 0, 0, 0, 1, 0, 1] * 5))
    valid = Examples(tokens, torch.tensor([0, 1, 1, 1] * 10))
    plain, alone = fit_word_counts(counts.config, examples, valid, NOTHING, tokenizer, seed=0, groups=ALONE)
    taught, settings = fit_word_counts(
        counts.config, replace(examples, soft=soft), valid, NOTHING, tokenizer, seed=0, groups=ALONE
    )
    assert alone.teaching == 0
    assert settings.teaching > 0
    right = [(predict(one, tokens).argmax(dim=1) == valid.targets).double().mean() for one in (plain, taught)]
    assert right[0] < 0.6
    assert right[1] == 1


def test_teachers_count_only_if_they_gain_more_than_the_sampling_error():
    targets = np.arange(100) % 2
    labels = np.eye(2)[targets].astype(float)
    labels[:4] = labels[:4, ::-1]
    assert word_counts.choose_teaching(labels, 9 * np.eye(2)[targets], targets) == 0  # gains 4 of 100
    labels[:10] = 1 - np.eye(2)[targets[:10]]
    assert word_counts.choose_teaching(labels, 9 * np.eye(2)[targets], targets) > 0  # gains 10 of 100
    assert word_counts.choose_teaching(labels, -np.eye(2)[targets], targets) == 0


def test_logits_of_teachers_have_mean_zero_and_a_common_scale():
    logits = word_counts.teachers_logits(np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32))
    np.testing.assert_allclose(logits.mean(axis=1), 0, atol=1e-6)
    assert logits.std() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(logits).all()
    assert logits[0].argsort().tolist() == [2, 1, 0]


def inner_of(some, others):
    return (some @ others.T).toarray()


def test_word_counts_score_unseen_words_by_their_ngrams(fitted):
    tokenizer, _, counts, settings = fitted
    assert settings.accuracy > 0.9
    assert f"{settings.accuracy:.4f}" in describe(settings)
    tokens = TokenIds.from_rows(one.ids for one in tokenizer.encode_batch(["hosepipes", "overcharged"]))
    assert predict(counts, tokens).argmax(dim=1).tolist() == [0, 1]


def test_outlier_texts_score_low_for_every_team(fitted):
    tokenizer, examples, counts, _ = fitted
    told = tokenizer.encode("my mower and the money in spring").ids
    texts = TokenIds.from_rows([told] * 10)
    taught, _ = fit_word_counts(counts.config, examples, examples, texts, tokenizer, seed=0, groups=ALONE)
    ids = TokenIds.from_rows([told])
    spread, before = (np.ptp(predict(one, ids).numpy()) for one in (taught, counts))
    assert spread < 0.8 * before
    soft = torch.tensor([[0.5, 0.5], [0.4, 0.6], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    found = outliers(Examples(TOKENS, torch.zeros(5, dtype=torch.int64), soft=soft))
    assert found.lengths.tolist() == [3, 4]
    assert len(outliers(examples)) == 0


def test_at_most_the_maximum_number_of_tickets_is_fitted(fitted, monkeypatch):
    tokenizer, examples, counts, _ = fitted
    monkeypatch.setattr(word_counts, "MOST_FITTED", 20)
    monkeypatch.setattr(word_counts, "MOST_COMPARED", 15)
    again, _ = fit_word_counts(counts.config, examples, examples, NOTHING, tokenizer, seed=0, groups=ALONE)
    assert (predict(again, examples.tokens).argmax(dim=1) == examples.targets).double().mean() > 0.8


def test_padding_does_not_change_scores_and_padding_alone_gives_the_bias():
    torch.manual_seed(0)
    counts = WordCounts(NetworkConfig(9, 3, positions="relative", counts=16))
    for table in (counts.token, counts.bigram):
        torch.nn.init.uniform_(table.weight)
    ids = torch.tensor([[3, 4, 3, 0, 0], [5, 6, 7, 8, 2]])
    assert repeats(ids)[0, :3].tolist() == [2, 1, 2]
    torch.testing.assert_close(counts(ids)[:1], counts(ids[:1, :3]))
    assert torch.equal(counts(torch.zeros(1, 3, dtype=torch.int64))[0], counts.bias)


# ------------------------------------------------------------------------------ the network beside them


def test_the_share_is_the_prior_one_unless_the_tickets_differ():
    generator = np.random.default_rng(0)
    targets = np.arange(200) % 2
    right = np.eye(2)[targets] * 4
    noise = generator.normal(size=(200, 2)) * 3
    assert choose_share(right, right, targets) == pytest.approx(PRIOR_SHARE)
    assert choose_share(right + noise / 9, noise, targets) < PRIOR_SHARE
    assert choose_share(noise, right + noise / 9, targets) > PRIOR_SHARE
    assert choose_share(noise[:1], right[:1], targets[:1]) in np.linspace(0, 1, 11)


def test_a_batch_of_long_tickets_is_smaller():
    lengths = np.array([10] * 200 + [640] * 40 + [2 * MOST_TOKENS])
    for generator in (None, np.random.default_rng(0)):
        batches = list(batches_by_length(lengths, 64, generator))
        assert sorted(np.concatenate(batches).tolist()) == list(range(241))
        assert max(map(len, batches)) == 64
        sizes = [len(batch) * lengths[batch].max() for batch in batches if len(batch) > 1]
        assert max(sizes) <= MOST_TOKENS
    assert not list(batches_by_length(np.zeros(0, int), 64))


def test_select_keeps_the_given_order():
    chosen = TOKENS.select(np.array([3, 1, 0]))
    assert chosen.lengths.tolist() == [4, 0, 3]
    assert chosen.flat.tolist() == [4, 4, 4, 4, 2, 4, 2]
    assert len(TOKENS.select(np.zeros(0, int))) == 0
