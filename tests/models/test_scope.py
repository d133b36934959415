"""Review reasons by scope. All tickets are made up."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models import scope
from models.languages import FUNCTION_WORDS, languages_of_words, script
from models.scope import Reading, Scope, read, review_reasons, typicality
from training.assess import scope as assess_scope
from training.assess.scope import KEPT, REFUSED, Scored, fit

SURE = np.array([9.0, 0.0, 0.0], dtype=np.float32)

ENGLISH = {
    "delivery": [
        "Where is my parcel? The tracking has not changed for a week.",
        "My parcel was left at the wrong door by the courier.",
        "The courier never came and the parcel is late again.",
        "Tracking says delivered but there is no parcel here, can you help?",
    ],
    "payment": [
        "My card was charged twice for one order.",
        "The discount code was refused and I was charged the full price.",
        "Please send an invoice for the card payment I need for work.",
        "My card was declined at checkout, can you help?",
    ],
    "account": [
        "I am locked out of my account and the password email never comes.",
        "Please delete my account and my password.",
        "I need to change the email of my account.",
        "The password reset does not work and I cannot sign in.",
    ],
}
FRENCH = {
    "livraison": [
        "Où est mon colis ? Le suivi ne change pas depuis une semaine.",
        "Le colis a été laissé devant la mauvaise porte.",
        "Mon colis est encore en retard, où est le livreur ?",
    ],
    "paiement": [
        "Ma carte a été débitée deux fois pour une commande.",
        "Le code de réduction est refusé et ma carte a été débitée.",
        "Je voudrais une facture pour ma commande.",
    ],
}


def sure(texts: list[str]) -> Scored:
    return Scored(texts, np.full(len(texts), SURE.max()))


def fitted(tickets: dict[str, list[str]], **changes: object) -> Scope:
    texts = [text for listed in tickets.values() for text in listed] * 3
    teams = [team for team, listed in tickets.items() for _ in listed] * 3
    made = fit(texts, teams, sure(texts))
    return made.model_copy(update=changes)


@pytest.fixture(scope="module")
def english() -> Scope:
    return fitted(ENGLISH)


@pytest.fixture(scope="module")
def words_alone() -> Scope:
    """Without the comparison with validation tickets, which a dozen of them are too few for."""
    return fitted(ENGLISH, min_typicality=None)


def test_its_own_tickets_pass(english: Scope) -> None:
    for listed in ENGLISH.values():
        for text in listed:
            assert review_reasons(text, max(SURE), english) == []


@pytest.mark.parametrize(
    "text", ["Locked out of my account", "card charged twice", "WHERE IS MY PARCEL", "password reset broken"]
)
def test_normal_short_tickets_pass(words_alone: Scope, text: str) -> None:
    assert review_reasons(text, max(SURE), words_alone) == []


@pytest.mark.parametrize(
    "text", ["I need help.", "??", "", "help", "can you help", "1234", "🙏", "my ... the"]
)
def test_too_short(words_alone: Scope, text: str) -> None:
    assert review_reasons(text, max(SURE), words_alone) == ["too_short"]


@pytest.mark.parametrize("text", ["asdfkj qwoei zxcvm", "hjkl", "my parcel qqq www eee rrr ttt yyy"])
def test_mostly_unknown_words(words_alone: Scope, text: str) -> None:
    assert review_reasons(text, max(SURE), words_alone) == ["mostly_unknown_words"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Où est mon colis ? Il devait arriver mardi.", "French"),
        ("Ma carte a été débitée deux fois", "French"),
        ("Wo ist mein Paket? Es sollte am Dienstag kommen.", "German"),
        ("¿Dónde está mi pedido? Tenía que llegar el martes.", "Spanish"),
        ("Dov'è il mio ordine? Non è ancora arrivato.", "Italian"),
        ("Onde está a minha encomenda? Ainda não chegou.", "Portuguese"),
        ("Waar is mijn pakket? Het is nog niet aangekomen.", "Dutch"),
        ("Var är mitt paket? Jag har inte fått det.", "Swedish"),
        ("Gdzie jest moja paczka? Jeszcze nie przyszła.", "Polish"),
        ("Missä minun pakettini on? Se ei ole tullut vielä.", "Finnish"),
        ("Где моя посылка?", "CYRILLIC"),
        ("我的包裹在哪里？", "CJK"),
        ("荷物はどこですか。", "CJK"),
        ("أين طردي؟", "ARABIC"),
        ("मेरा पार्सल कहाँ है", "DEVANAGARI"),
        ("Πού είναι το δέμα μου;", "GREEK"),
    ],
)
def test_another_language(words_alone: Scope, text: str, language: str) -> None:
    assert read(text, words_alone).foreign_language == language
    assert review_reasons(text, max(SURE), words_alone) == ["unknown_language"]


@pytest.mark.parametrize(
    "text",
    [
        "Bonjour, my card was charged twice, merci",
        "My parcel for Müller von der Heide is late",
        "The die of my El Greco password is cast, where is my parcel",
        "my pacrel iis late agian wehre si it",
        "Where is my parcel? Спасибо",
        "where is my 📦",
    ],
)
def test_a_foreign_word_or_a_typo_is_not_another_language(words_alone: Scope, text: str) -> None:
    assert read(text, words_alone).foreign_language is None


def test_a_router_trained_in_french_knows_french_and_not_english() -> None:
    french = fitted(FRENCH, min_typicality=None)
    assert french.languages == ["French"]
    assert review_reasons("Mon colis est en retard depuis une semaine", max(SURE), french) == []
    assert review_reasons("I have not seen it yet, where should it be", max(SURE), french) == [
        "unknown_language"
    ]


def test_a_router_trained_in_two_languages_knows_both() -> None:
    both = fitted(ENGLISH | FRENCH, min_typicality=None)
    assert both.languages == ["English", "French"]
    for text in ("Where is my parcel? It is late", "Mon colis est en retard depuis une semaine"):
        assert review_reasons(text, max(SURE), both) == []
    assert review_reasons("Wo ist mein Paket? Es sollte am Dienstag kommen.", max(SURE), both) == [
        "unknown_language"
    ]


def test_small_logits_and_rare_words_that_tell_little_are_out_of_scope(english: Scope) -> None:
    text = "Can you work for me one week, I need the money"
    assert review_reasons("My parcel is late, where is the courier", max(SURE), english) == []
    assert review_reasons(text, max(SURE) - 5, english) == ["out_of_scope"]
    assert review_reasons(text, max(SURE) - 5, english.model_copy(update={"min_typicality": None})) == []


def test_each_measure_counts(english: Scope) -> None:
    ticket = read("My parcel is late, where is the courier", english)
    typical = typicality(ticket, 9.0, english)
    assert typicality(ticket, 8.0, english) < typical
    assert typicality(ticket._replace(informativeness=0.0), 9.0, english) < typical
    assert typicality(ticket._replace(idf=8.0), 9.0, english) < typical


def test_tail_probabilities_are_multiplied() -> None:
    made = Scope(quantiles=[[1.0, 2.0, 3.0], [1.0, 2.0], [-5.0]], min_typicality=-9.0)
    ticket = Reading(words=9, unknown=0, informativeness=0.5, idf=4.0, foreign_language=None)
    assert typicality(ticket, 2.5, made) == pytest.approx(
        math.log(2.5 / 4) + math.log(0.5 / 3) + math.log(1.5 / 2)
    )


def test_a_story_around_a_request_does_not_make_it_rare(english: Scope) -> None:
    request = "My parcel was left at the wrong door by the courier and the parcel is late. " * 4
    story = "Yesterday grandmother painted seven wooden boats beside a quiet river near Lisbon. " * 20
    alone = read(request, english).idf
    assert read(request + story, english).idf == pytest.approx(alone, abs=0.5)
    assert read(story + request + story, english).idf == pytest.approx(alone, abs=0.5)
    assert read(story, english).idf > alone + 1


def test_a_short_ticket_must_tell_something(english: Scope) -> None:
    told = read("I need help", english).informativeness
    assert (
        review_reasons("I need help", max(SURE), english.model_copy(update={"min_informativeness": told}))
        == []
    )
    wanting_more = english.model_copy(update={"min_informativeness": told + 0.01, "min_typicality": None})
    assert review_reasons("I need help", max(SURE), wanting_more) == ["too_short"]


@pytest.mark.parametrize("typo", ["parcle", "parce", "parcell", "parxel", "prcel", "paarcel"])
def test_sees_through_one_typing_error(english: Scope, typo: str) -> None:
    known = scope.vocabulary(english)
    assert known[typo] == known["parcel"]._replace(known=False)


@pytest.mark.parametrize("word", ["prcl", "parcexyl", "tha", "weather", "zzzz"])
def test_does_not_see_through_two_nor_in_a_short_word(english: Scope, word: str) -> None:
    assert scope.vocabulary(english)[word] == scope.Word(0.0, english.unknown_idf, False)


def test_keeps_the_share_of_validation_tickets_where_there_are_no_outliers() -> None:
    texts = [text for listed in ENGLISH.values() for text in listed] * 20
    teams = [team for team, listed in ENGLISH.items() for _ in listed] * 20
    logits = np.random.default_rng(0).normal(size=len(texts))  # so all tickets differ
    made = fit(texts, teams, Scored(texts, logits))
    passed = sum(not review_reasons(text, logit, made) for text, logit in zip(texts, logits, strict=True))
    assert passed / len(texts) == pytest.approx(KEPT, abs=0.005)


def test_outliers_move_the_limit_down_to_where_enough_of_them_are_refused() -> None:
    texts = [text for listed in ENGLISH.values() for text in listed] * 20
    teams = [team for team, listed in ENGLISH.items() for _ in listed] * 20
    draw = np.random.default_rng(0)
    logits = draw.normal(6, 2, size=len(texts))
    others = [f"the courier and the card sing number {number} a song" for number in range(400)]
    outliers = Scored(others, draw.normal(0, 2, size=len(others)))
    alone, beside = (
        fit(texts, teams, Scored(texts, logits)),
        fit(texts, teams, Scored(texts, logits), outliers),
    )
    assert alone.min_typicality is not None
    assert beside.min_typicality is not None
    assert beside.min_typicality < alone.min_typicality
    refused = sum(
        review_reasons(text, logit, beside) == ["out_of_scope"]
        for text, logit in zip(others, outliers.logits, strict=True)
    )
    assert refused / len(others) == pytest.approx(REFUSED, abs=0.01)
    few = fit(texts, teams, Scored(texts, logits), Scored(others[:20], outliers.logits[:20]))
    assert few.min_typicality == alone.min_typicality


def test_outliers_like_tickets_do_not_refuse_more_tickets() -> None:
    texts = [text for listed in ENGLISH.values() for text in listed] * 20
    teams = [team for team, listed in ENGLISH.items() for _ in listed] * 20
    logits = np.random.default_rng(0).normal(size=len(texts))
    tickets = Scored(texts, logits)
    assert fit(texts, teams, tickets, tickets) == fit(texts, teams, tickets)


def test_without_statistics_nothing_is_objected_to() -> None:
    assert review_reasons("asdf", 0.0, Scope()) == []


def test_survives_its_json(english: Scope) -> None:
    again = Scope.model_validate_json(english.model_dump_json())
    assert again == english
    assert read("my parcel qqq", again) == read("my parcel qqq", english)


@pytest.mark.parametrize(
    "changes",
    [
        {"informativeness": "not base64!"},
        {"idf": ""},
        {"words": "one more"},
        {"quantiles": []},
        {"quantiles": [[1.0], [], [1.0]]},
    ],
)
def test_refuses_damaged_figures(english: Scope, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Scope.model_validate(english.model_dump() | changes)


def test_a_word_of_one_team_tells_more_than_a_word_of_all(english: Scope) -> None:
    known = scope.vocabulary(english)
    assert known["parcel"].informativeness > 0.5 > 0.1 > known["the"].informativeness >= 0
    assert known["the"].idf is None
    assert known["courier"].idf > known["parcel"].idf > 0


def test_remembers_only_so_many_words(english: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    known = scope.vocabulary(english)
    monkeypatch.setattr(type(known), "MAX_CACHED", 100)
    for number in range(1000):
        assert not known[f"word{number}"].known
    assert len(known) <= 100
    assert known["parcel"].known


def test_a_word_without_end_is_not_searched_for_slips(
    english: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes the square of the length, in time and memory: this would be 2e10 letters."""
    monkeypatch.setattr(scope, "_deletions", lambda word: pytest.fail(f"{len(word)} letters"))
    words = scope.vocabulary(english)
    assert words["a" * 200_000] == words.unknown
    assert words["漢" * 200_000] == words.unknown
    assert max(map(len, words), default=0) <= scope.MAX_LETTERS_CORRECTED, "and it is not remembered"


