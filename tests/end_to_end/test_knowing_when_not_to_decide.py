"""Which tickets the shipped bundle sends to review, and with which reason; and which it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.bundle import Bundle, load_bundle
from models.text import join
from training.assess.evaluation import answer

BUNDLE = Path(__file__).parents[2] / "models" / "larkfield"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    loaded = load_bundle(BUNDLE)
    if loaded.config.out_of_scope.min_typicality is None:
        pytest.skip("the shipped bundle was made before bundles knew what is in scope")
    return loaded


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("I need help.", {"too_short"}),
        ("??", {"too_short"}),
        ("Hello", {"too_short"}),
        ("Please help me!!!", {"too_short"}),
        (
            "Dear hiring manager, I would like to apply for the position of sales assistant. Please find my"
            " CV and cover letter attached.",
            {"out_of_scope", "low_confidence"},
        ),
        ("Do you have any vacancies for a gardener this summer?", {"out_of_scope", "low_confidence"}),
        ("What will the weather be like in Paris tomorrow?", {"out_of_scope", "low_confidence"}),
        ("Will it rain this weekend?", {"out_of_scope", "low_confidence", "too_short"}),
        ("Write me a poem about autumn leaves.", {"out_of_scope", "low_confidence", "too_short"}),
        ("Who won the football last night?", {"out_of_scope", "low_confidence", "too_short"}),
        ("asdfkj qwoeir zxcvm lkjsdf", {"mostly_unknown_words"}),
        ("jjjjjjjjjjjj kkkkkkk", {"mostly_unknown_words"}),
        ("Ma carte a été débitée deux fois pour la même commande.", {"transferred_language"}),
        ("Wo ist mein Paket? Es sollte am Dienstag ankommen.", {"transferred_language"}),
        ("¿Dónde está mi pedido? Tenía que llegar el martes.", {"transferred_language"}),
        ("Gdzie jest moja paczka? Miała przyjść we wtorek.", {"transferred_language"}),
        ("Где моя посылка? Она должна была прийти во вторник.", {"unknown_language"}),
        ("我的包裹在哪里？应该星期二到的。", {"unknown_language"}),
    ],
)
def test_goes_to_review(bundle: Bundle, text: str, reasons: set[str]) -> None:
    (ticket,) = answer(bundle, [join(None, text).text]).tickets
    assert ticket.decision == "review"
    assert reasons & set(ticket.reasons), ticket


@pytest.mark.parametrize(
    ("text", "team"),
    [
        ("Locked out of my account", "account"),
        ("my parcel still hasn't arrived", "delivery"),
        ("charged twice for the same order", "payment"),
        ("can you send me a return label for the lamp", "returns"),
        ("kettle stopped working after three months", "warranty"),
        ("FORGOT MY PASSWORD AND THE RESET EMAIL NEVER COMES", "account"),
        ("tracking hasnt moved in a week, wheres my parcel??", "delivery"),
    ],
)
def test_does_not_go_to_review(bundle: Bundle, text: str, team: str) -> None:
    (ticket,) = answer(bundle, [join(None, text).text]).tickets
    assert (ticket.team, ticket.decision) == (team, "route"), ticket
