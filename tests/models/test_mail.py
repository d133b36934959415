"""Dropping markup, quotes, forwards, signatures and banners, each alone. All tickets are made up."""

from __future__ import annotations

import pytest

from models.text import clean, join


def words(text: str) -> str:
    return " ".join(clean(text).text.split())


REQUEST = "My kettle stopped working after two months. Can you repair it?"

# ------------------------------------------------------------------------------------------------- HTML


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("<p>Hello</p><p>my lamp</p>", "Hello my lamp"),
        ("my<br>lamp<BR/>broke", "my lamp broke"),
        ("par<b>cel</b> <i>la</i>te", "parcel late"),
        ("<ul><li>one lamp<li>two cups</ul>", "one lamp two cups"),
        ("<table><tr><td>order</td><td>LK-1</td></tr></table>", "order LK-1"),
        ("<p>lamp</p><style>p {color: red}</style><p>late</p>", "lamp late"),
        ("<SCRIPT>if (a < b) { refund() }</SCRIPT ><p>my lamp</p>", "my lamp"),
        ("<head><title>Re: refund</title></head><body>my lamp</body>", "my lamp"),
        ("<!-- refund --><p>my lamp</p>", "my lamp"),
        ("<!--[if mso]><p>refund</p><![endif]--><![if !mso]><p>my lamp</p><![endif]>", "my lamp"),
        ("<!DOCTYPE html><html><body>my lamp</body></html>", "my lamp"),
        ('<a href="https://shop.example/refund?a=1&b=2" title="x > y">my</a> lamp', "my lamp"),
        ("<p title='refund \"now\"'>my lamp</p>", "my lamp"),
        ("<p class=don't>my lamp</p>", "my lamp"),
        ("<o:p>&nbsp;</o:p><p>my lamp</p>", "my lamp"),
        ("<p>my lamp", "my lamp"),
        ('<div style="display:none">refund</div><p style="color:red">my lamp</p>', "my lamp"),
        ('<div style="font-size:1px; display : none !important"><p>refund</p></div>my lamp', "my lamp"),
        ('<img src="pixel.gif" style="display:none"><p>my lamp</p>', "my lamp"),
        ('<p style="display:none">my lamp', "my lamp"),
        ("my lamp</div></div>", "my lamp"),
        ("<p>it cost &pound;20 &amp; &#8220;free&#8221; &#x2764;</p>", 'it cost £20 & "free" ❤'),
        ("it cost &pound;20 &amp more &nosuch;", "it cost £20 &amp more &nosuch;"),
        ("&lt;p&gt;my &lt;b&gt;lamp&lt;/b&gt;&lt;/p&gt;", "my lamp"),
        ("<p>my\n   lamp</p>\n<p>late</p>", "my lamp late"),
    ],
)
def test_html_is_read_as_it_is_seen(sent: str, read: str) -> None:
    assert words(sent) == read


def test_blocks_stand_on_lines_of_their_own() -> None:
    assert clean("<div>one<br>two</div><p>three</p>").text.split("\n") == ["", "one", "two", "", "three", ""]


@pytest.mark.parametrize(
    "text",
    [
        "2 < 3 and 5 > 4",
        "mail me: <anna@example.com>",
        "see <https://shop.example/order>",
        "I <3 my lamp",
        "the code <AB-12> is refused",
        "a <- b -> c",
        "R&D; and AT&T",
    ],
)
def test_what_only_looks_like_html_stays(text: str) -> None:
    assert clean(text).text == text


# ----------------------------------------------------------------------------------------------- quotes

OLDER = "Your return is refused. The refund to your card was sent by the payment team."