def test_the_table_keeps_the_commonest_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assess_scope, "MAX_WORDS", 5)
    assert fitted(ENGLISH).words.split() == ["the", "my", "and", "parcel", "was"]


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=100))
def test_reads_any_text(text: str) -> None:
    ticket = read(text, fitted_once())
    assert 0 <= ticket.unknown <= ticket.words
    assert ticket.informativeness >= 0


_FITTED: list[Scope] = []


def fitted_once() -> Scope:
    if not _FITTED:
        _FITTED.append(fitted(ENGLISH))
    return _FITTED[0]


def test_larkfield_tickets_pass_even_with_typing_errors(larkfield: dict[str, list[dict[str, str]]]) -> None:
    """One ticket in a hundred is held up, as asked for, and with errors in one word of five one in ten."""
    train, valid = larkfield["train"], [row["text"] for row in larkfield["valid"]]
    made = fit([r["text"] for r in train], [r["team"] for r in train], sure(valid))
    assert made.languages == ["English"]
    assert made.scripts == ["LATIN"]
    assert sum(bool(review_reasons(text, max(SURE), made)) for text in valid) <= 9
    rng = random.Random(0)
    garbled = [" ".join(_mistyped(word, rng) for word in text.split()) for text in valid]
    assert sum(bool(review_reasons(text, max(SURE), made)) for text in garbled) <= 60


