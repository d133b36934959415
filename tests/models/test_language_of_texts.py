"""The language of a text, by its function words or its script."""

import pytest

from models.languages import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is my parcel?", "English"),
        ("Wo ist mein Paket, bitte?", "German"),
        ("Où est mon colis ? Merci", "French"),
        ("¿Dónde está mi pedido?", "Spanish"),
        ("Waar is mijn pakket, ik wacht al een week", "Dutch"),
        ("Dov'è il mio ordine, grazie", "Italian"),
        ("Где моя посылка", "Cyrillic"),
        ("私の荷物はどこですか", "CJK"),
        ("4711 0815", None),
        ("kettle broken", None),
        ("", None),
    ],
)
def test_the_language_of_a_short_ticket(text: str, language: str | None) -> None:
    assert language_of(text) == language


def test_a_long_text_is_read_in_part() -> None:
    assert language_of("the parcel is late " * 400 + "der die das und " * 100_000) == "English"
