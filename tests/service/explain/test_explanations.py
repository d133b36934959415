"""Explanations: places in the ticket as sent, effects that add up, changes that do change the team."""

import asyncio
import base64
import itertools
from functools import partial
from time import perf_counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from models.bundle import BundleConfig, Thresholds, write_bundle
from models.decision import decide
from models.network import Network, NetworkConfig
from models.text import join
from models.tokenizer import PADDING, UNKNOWN, Tokenizer, build_word_tokenizer, normalizer, word_splitter
from models.windows import read_windows
from service.api.schema import RouteRequest
from service.explain import explanations as explain
from service.explain.word_spans import cut, token_words, words_of
from service.inference.runtime import Runtime, pad
from service.inference.service import Answer, Service
from service.observe.metrics import Metrics
from service.settings import Settings
from training.export.onnx_graph import to_onnx

TICKETS = [
    "You took the money for my hedge trimmer twice, please give one payment back.",
    "The parcel came this morning and two of the four pots were in pieces.",
    "The pressure washer ran well for eight months, now the pump hums and no water comes out.",
    "The cushions look grey in daylight. How do I send them back, and do you give me a label?",
    "The password reset link never reaches me. Please help me get into my account.",
    "Refund please",
]


@pytest.fixture(scope="module")
def runtime(shipped_bundle):
    return Runtime.load(shipped_bundle, Settings(provider="cpu"))


def decode_weights(encoded):
    """Weights (blocks, heads, tokens, tokens), decoded as docs/explanations.md says."""
    codes = np.frombuffer(base64.b64decode(encoded["data"]), "<u2").reshape(encoded["shape"])
    return (codes / 65535.0) ** 2


def answer_of(runtime, text, subject=None):
    """The Answer that an explainer is given for a ticket."""
    joined = join(subject, text)
    encoding = runtime.tokenizer.encode(joined.text)
    logits = runtime.run(pad([encoding.ids]))[0]
    decision = decide(logits, encoding, runtime.config)
    ticket = RouteRequest(text=text, subject=subject, explain="tokens")
    return Answer("id", ticket, runtime, joined, encoding, logits, decision, {}, [])


@pytest.fixture
def ask(runtime):
    return partial(answer_of, runtime)


def team_of(runtime, text, subject=None):
    ids = runtime.tokenizer.encode(join(subject, text).text).ids
    return runtime.config.teams[int(runtime.run(pad([ids]))[0].argmax())]


# --------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("text", TICKETS)
def test_effects_and_rest_add_up_to_the_log_odds(ask, text):
    answer = ask(text)
    explanation = explain.tokens(answer)
    total = sum(word["effect"] for word in explanation["words"]) + explanation["rest"]
    assert total == pytest.approx(explanation["log_odds"], abs=1e-4 * (len(explanation["words"]) + 2))
    probabilities = answer.decision.probabilities
    first, second = probabilities[explanation["team"]], probabilities[explanation["runner_up"]]
    assert [first, second] == sorted(probabilities.values(), reverse=True)[:2]
    assert np.log(first / second) == pytest.approx(explanation["log_odds"], abs=2e-3)
    assert explanation["method"] == "decomposition"


@pytest.mark.parametrize("exponent", [0.6, 1.4])
def test_effects_add_up_to_bent_log_odds(windowed, exponent):
    bent = Runtime(windowed.bundle.with_config(exponent=exponent), Settings(provider="cpu"))
    for text in TICKETS[:3]:
        answer = answer_of(bent, text)
        explanation = explain.tokens(answer)
        probabilities = answer.decision.probabilities
        first, second = probabilities[explanation["team"]], probabilities[explanation["runner_up"]]
        assert np.log(first / second) == pytest.approx(explanation["log_odds"], abs=2e-3)
        plain = explain.tokens(answer_of(windowed, text))
        factor = explanation["log_odds"] / plain["log_odds"]
        for word, other in zip(explanation["words"], plain["words"], strict=True):
            assert word["effect"] == pytest.approx(factor * other["effect"], rel=0.02, abs=2e-3)