@pytest.mark.parametrize(
    "quote",
    [
        f"On Tue, 3 Mar 2026 at 10:15, Larkfield Returns <returns@larkfield.example> wrote:\n> {OLDER}",
        f"On Tue, 3 Mar 2026 at 10:15, Larkfield Returns\n<returns@larkfield.example> wrote:\n\n{OLDER}",
        f"On 3 March 2026 at 10:15 AM,\nLarkfield Returns and Refunds\n<r@larkfield.example> wrote:\n{OLDER}",
        f"Le mar. 3 mars 2026 à 10:15, Larkfield <returns@larkfield.example> a écrit\u00a0:\n\n{OLDER}",
        f"Am 03.03.2026 um 10:15 schrieb Larkfield <returns@larkfield.example>:\n> {OLDER}",
        f"El mar, 3 mar 2026 a las 10:15, Larkfield (<returns@larkfield.example>) escribió:\n{OLDER}",
        f"Il giorno mar 3 mar 2026 alle ore 10:15 Larkfield <r@larkfield.example> ha scritto:\n{OLDER}",
        f"Op di 3 mrt 2026 om 10:15 schreef Larkfield <returns@larkfield.example>:\n{OLDER}",
        f"-----Original Message-----\nFrom: Larkfield\nSent: Tuesday\n\n{OLDER}",
        f"----- Message d’origine -----\nDe : Larkfield\n\n{OLDER}",
        f"{'_' * 32}\nFrom: Returns <r@larkfield.example>\nSent: 3 March\nTo: Me\nSubject: Return\n\n{OLDER}",
        f"De : Larkfield\nEnvoyé : mardi 3 mars 2026\nÀ : Moi\nObjet : Retour\n\n{OLDER}",
        f"Von: Larkfield\nGesendet: Dienstag\nAn: Mich\nBetreff: Rücksendung\n\n{OLDER}",
        f"---------- Forwarded message ---------\nFrom: Larkfield <r@l.example>\nDate: 3 March\n\n{OLDER}",
        f"Begin forwarded message:\n\n> {OLDER}",
        f"##- Please type your reply above this line -##\n\n{OLDER}",
        f"> {OLDER}\n>> {OLDER}\n> > {OLDER}",
    ],
)
def test_a_reply_below_is_dropped(quote: str) -> None:
    assert words(f"{REQUEST}\n\n{quote}") == REQUEST
    assert words(f"{REQUEST}\r\n\r\n{quote}".replace("\n", "\r\n")) == REQUEST


@pytest.mark.parametrize(
    "quote",
    [
        f'<div class="gmail_quote"><div>On 3 March wrote:</div><blockquote>{OLDER}</blockquote></div>',
        f'<blockquote type="cite"><div>{OLDER}</div><blockquote>{OLDER}</blockquote></blockquote>',
        f'<div id="divRplyFwdMsg"><b>From:</b> Returns</div><div>{OLDER}</div>',
        f'<div id="appendonsend"></div><hr><div>{OLDER}</div>',
        f'<div class="yahoo_quoted"><p>{OLDER}</p>',
        f"<p>On 3 March 2026, Larkfield wrote:</p><div>{OLDER}</div>",
        f"<p><b>From:</b> Returns<br><b>Sent:</b> 3 March<br><b>To:</b> Me</p><p>{OLDER}</p>",
    ],
)
def test_a_reply_marked_up_below_is_dropped(quote: str) -> None:
    assert words(f"<html><body><div>{REQUEST}</div>{quote}</body></html>") == REQUEST


def test_an_answer_below_or_between_quoted_lines_stays() -> None:
    below = f"On Tue, 3 Mar 2026, Larkfield wrote:\n> {OLDER}\n> {OLDER}\n\n{REQUEST}"
    assert words(below) == REQUEST
    between = f"> {OLDER}\nNo, it was not refused.\n> {OLDER}\n{REQUEST}"
    assert words(between) == f"No, it was not refused. {REQUEST}"


def test_a_quote_stays_where_the_answer_says_too_little() -> None:
    assert "refund to your card" in words(f"Yes please\n\n> {OLDER}")
    assert not words(f"Yes please\n\n> {OLDER}").count(">")


@pytest.mark.parametrize(
    "text",
    [
        "On Monday your colleague wrote: no refund for you.",
        "On 3 March your courier wrote: not at home. I was at home.",
        "From: London\nMy parcel never arrived",
        "Le colis est en retard",
        "The subject: my lamp\nDate: I bought it in March",
        "--- My order ---\nlamp, kettle",
    ],
)
def test_what_only_looks_like_a_quote_stays(text: str) -> None:
    assert clean(text).text == text


def test_headers_pasted_on_top_go_but_the_subject_stays() -> None:
    pasted = f"From: Anna <a@example.com>\nSent: Monday\nTo: Larkfield\nSubject: broken kettle\n\n{REQUEST}"
    assert words(pasted) == f"broken kettle {REQUEST}"


# ------------------------------------------------------------------------------------------- signatures


