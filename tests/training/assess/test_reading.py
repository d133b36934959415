"""The length up to which tickets are read whole is chosen on the validation tickets."""

from types import SimpleNamespace

import numpy as np
import pytest

from models.bundle import Bundle, BundleConfig, Thresholds
from models.tokenizer import Tokenizer, build_word_tokenizer
from training.assess import reading
from training.assess.reading import choose_reading, described

TEAMS = ["a", "b"]


def bundle_of(window: int) -> Bundle:
    tokenizer = Tokenizer(build_word_tokenizer(["w w"]), 4096)
    config = BundleConfig(
        name="n",
        version="v",
        teams=TEAMS,
        max_tokens=4096,
        window=window,
        vocab_size=tokenizer.vocab_size,
        temperature=1.0,
        thresholds=Thresholds(confidence=0.5),
    )
    return Bundle(SimpleNamespace(), config, tokenizer, SimpleNamespace())


@pytest.fixture
def right_when(monkeypatch):
    """Tickets of team a; which lengths are right as a whole, and which in windows, is what the test says."""

    def set_up(whole, cut):
        def run(bundle, tokens):
            limit = max(bundle.config.window, bundle.config.whole)
            right = [(whole if length <= limit else cut)(length) for length in tokens.lengths]
            return np.array([[1.0, 0.0] if one else [0.0, 1.0] for one in right])

        monkeypatch.setattr(reading, "run_graph", run)

    return set_up


def tickets(*lengths: int):
    return SimpleNamespace(texts=["w " * length for length in lengths], teams=["a"] * len(lengths))


def test_long_tickets_are_read_whole_where_that_is_better_or_as_good(right_when):
    right_when(whole=lambda length: True, cut=lambda length: False)
    read = choose_reading(bundle_of(10), tickets(5, 12, 15, 30, 60), 20).config
    assert read.whole == 40  # two tickets up to 20, one up to 40; nothing was tried beyond
    assert [one["tickets"] for one in read.reading] == [2, 1]
    assert "of 2 with up to 20 tokens, 2 are right read whole and 0 in windows" in described(read)


def test_windows_win_where_they_are_better_beyond_luck(right_when):
    right_when(whole=lambda length: False, cut=lambda length: True)
    read = choose_reading(bundle_of(10), tickets(*[15] * 9), 20).config
    assert read.whole == 10
    assert described(read).startswith("tickets of up to 10 tokens")
    right_when(whole=lambda length: length != 15, cut=lambda length: True)
    assert choose_reading(bundle_of(10), tickets(15, *[14] * 8), 20).config.whole == 20


def test_without_long_tickets_what_was_learned_is_the_limit(right_when):
    right_when(whole=lambda length: True, cut=lambda length: True)
    assert choose_reading(bundle_of(10), tickets(5, 6), 20).config.whole == 20


def test_a_bundle_without_windows_reads_everything_whole():
    bundle = bundle_of(0)
    assert choose_reading(bundle, tickets(50), 20) is bundle
    assert described(bundle.config) == "every ticket is read whole"
