"""Cleaning as a whole: what stays, what goes, and the way back to the ticket as it was sent."""

from __future__ import annotations

import unicodedata

import ftfy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.text import Cleaned, clean, join


def back(cleaned: Cleaned, original: str, words: str) -> str:
    """The stretch of the original that `words` of the cleaned text came from."""
    start = cleaned.text.index(words)
    first, last = cleaned.span(start, start + len(words))
    return original[first:last]


def test_every_larkfield_ticket_comes_through_unchanged(larkfield: dict[str, list[dict[str, str]]]) -> None:
    for text in (row["text"] for rows in larkfield.values() for row in rows):
        cleaned = clean(text)
        assert cleaned.text == text
        assert cleaned.span(0, len(text)) == (0, len(text))


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="<>&"), max_size=200))
def test_a_line_of_plain_ascii_comes_through_unchanged(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.text == text
    assert cleaned.spans == [(i, i + 1) for i in range(len(text))]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("I’d like a “new” lamp", 'I\'d like a "new" lamp'),
        ("dispatched – then lost … twice", "dispatched - then lost ... twice"),
        ("two\u00a0lamps,\u202fplease", "two lamps, please"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("re\u200bfu\u00adnd my\ufeff card", "refund my card"),
        ("\u202emy\u202c \u2066card\u2069", "my card"),
        ("my \x00card\x1b[0m", "my card[0m"),
        ("late 👍🏽 ❤️ 👩‍👧", "late 👍 ❤ 👩👧"),
        ("der Druck ist mÃ¶glich, die GrÃ¶ÃŸe â€“ nicht", "der Druck ist möglich, die Größe - nicht"),
        ("it doesnâ€™t work", "it doesn't work"),
        ("voilÃ\u00a0 le cafÃ©", "voilà le café"),
        ("one_x000D_\ntwo_x000D_three", "one\ntwo\nthree"),
        ("Ärger mit Öl, naïve É À Ü ß", "Ärger mit Öl, naïve É À Ü ß"),
        ("half \ud83d a character", "half \ufffd a character"),
        ("l'écran est cassé", "l'écran est cassé"),
        ("WHERE IS MY PARCEL???", "WHERE IS MY PARCEL???"),
        ("`order` 5 < 6 & 7 > 3 <3", "`order` 5 < 6 & 7 > 3 <3"),
    ],
)
def test_characters(sent: str, read: str) -> None:
    assert clean(sent).text == read


def test_each_character_knows_where_it_stood() -> None:
    sent = "\u200bI’m … late"
    cleaned = clean(sent)
    assert cleaned.text == "I'm ... late"
    assert cleaned.spans[:3] == [(1, 2), (2, 3), (3, 4)]
    assert cleaned.spans[4:7] == [(5, 6)] * 3
    assert back(cleaned, sent, "late") == "late"
    assert cleaned.span(4, 4) == (5, 5)
    assert cleaned.span(len(cleaned.text), len(cleaned.text)) == (len(sent), len(sent))
    assert clean("").span(0, 0) == (0, 0)


def test_the_way_back_through_every_step_at_once() -> None:
    sent = (
        "<html><body><p>The kettle&rsquo;s lid &lt;cracked&gt;</p>"
        "<p>after <b>two</b> mon\u200bths.</p>"
        '<blockquote type="cite">Your refund</blockquote></body></html>'
    )
    cleaned = clean(sent)
    assert cleaned.text.split() == ["The", "kettle's", "lid", "<cracked>", "after", "two", "months."]
    assert back(cleaned, sent, "kettle's") == "kettle&rsquo;s"
    assert back(cleaned, sent, "<cracked>") == "&lt;cracked&gt;"
    assert back(cleaned, sent, "after two") == "after <b>two"
    assert back(cleaned, sent, "months") == "mon\u200bths"


def test_subject_and_text() -> None:
    joined = join("Late…\u200b", "my “parcel”")
    assert joined.text == 'Late...\nmy "parcel"'
    assert joined.locate(0, 4) == ("subject", 0, 4)
    assert joined.locate(4, 7) == ("subject", 4, 5)
    assert joined.locate(8, 10) == ("text", 0, 2)
    assert joined.locate(12, 18) == ("text", 4, 10)
    assert joined.locate(len(joined.text), len(joined.text)) == ("text", 11, 11)


def test_a_stretch_over_both_fields_ends_with_the_subject() -> None:
    assert join("Late", "parcel").locate(2, 7) == ("subject", 2, 4)


@pytest.mark.parametrize("subject", [None, "", " \n"])
def test_without_a_subject_the_text_stands_alone(subject: str | None) -> None:
    joined = join(subject, "my “parcel”")
    assert joined.text == clean("my “parcel”").text
    assert joined.locate(3, 11) == ("text", 3, 11)