@pytest.mark.parametrize(
    "signature",
    [
        "-- \nAnna Smith\nReturns and Refunds\nPayment Department, Acme Ltd",
        "--\nAnna Smith | Delivery Team",
        "Sent from my iPhone",
        "Sent from Outlook for Android",
        "Get Outlook for iOS",
        "Envoyé de mon iPhone",
        "Von meinem Handy gesendet",
        "This email and any attachments are confidential and intended solely for the payment department.",
        "CONFIDENTIALITY NOTICE: the information about your refund is privileged.",
        "[cid:image001.png@01DA.1234]",
    ],
)
def test_a_signature_is_dropped(signature: str) -> None:
    assert words(f"{REQUEST}\n\n{signature}") == REQUEST


@pytest.mark.parametrize(
    "sign_off", ["Kind regards,", "Best", "Thanks", "Cordialement,", "Mit freundlichen Grüßen"]
)
def test_contact_details_below_a_sign_off_are_dropped(sign_off: str) -> None:
    contact = (
        "Anna Smith\nReturns Manager | Payment Department\nTel. +44 20 7946 0000\nwww.example.com/refunds"
    )
    assert words(f"{REQUEST}\n\n{sign_off}\n{contact}") == f"{REQUEST} {sign_off} Anna Smith"


def test_what_speaks_to_the_reader_below_a_sign_off_stays() -> None:
    sent = (
        f"{REQUEST}\n\nRegards\nAnna\nHead of Returns\nanna@example.com\nPS: please call me before delivery"
    )
    assert words(sent) == f"{REQUEST} Regards Anna PS: please call me before delivery"


@pytest.mark.parametrize(
    "text",
    [
        f"{REQUEST}\n\nKind regards,\nAnna",
        f"{REQUEST}\nThanks\nAnna Smith\nSpringfield",
        "Thanks\nMy parcel came\nbut the delivery team left it in the rain",
        "This email was intended for my neighbour\nand now my parcel is at the wrong door",
        "I got an email.\nThis message said it is out for delivery.",
        "My orders:\n--lamp\n--kettle",
    ],
)
def test_what_only_looks_like_a_signature_stays(text: str) -> None:
    assert clean(text).text == text


# --------------------------------------------------------------------------------------------- forwards

HEADERS = "From: Anna Berg <a@x.example>\nSent: 3 March 2026 10:15\nTo: Larkfield\nSubject: the kettle\n\n"
GERMAN = "Von: Anna Berg\nGesendet: Dienstag, 3. März 2026\nAn: Larkfield\nBetreff: the kettle\n\n"
GMAIL = (
    "--------- Forwarded message --------\nFrom: Anna <a@x.example>\nDate: 3 March 2026\nSubject: the kettle"
)
COVER = "Please take over.\n\nTom Smith\nReturns Manager | Payment Department\nTel. +44 20 7946 0000\n\n"


def joined(subject: str | None, text: str) -> str:
    return " ".join(join(subject, text).text.split())


@pytest.mark.parametrize(
    "prefix", ["WG", "Fwd", "FW", "TR", "RV", "I", "ENC", "PD", "Doorst", "wg", "[EXT] Fwd"]
)
@pytest.mark.parametrize(
    "body",
    [
        f"{HEADERS}{REQUEST}",
        f"{COVER}{HEADERS}{REQUEST}",
        f"{COVER}{'_' * 32}\n{GERMAN}{REQUEST}\n\n{HEADERS}{OLDER}",
        f"{GMAIL}\n\n{REQUEST}",
        f"FYI\n\n{GERMAN}see below\n\n{HEADERS}{REQUEST}",
        f"Begin forwarded message:\n\n> From: Anna\n> Date: 3 March\n> To: us\n> \n> {REQUEST}\n>> {OLDER}",
        f"On 3 March 2026, Anna wrote:\n> {REQUEST}",
    ],
)
def test_what_is_forwarded_is_the_ticket(prefix: str, body: str) -> None:
    read = joined(f"{prefix}: the kettle", body).replace("the kettle", "")
    assert read.split(": ", 1)[1].strip() == REQUEST
    assert joined(f"{prefix}: the kettle", body.replace("\n", "\r\n")) == joined(
        f"{prefix}: the kettle", body
    )