@pytest.mark.parametrize("text", TICKETS)
def test_words_are_slices_of_plain_text(ask, text):
    explanation = explain.tokens(ask(text))
    slices = [text[word["start"] : word["end"]] for word in explanation["words"]]
    assert "".join(slices) == text.replace(" ", "")


def test_the_words_with_the_largest_effects_matter_more_than_others(ask, runtime):
    """Cutting the top fifth lowers the odds more than cutting as many words at random (mean of 20 draws)."""
    generator = np.random.default_rng(0)
    by_effect, by_chance = [], []
    for text in TICKETS[:5]:
        answer = ask(text)
        words = words_of(answer.joined, answer.encoding)
        contrast = explain.contrast_of(answer.logits, runtime.config.temperature)
        effects = [word["effect"] for word in explain.tokens(answer)["words"]]
        count = max(1, len(words) // 5)

        def fall(chosen, words=words, answer=answer, contrast=contrast):
            lost = [token for number in chosen for token in words[number].tokens]
            logits = runtime.run(pad([explain.without(answer.encoding.ids, lost)]))
            return contrast.log_odds - (logits @ contrast.weights[0]).item()

        by_effect.append(fall(np.argsort(effects)[::-1][:count]))
        by_chance += [fall(generator.choice(len(words), count, replace=False)) for _ in range(20)]
    assert np.mean(by_effect) > np.mean(by_chance) + 0.5


@pytest.mark.parametrize("text", TICKETS)
def test_without_the_words_of_the_smallest_change_the_other_team_wins(ask, runtime, text):
    explanation = explain.tokens(ask(text, subject="Question"))
    change = explanation["smallest_change"]
    if not change["words"]:
        assert change["team"] is None
        pytest.skip("this bundle keeps its team whichever few words go")
    left = {"subject": "Question", "text": text}
    for number in sorted(change["words"], reverse=True):
        word = explanation["words"][number]
        field = left[word["field"]]
        left[word["field"]] = field[: word["start"]] + field[word["end"] :]
    assert team_of(runtime, left["text"], left["subject"]) == change["team"] != explanation["team"]
    assert len(change["words"]) <= change["limit"] <= explain.MOST_WORDS


def test_at_least_one_of_the_tickets_has_a_smallest_change(ask):
    changes = [explain.tokens(ask(text))["smallest_change"] for text in TICKETS]
    assert any(change["words"] for change in changes)


@pytest.mark.parametrize(
    "text", ["Refund please", "password", "pump hums, send label", "My card was charged"]
)
def test_an_exhaustive_smallest_change_is_the_smallest(ask, runtime, text):
    answer = ask(text)
    change = explain.tokens(answer)["smallest_change"]
    assert change["exhaustive"]
    words = words_of(answer.joined, answer.encoding)
    wordy = [number for number, word in enumerate(words) if word.wordy]
    most = len(change["words"]) - 1 if change["words"] else len(wordy)
    for size in range(1, most + 1):
        for chosen in itertools.combinations(wordy, size):
            left = cut("text", text, [words[number] for number in chosen])
            assert team_of(runtime, left) == answer.decision.team


def test_a_long_ticket_is_searched_within_bounds(ask, runtime, monkeypatch):
    """Work is counted, not timed: tokens that went through the graph."""
    ran = []
    real = runtime.session.run
    monkeypatch.setattr(explain, "has_effects", lambda _: True)  # it would ask the session
    text = " ".join(TICKETS * 8)
    answer = ask(text)

    class Counting:
        def run(self, outputs, feed):
            ran.append(feed["input_ids"].size)
            return real(outputs, feed)

    monkeypatch.setattr(runtime, "session", Counting())
    explain.tokens(answer)
    count = answer.encoding.count
    once = 2 * (count + runtime.config.window)  # windows overlap by half
    assert sum(ran) <= explain.TRIED_TOKENS + once * (explain.MOST_RUNS + 6)


def test_a_ticket_that_is_cut_off_explains_what_was_read(ask, runtime):
    text = " ".join(TICKETS * (2 + runtime.config.max_tokens // 60))
    answer = ask(text)
    explanation = explain.tokens(answer)
    assert answer.encoding.truncated
    last_read = answer.encoding.offsets[-1][1]
    assert explanation["words"][-1]["end"] <= last_read < len(text)
    window = explanation["window"]
    assert window["tokens"] == answer.encoding.count == runtime.config.max_tokens
    assert len(explain.heads(answer)["tokens"]) == window["end"] - window["start"]


def test_a_bundle_without_effects_is_explained_by_leaving_out(ask, runtime, monkeypatch):
    monkeypatch.setattr(explain, "has_effects", lambda _: False)
    text = "Refund please, my card was charged"
    answer = ask(text)
    explanation = explain.tokens(answer)
    assert explanation["method"] == "leave_one_out"
    contrast = explain.contrast_of(answer.logits, runtime.config.temperature)
    for number, word in enumerate(words_of(answer.joined, answer.encoding)):
        logits = runtime.run(pad([explain.without(answer.encoding.ids, word.tokens)]))
        fall = contrast.log_odds - (logits @ contrast.weights[0]).item()
        assert explanation["words"][number]["effect"] == pytest.approx(fall, abs=1e-3)
    assert explain.tokens(ask(" ".join(TICKETS)))["words"]  # more words than ablations


@pytest.mark.parametrize("level", explain.EXPLAINERS)
@pytest.mark.parametrize("text", ["", " ", "\u200b", "a", "!", "<p></p>", "\ud800", "😀😀", "١٢٣"])
def test_every_level_has_an_answer_for_next_to_nothing(ask, level, text):
    explanation = explain.EXPLAINERS[level](ask(text))
    assert explanation["level"] == level


@pytest.mark.parametrize(
    ("requests", "text", "level", "thread"),
    [
        (1, TICKETS[0], "tokens", False),
        (2, TICKETS[0], "tokens", True),
        (1, TICKETS[0], "heads", True),
        (1, " ".join(TICKETS), "tokens", True),
    ],
    ids=["alone", "not alone", "another level", "a long ticket"],
)
def test_only_what_keeps_nobody_waiting_is_explained_on_the_event_loop(
    runtime, tmp_path, monkeypatch, requests, text, level, thread
):
    service = Service(Settings(), Metrics(tmp_path))
    service.explainers.update(explain.EXPLAINERS)
    service.swap(runtime)
    service.requests = range(requests)
    threads = []
    real = service.engine.explain
    monkeypatch.setattr(service.engine, "explain", lambda *given: threads.append(1) or real(*given))
    ticket = RouteRequest(text=text, explain=level)
    answer = asyncio.run(service.answer(ticket, "id", service.admission.ticket(ticket), began=perf_counter()))
    service.engine.close()
    assert answer.explanation["level"] == level
    assert bool(threads) == thread


# -------------------------------------------------------------------------------------------- windows

WINDOW = 12


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A bundle that reads twelve tokens at a time, with a network as it was born."""
    torch.manual_seed(1)
    library = build_word_tokenizer(TICKETS, min_count=1)
    size = library.get_vocab_size()
    sizes = {"d": 16, "heads": 2, "feed_forward": 32, "positions": "relative", "bigrams": 64, "wide": 8}
    network = Network(NetworkConfig(vocab_size=size, teams=3, **sizes)).eval()
    config = BundleConfig(
        name="windowed",
        version="1",
        teams=["one", "two", "three"],
        max_tokens=200,
        window=WINDOW,
        vocab_size=size,
        temperature=0.5,
        thresholds=Thresholds(confidence=0.5),
    )
    folder = tmp_path_factory.mktemp("bundles") / "windowed"
    write_bundle(
        folder,
        model=to_onnx(network),
        tokenizer_json=library.to_str(),
        config=config,
        model_card="# Windowed",
    )
    return Runtime.load(folder, Settings(provider="cpu"))


def test_a_long_ticket_is_explained_by_the_window_that_spoke_for_it(windowed):
    text = " ".join(TICKETS)
    answer = answer_of(windowed, text)
    count = answer.encoding.count
    assert count > 4 * WINDOW
    _, ((start, end),) = read_windows(windowed.run, pad([answer.encoding.ids]), WINDOW)

    explanation = explain.tokens(answer)
    assert explanation["window"] == {"start": start, "end": end, "tokens": count}
    inside = text[answer.encoding.offsets[start][0] : answer.encoding.offsets[end - 1][1]]
    assert "".join(text[w["start"] : w["end"]] for w in explanation["words"]) == inside.replace(" ", "")
    total = sum(word["effect"] for word in explanation["words"]) + explanation["rest"]
    assert total == pytest.approx(explanation["log_odds"], abs=2e-3)

    full = explain.full(answer)
    length = end - start
    assert length < count / 4
    assert full["weights"]["shape"] == [2, 2, length, length]
    assert [token["word"] for token in full["tokens"]] == list(range(length))
    expected = windowed.attention(pad([answer.encoding.ids[start:end]]))[1][0]
    assert np.abs(decode_weights(full["weights"]) - expected).max() < 1.6e-5


def test_the_smallest_change_of_a_long_ticket_holds_for_all_its_windows(windowed):
    found = 0
    for order in itertools.islice(itertools.permutations(TICKETS), 0, 700, 35):
        text = " ".join(order)
        explanation = explain.tokens(answer_of(windowed, text))
        change = explanation["smallest_change"]
        for number in sorted(change["words"], reverse=True):
            word = explanation["words"][number]
            text = text[: word["start"]] + text[word["end"] :]
        if change["words"]:
            found += 1
            assert team_of(windowed, text) == change["team"] != explanation["team"]
    assert found


# ---------------------------------------------------------------------------------------------- words

AS_SENT = [
    ("<p>Hello,</p><p>my <b>discount</b> code was&nbsp;declined</p>", ["my", "discount", "code", "declined"]),
    ("“Charged twice”… really", ["Charged", "twice", "really"]),
    ("cafe\u0301 table broke", ["cafe\u0301", "table", "broke"]),
    ("👩‍🌾 my order 😀 never came", ["my", "order", "never", "came"]),
    ("ﬁrst order", ["order"]),
]


@pytest.mark.parametrize(("text", "expected"), AS_SENT)
def test_places_are_places_in_the_ticket_as_it_was_sent(ask, text, expected):
    answer = ask(text, subject="Ａ problem — ‘quoted’")
    words = words_of(answer.joined, answer.encoding)
    sent = {"subject": "Ａ problem — ‘quoted’", "text": text}
    found = [sent[word.field][word.start : word.end] for word in words]
    for word in expected:
        assert word in found
    assert "problem" in found
    for field in sent:
        places = [(word.start, word.end) for word in words if word.field == field]
        assert all(0 <= start < end <= len(sent[field]) for start, end in places)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(places)), "words overlap"
    taken = [token for word in words for token in word.tokens]
    assert taken == sorted(taken)
    numbers = token_words(words, answer.encoding.count)
    assert [numbers[token] for word in words for token in word.tokens] == [
        number for number, word in enumerate(words) for _ in word.tokens
    ]


def test_three_tokens_from_one_character_are_one_word(ask):
    answer = ask("wait… what")
    words = words_of(answer.joined, answer.encoding)
    assert [(word.start, word.end) for word in words] == [(0, 4), (4, 5), (6, 10)]


def subword_tokenizer(texts):
    library = Library(models.BPE(unk_token=UNKNOWN))
    library.normalizer = normalizer()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [word_splitter(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[PADDING, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library, 100)


def test_subwords_become_words_again():
    tokenizer = subword_tokenizer(TICKETS)
    text = "Unbelievable: the shipment's gone, order 12345!"
    joined = join("Hi", text)
    encoding = tokenizer.encode(joined.text)
    assert encoding.count > 12
    words = words_of(joined, encoding)
    found = [("Hi" if word.field == "subject" else text)[word.start : word.end] for word in words]
    assert found == [
        "Hi",
        "Unbelievable",
        ":",
        "the",
        "shipment",
        "'",
        "s",
        "gone",
        ",",
        "order",
        "12345",
        "!",
    ]
    assert sorted(token for word in words for token in word.tokens) == list(range(encoding.count))


def test_cut_takes_words_out_and_leaves_the_rest():
    joined = join(None, "one two three")
    words = words_of(joined, subword_tokenizer(["one two three"]).encode(joined.text))
    assert cut("text", "one two three", [words[2], words[0]]) == " two "
    assert cut("subject", None, words) is None


# ---------------------------------------------------------------------------------------------- heads


def test_heads_say_who_reads_what(ask, runtime):
    text = TICKETS[0]
    answer = ask(text)
    explanation = explain.heads(answer)
    weights = runtime.attention(pad([answer.encoding.ids]))[1][0]
    count = answer.encoding.count
    assert [text[token["start"] : token["end"]] for token in explanation["tokens"]] == answer.encoding.tokens
    assert len(explanation["heads"]) == weights.shape[0] * weights.shape[1]
    for head in explanation["heads"]:
        matrix = weights[head["block"] - 1, head["head"] - 1]
        strongest = head["strongest"][0]
        assert strongest["weight"] == pytest.approx(matrix.max(), abs=1e-4)
        assert matrix[strongest["reader"], strongest["read"]] == matrix.max()
        assert [pair["weight"] for pair in head["strongest"]] == sorted(
            (pair["weight"] for pair in head["strongest"]), reverse=True
        )
        np.testing.assert_allclose(head["mean_read"], matrix.mean(axis=0), atol=1e-4)
        assert len(head["mean_read"]) == count
        assert head["summary"].endswith(".")


def shifted(count, offset, weight):
    matrix = np.full((count, count), (1 - weight) / (count - 1))
    rows = np.arange(count)
    matrix[rows, (rows + offset) % count] = weight
    return matrix


def band(count):
    rows = np.arange(count)
    near = (np.abs(rows[:, None] - rows) <= 3).astype(float)
    return near / near.sum(axis=1, keepdims=True)


COUNT = 20
PATTERNS = {
    "self": (shifted(COUNT, 0, 0.6), "Tokens mostly read themselves (60% of the weight)."),
    "previous": (shifted(COUNT, -1, 0.7), "Tokens mostly read the one before them (70% of the weight)."),
    "next": (shifted(COUNT, 1, 0.7), "Tokens mostly read the one after them (70% of the weight)."),
    "words": (np.full((COUNT, COUNT), 0.4 / 18), "Most tokens read “w3” (40%) and “w7” (20%)."),
    "nearby": (band(COUNT), "Tokens read their neighbourhood: 100% of the weight stays within 3 places."),
    "broad": (np.full((COUNT, COUNT), 1 / COUNT), "Reads broadly, most of all “w0” (5%)."),
}
PATTERNS["words"][0][:, 3], PATTERNS["words"][0][:, 7] = 0.4, 0.2


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_head_is_described_by_what_it_does(kind):
    weights, sentence = PATTERNS[kind]
    described = explain.describe(weights, [f"w{i}" for i in range(COUNT)])
    assert described["pattern"]["kind"] == kind
    assert described["summary"] == sentence


# ----------------------------------------------------------------------------------------------- full


def test_full_carries_every_weight(ask, runtime):
    answer = ask(TICKETS[2])
    explanation = explain.full(answer)
    weights = runtime.attention(pad([answer.encoding.ids]))[1][0]
    decoded = decode_weights(explanation["weights"])
    assert decoded.shape == weights.shape
    assert np.abs(decoded - weights).max() < 1.6e-5
    assert explanation["heads"] == explain.heads(answer)["heads"]


def test_the_encoding_is_what_its_documentation_says():
    encoded = explain.encode_weights(np.array([[[[0.25, 1], [0, 1e-9]]]]))
    assert encoded["encoding"] == "sqrt-uint16-le-base64"
    assert encoded["shape"] == [1, 1, 2, 2]
    assert encoded["data"] == "AID//wAAAgA="  # 0x8000, 0xffff, 0, 2


def test_a_ticket_is_explained_without_touching_the_answer(ask):
    answer = ask(TICKETS[0])
    before = (list(answer.encoding.ids), answer.logits.copy(), answer.decision)
    for level in explain.EXPLAINERS.values():
        level(answer)
    assert answer.encoding.ids == before[0]
    assert (answer.logits == before[1]).all()
    assert answer.decision == before[2]
    assert answer.explanation is None
