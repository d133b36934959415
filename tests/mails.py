"""Tickets in the forms that mail programs send: with markup, a signature and a quoted reply.

The signature and the reply mention other teams' subjects, so that a router that reads them makes mistakes.
"""

import html
import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.synthetic.content import content
from training.synthetic.scene import Scene


@dataclass(frozen=True)
class Around:
    """The parts of the text below a message."""

    name: str
    role: str
    company: str
    device: str
    disclaimer: str
    reply: str
    date: str  # "Tue, 3 Mar 2026 at 10:15"
    address: str


def around(seed: int = 0) -> Around:
    """Draw a signature and the shop's earlier reply."""
    rng = random.Random(f"mail-{seed}")
    known = content()
    parts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    scene = Scene(known, rng, known.voices["neutral"], rng.choice(known.products))
    drawn = {part: scene.choose(lines.strip().splitlines()) for part, lines in parts.items()}
    day, hour, minute = rng.randint(1, 28), rng.randint(8, 18), rng.randint(10, 59)
    date = f"{rng.choice(('Mon', 'Tue', 'Wed', 'Thu', 'Fri'))}, {day} Mar 2026 at {hour}:{minute}"
    return Around(**drawn, date=date, address="support@larkfield.example")


def plain_mail(text: str, below: Around) -> str:
    """A text mail: the message, a signature below dashes, the reply with ">" before each line."""
    signature = f"-- \n{below.name}\n{below.role}, {below.company}\nwww.example.com | Tel 0117 496 0123"
    quote = f"On {below.date}, Larkfield <{below.address}> wrote:\n> Hello,\n> {below.reply}\n> Kind regards"
    return f"{text}\n\n{signature}\n\n{quote}\n"


def phone_mail(text: str, below: Around) -> str:
    """A text mail from a phone: a device line, then the reply with the headers of the other message."""
    headers = f"From: Larkfield <{below.address}>\nSent: {below.date}\nTo: {below.name}\nSubject: Your order"
    return f"{text}\n\n{below.device}\n\n{headers}\n\nHello,\n{below.reply}\n"


def web_mail(text: str, below: Around) -> str:
    """An HTML mail as web mail programs write it: divs, a marked signature, a marked quote."""
    signature = f"{below.name}<br>{below.role}<br>{html.escape(below.company)}"
    quote = (
        f"On {below.date}, Larkfield &lt;{below.address}&gt; wrote:<br><blockquote>{below.reply}</blockquote>"
    )
    return (
        f'<div dir="ltr">{_paragraphs(text, "div")}<div><br></div>'
        f'<div class="gmail_signature">{signature}</div></div><br><div class="gmail_quote">{quote}</div>'
    )


def office_mail(text: str, below: Around) -> str:
    """An HTML mail as office programs write it: a style sheet, typographic quotes, the headers of a reply."""
    message = _paragraphs(text.replace("'", "’").replace(" - ", " – "), 'p class="MsoNormal"')
    signature = (
        f"<p>Kind regards,</p><p>{below.name}<br>{below.role}<br>{below.company}<br>+44 117 496 0123</p>"
    )
    quote = (
        f'<div id="divRplyFwdMsg"><b>From:</b> Larkfield &lt;{below.address}&gt;<br><b>Sent:</b> {below.date}'
        f"<br><b>To:</b> {below.name}<br><b>Subject:</b> Your refund and delivery</div><p>{below.reply}</p>"
    )
    return (
        "<html><head><style>p.MsoNormal {margin:0; font-family:Calibri}</style></head><body>"
        f"{message}{signature}<p>{below.disclaimer}</p><hr>{quote}</body></html>"
    )


FORMATS: dict[str, Callable[[str, Around], str]] = {
    "plain": plain_mail,
    "phone": phone_mail,
    "web": web_mail,
    "office": office_mail,
}


def as_mail(text: str, form: str, seed: int = 0) -> str:
    """Wrap a ticket the way one kind of mail program does; `form` is a key of FORMATS."""
    return FORMATS[form](text, around(seed))


def _paragraphs(text: str, tag: str) -> str:
    name = tag.split()[0]
    lines = "<br>\n".join(html.escape(line, quote=False) for line in text.split("\n"))
    return "".join(f"<{tag}>{part}</{name}>" for part in lines.split("<br>\n<br>\n"))