@pytest.mark.parametrize(
    "nothing_else",
    [
        "> Is my parcel lost?",
        "<blockquote type=cite>Is my parcel lost?</blockquote>",
        '<div class="gmail_quote">Is my parcel lost?</div>',
        "-----Original Message-----\nIs my parcel lost?",
        "On 3 March 2026, Anna wrote:\nIs my parcel lost?",
        "From: Anna\nSent: Monday\nTo: Larkfield\n\nIs my parcel lost?",
        "-- \nIs my parcel lost?",
        "This e-mail is confidential: is my parcel lost?",
        "<title>Is my parcel lost?</title>",
        "<!-- Is my parcel lost? --> <p></p>",
    ],
)
def test_never_empties_a_ticket(nothing_else: str) -> None:
    assert "my parcel lost?" in clean(nothing_else).text


@pytest.mark.parametrize("text", ["??", "> ??", "<p>??</p>", "-- \n??", "<br>", "&amp;", "😡", "\ud800"])
def test_never_empties_a_ticket_without_words(text: str) -> None:
    assert clean(text).text.strip()


def test_what_nobody_can_see_is_nothing() -> None:
    assert clean("\u200b\u200b\x00").text == ""
    assert clean(" \n ").text.strip() == ""


FRAGMENTS = [
    "where is my parcel", "<p>", "</p>", "<br/>", "<b", "<!--", "-->", "<script>", "</script>", "&amp;",
    "&#8217;", "&lt;p&gt;", "<blockquote type=cite>", "</blockquote>", '<div class="gmail_quote">',
    "</div>", "\n", "\r\n", "> ", "On 3 March 2026, Anna wrote:", "-----Original Message-----",
    "From: a\nSent: b\nTo: c\nSubject: d", "\n-- \n", "Kind regards,", "Anna | Returns", "\u200b", "\u2019",
    "\u2026", "\ud800", "\x00", "👩\u200d👧", "e\u0301", '"', "'", "Sent from my phone",
    "This email is confidential", "<title>", "[cid:x]", "=", ">", "<", "&",
]  # fmt: skip
MAIL = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5)), max_size=25).map("".join)


@settings(max_examples=500)
@given(MAIL)
@example("<p>\n> \u2026\r\n")
@example("<p>\x00")
@example("\u00d5\u00c3\x95")
def test_any_mail_keeps_its_promises(sent: str) -> None:
    cleaned = clean(sent)
    visible = [
        c for c in sent if not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf", "Mn", "Me", "Lo")
    ]
    if any(c.isalnum() for c in visible):
        assert cleaned.text.strip()
    assert len(cleaned.spans) == len(cleaned.text)
    before = (0, 0)
    for character, (start, end) in zip(cleaned.text, cleaned.spans, strict=True):
        assert 0 <= start < end <= len(sent)
        assert before[0] <= start
        assert before[1] <= end
        if character.isalnum() and character in sent:  # from itself, an entity, or repaired mojibake
            source = sent[start:end]
            assert character in source or "&" in source or character in ftfy.fix_encoding(source)
        before = (start, end)
    assert not any("\ud800" <= c <= "\udfff" for c in cleaned.text)


HOSTILE = [
    "<", "<a ", "<!--", "<p><script>", '<p>"', "<p '\"", "<title>", "<p></head", "On ", "On\n",
    "On 2024 schrieb ", "On " + "a" * 240 + "\n", "> \n", "From: x\n", "From: x\nTo: y\nSubject: z\n",
    "&amp;", "-----Original", "--\n", "regards\n", "this email\n", "\u200b", "\u2019x",
    "<blockquote type=cite>", "<div class=gmail_quote></div>", "\r\n", "[cid:", "Sent from my ", "_", "-",
    " ", "\n" + " " * 200, "<o:p", "</", "&#",
    "<p style=display:none>", "<p style=display:none></p><p>", "<b x='display:display:",
    "<p\n", "Confidentiality notice", "@", "[EXTERNAL]", "this email is confidential\n", "data:a/b;base64,",
    "data:a/b;base64,A\n", ";base64,", "data:",
    "WG: ", "Fwd:\nFrom: x\nTo: y\nSubject: z\n", "-- Forwarded message --\n", "Ã¶", "Ã¶x ",
    "this mail external ", "received from: x\n", "_x000D_", "see below\nFrom: x\nTo: y\nDate: z\n",
    "ticket: 1\n", "Disclaimer\n",
]  # fmt: skip


@pytest.mark.parametrize("fragment", HOSTILE)
def test_hostile_text_ends(fragment: str) -> None:
    """Half a million characters: a pattern of quadratic time would run into the time limit of the tests."""
    clean(fragment * (500_000 // len(fragment)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fragment",
    [
        "<",
        "<!--",
        "<title>",
        "<p><script>",
        "<p style=display:none>",
        '<p>"',
        "On\n",
        "From: x\n",
        "> \n",
        "\u2019x",
    ],
)
def test_five_million_hostile_characters_end(fragment: str) -> None:
    clean(fragment * (5_000_000 // len(fragment)))


@pytest.mark.parametrize("fragment", HOSTILE)
@pytest.mark.parametrize(
    "around", ["<p>my parcel is late {} where is it</p>", "my parcel\n{}\nis late today"]
)
def test_hostile_text_hides_no_words_before_it(fragment: str, around: str) -> None:
    assert "my parcel" in clean(around.format(fragment * (2_000 // len(fragment)))).text