@pytest.mark.parametrize(
    "body",
    [
        f"FYI\n\n{HEADERS}{REQUEST}",
        f"Bitte übernehmen, siehe unten.\n\n{GERMAN}{REQUEST}",
        f"Can you help her?\n\n{GMAIL}\n\n{REQUEST}",
        f"Begin forwarded message:\n\n> From: Anna\n> Date: 3 March 2026\n> To: us\n> \n> {REQUEST}",
    ],
)
def test_a_few_words_above_a_forwarded_block_are_its_cover(body: str) -> None:
    read = words(body)
    assert read.endswith(REQUEST)
    assert not any(
        header in read for header in ("From", "Sent", "Date", "Von", "Gesendet", "To:", "An:", "forwarded")
    )


@pytest.mark.parametrize(
    "marked", ['<div class="gmail_quote">{}</div>', '<blockquote type="cite">{}</blockquote>']
)
def test_a_forward_that_is_marked_up_as_a_quote_is_the_ticket(marked: str) -> None:
    quote = marked.format("<br>".join([*GMAIL.replace("<", "&lt;").split("\n"), "", REQUEST]))
    for subject in (None, "Fwd: the kettle"):
        read = joined(subject, f"<html><body><div>fyi</div>{quote}</body></html>")
        assert read.split("the kettle")[-1].strip() == REQUEST


def test_a_request_above_what_it_forwards_stays() -> None:
    long = (
        "The customer called again today. " + "She has waited three weeks and wants her money back now. " * 4
    )
    read = joined("FW: the kettle", f"{long}\n\n{HEADERS}{REQUEST}")
    assert "wants her money back" in read
    assert REQUEST in read


@pytest.mark.parametrize("prefix", ["RE", "AW", "Re", "R", "SV", "Antw"])
def test_replies_keep_being_cut(prefix: str) -> None:
    assert (
        joined(f"{prefix}: it", f"{REQUEST} See below.\n\n{HEADERS}{OLDER}")
        == f"{prefix}: it {REQUEST} See below."
    )


# ------------------------------------------------------------------ banners, disclaimers, ticket systems

BANNERS = [
    "[EXTERNAL]",
    "[EXTERN]",
    "CAUTION: This email originated from outside of the organization. Do not click links or open attachments "
    "unless you recognize the sender.",
    "This message was sent from an external sender.\nDo not open attachments you did not expect.",
    "Achtung: Diese E-Mail kommt von außerhalb der Organisation.",
    "This e-mail and any attachments are confidential and intended solely for the addressee.\n"
    "If you are not the intended recipient, please delete it.",
    "Disclaimer: the information in this message is privileged.",
    "Diese E-Mail ist vertraulich und nur für den Empfänger bestimmt.",
    "Ce message est confidentiel et réservé à son destinataire.",
]


@pytest.mark.parametrize("banner", BANNERS)
def test_a_banner_goes_and_nothing_else_wherever_it_stands(banner: str) -> None:
    assert words(f"{banner}\n\n{REQUEST}") == REQUEST
    assert words(f"{REQUEST}\n\n{banner}") == REQUEST
    assert words(f"{REQUEST}\n\n{banner}\n\nIt is the red one.") == f"{REQUEST} It is the red one."


@pytest.mark.parametrize(
    "text",
    [
        f"Disclaimer: I am no engineer. {REQUEST}",
        "The mail carrier left my parcel outside the door.",
        "This email address is no longer mine, please change it.",
        "I opened the attachment and the link is dead.",
        "The ticket: it never came\nRequest: a refund",
    ],
)
def test_what_only_looks_like_a_banner_stays(text: str) -> None:
    assert clean(text).text == text


@pytest.mark.parametrize(
    "line",
    [
        "received from: anna@x.example",
        "Ref:MSG0012345",
        "ref:_00D20abcde._5002e12345:ref",
        "You can view this ticket at https://desk.example/t/12",
        "Ticket ID: INC-00123",
        "Powered by Zendesk",
        "Please do not reply to this email, it is not read.",
    ],
)
def test_lines_of_ticket_systems_go(line: str) -> None:
    assert words(f"{line}\n\n{REQUEST}") == REQUEST
    assert words(f"{REQUEST}\n\n{line}") == REQUEST


def test_files_written_into_the_text_go() -> None:
    assert words(f"{REQUEST} data:image/png;base64,{'iVBORw0KGgo=' * 200} thanks") == f"{REQUEST} thanks"
    assert words(f'<p>{REQUEST}</p><img src="data:image/png;base64,{"iVBORw0KGgo=" * 200}">') == REQUEST