def _mistyped(word: str, rng: random.Random) -> str:
    if rng.random() > 0.2 or len(word) < 4:
        return word
    at = rng.randrange(len(word) - 1)
    return (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        if rng.random() < 0.5
        else word[:at] + word[at + 1 :]
    )


def test_function_words_are_lower_case_words_of_two_letters_and_more() -> None:
    for language, listed in FUNCTION_WORDS.items():
        found = listed.split()
        assert scope.split(listed) == found, language
        assert len(set(found)) == len(found) >= 25, language
    assert languages_of_words()["und"] == ("German",)


def test_scripts() -> None:
    assert [script(letter) for letter in "aéжΩ日のア한"] == [
        "LATIN", "LATIN", "CYRILLIC", "GREEK", "CJK", "CJK", "CJK", "HANGUL",
    ]  # fmt: skip


def test_the_same_tickets_give_the_same_scope_whatever_the_hash_seed() -> None:
    texts = [text for listed in ENGLISH.values() for text in listed]
    program = (
        "import numpy as np\nfrom training.assess import scope\n"
        f"scope.MAX_WORDS = 7\ntexts = {texts!r}\nteams = ['a', 'b', 'c'] * 4\n"
        "print(scope.fit(texts, teams, scope.Scored(texts, np.ones(12))).model_dump_json())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(made) == 1


def test_a_scope_with_the_field_names_of_earlier_bundles_loads(english: Scope) -> None:
    old_names = {
        "informativeness": "telling",
        "idf": "rarity",
        "unknown_idf": "rarest",
        "quantiles": "usual",
        "min_typicality": "least_usual",
        "max_unknown_share": "most_unknown",
        "min_informativeness": "least_telling",
    }
    stored = {old_names.get(name, name): value for name, value in english.model_dump().items()}
    assert set(old_names.values()) <= set(stored)
    assert Scope.model_validate(stored) == english
