"""Slips of the finger: how many words, which kinds, and that the same seed makes the same ones."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from training.data.typos import SLIPS, WORD, mistype, neighbours, slip

TEXT = (
    "The parcel with my garden chairs was left at the wrong door, and order LK-123456 is still missing a leg."
)


def test_one_word_in_five_is_changed():
    changed = mistype(TEXT, random.Random(0)).split()
    assert len(changed) == len(TEXT.split())
    words = len(WORD.findall(TEXT))
    assert sum(a != b for a, b in zip(TEXT.split(), changed, strict=True)) == round(0.2 * words) == 4


def test_digits_and_punctuation_stay():
    for seed in range(50):
        changed = mistype(TEXT, random.Random(seed))
        assert re.sub(r"[^\W\d_]", "", changed) == re.sub(r"[^\W\d_]", "", TEXT)


@given(st.from_regex(r"[a-zA-Zéß]{2,12}", fullmatch=True), st.integers(0, 10_000))
def test_a_slip_is_one_edit_and_changes_the_word(word, seed):
    changed = slip(word, random.Random(seed))
    if len(set(word)) > 1 or any(neighbours(letter) for letter in word):
        assert changed != word
    assert abs(len(changed) - len(word)) <= 1


def test_each_kind_by_hand():
    never = random.Random(0)
    assert SLIPS["swap"]("door", 0, never) == "odor"
    assert SLIPS["drop"]("door", 3, never) == "doo"
    assert SLIPS["double"]("door", 0, never) == "ddoor"
    assert SLIPS["neighbour"]("Door", 0, never) in ("Soor", "Foor")
    assert (neighbours("q"), neighbours("é")) == ("w", "")


def test_every_kind_happens():
    made = {slip("garden", random.Random(seed)) for seed in range(500)}
    assert {"gaarden", "garen", "agrden", "farden"} <= made


def test_same_seed_same_slips():
    assert (
        mistype(TEXT, random.Random(3)) == mistype(TEXT, random.Random(3)) != mistype(TEXT, random.Random(4))
    )


def test_a_text_without_words_stays():
    assert mistype("?? 12", random.Random(0)) == "?? 12"
