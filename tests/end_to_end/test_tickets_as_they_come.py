"""Realistic tickets: mails of every kind, long texts, and texts that are not tickets.

All of them are synthetic; the shipped bundle must route them by their request, anywhere in the text.
"""

import html
import re
from pathlib import Path

import numpy as np
import pytest
from mails import FORMATS, around, as_mail

from models.bundle import Bundle, load_bundle
from models.text import join
from training.assess.evaluation import Answers, answer
from training.assess.robustness import in_filler
from training.synthetic import Ticket, generate, out_of_scope

BUNDLE = Path(__file__).parents[2] / "models" / "larkfield"
PLACES = ("start", "middle", "end")
LONGEST_STORY_TOKENS = 2_500


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    if not (BUNDLE / "model.onnx").is_file():
        pytest.skip("models/larkfield holds no bundle")
    return load_bundle(BUNDLE)


@pytest.fixture(scope="module")
def tickets() -> list[Ticket]:
    return generate(60, seed=101, styles=["plain", "request_last"])


@pytest.fixture(scope="module")
def known(bundle: Bundle) -> list[Ticket]:
    """Plain tickets that the bundle routes to the right team when they stand alone."""
    some = generate(80, seed=102, styles=["plain"])
    answers = read(bundle, [ticket.text for ticket in some])
    right = [ticket for ticket, team in zip(some, answers.teams, strict=True) if ticket.team == team]
    assert len(right) >= 40
    return right[:40]


def read(bundle: Bundle, texts: list[str]) -> Answers:
    return answer(bundle, [join(None, text).text for text in texts])


def still_right(answers: Answers, tickets: list[Ticket]) -> float:
    return float(np.mean(np.array(answers.teams) == np.array([ticket.team for ticket in tickets])))


# ------------------------------------------------------------------ what cleaning leaves


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("form", FORMATS)
def test_cleaning_a_mail_keeps_only_the_request(form, tickets):
    for seed, ticket in enumerate(tickets):
        below = around(seed)
        cleaned = squeezed(join(None, as_mail(ticket.text, form, seed)).text)
        assert squeezed(ticket.text) in cleaned
        for foreign in (below.reply, below.role, below.company, below.date, below.address):
            assert foreign not in cleaned
        assert html.unescape(cleaned) == cleaned


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("place", PLACES)
def test_a_long_mail_keeps_all_its_text(form, place, tickets):
    for seed, ticket in enumerate(tickets[:10]):
        story = in_filler(ticket.text, place, seed)
        cleaned = squeezed(join(None, as_mail(story, form, seed)).text)
        assert squeezed(story) in cleaned
        assert len(cleaned.split()) - len(story.split()) <= 6  # a name and a sign-off may stay


# ------------------------------------------------------------------ what the shipped bundle answers


@pytest.mark.parametrize("form", FORMATS)
def test_mail_around_a_ticket_does_not_change_its_team(form, bundle, known):
    if bundle.config.max_tokens < LONGEST_STORY_TOKENS and form == "office":
        pytest.xfail("the baseline recipe's network is misled by a sign-off and a name")
    mails = [as_mail(ticket.text, form, seed) for seed, ticket in enumerate(known)]
    assert still_right(read(bundle, mails), known) >= 0.95


@pytest.mark.parametrize("form", ["plain", "web"])
@pytest.mark.parametrize("place", PLACES)
def test_a_request_is_found_anywhere_in_two_thousand_words(form, place, bundle, known):
    if bundle.config.max_tokens < LONGEST_STORY_TOKENS:
        pytest.xfail(f"the shipped bundle reads only {bundle.config.max_tokens} tokens")
    stories = [as_mail(in_filler(ticket.text, place, n), form, n) for n, ticket in enumerate(known)]
    answers = read(bundle, stories)
    assert not any(ticket.truncated for ticket in answers.tickets)
    share = still_right(answers, known)
    assert share >= 0.75  # what must not get worse; word counts alone find about 0.3
    if share < 0.9:
        pytest.xfail(f"the target is 0.9, the shipped bundle finds {share:.2f} (docs/recipe.md)")


@pytest.mark.parametrize(
    "kind", ["job", "weather", "creative", "noise", "vague", "other_language", "knowledge", "chat"]
)
def test_texts_that_are_not_tickets_go_to_review(kind, bundle):
    if bundle.config.out_of_scope.min_typicality is None:
        pytest.xfail("the shipped bundle does not know what is out of scope")
    texts = sorted({found.text for found in out_of_scope(600, seed=5, split="test") if found.kind == kind})
    routed = read(bundle, texts).routed
    assert routed.mean() <= 0.1, [text for text, sent in zip(texts, routed, strict=True) if sent]


def test_ordinary_short_tickets_go_to_their_teams(bundle):
    texts = [
        "Locked out of my account",
        "Where is my parcel? It should have come on Monday.",
        "I was charged twice for the kettle",
        "Need a return label for the rug please",
        "The mower stopped working after two months of use",
    ]
    answers = read(bundle, texts)
    assert answers.teams == ["account", "delivery", "payment", "returns", "warranty"]
    assert answers.routed[0]
    assert answers.routed.sum() >= 4, [ticket.reasons for ticket in answers.tickets]
