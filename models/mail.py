"""Finds the parts of a mail that are not the request: markup, quoted replies, signatures, banners.

Each function returns edits (start, end, replacement), sorted and without overlaps. The caller decides whether
enough text remains. The time is linear for any text: patterns are possessive or bounded, and a failed search
for a closing mark is not repeated.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

Edit = tuple[int, int, str]  # replace text[start:end] by the string

_WORD = re.compile(r"[^\W\d_]{2,}+")


def has_words(text: str, fewest: int) -> bool:
    """Whether a text has at least `fewest` words of two or more letters."""
    if fewest == 0:
        return True
    return any(number >= fewest for number, _ in enumerate(_WORD.finditer(text), start=1))


# ------------------------------------------------------------------------------------------------- HTML

_KNOWN_TAG = re.compile(
    r"<(?=[!/a-z])(?:!doctype html|/?(?:a|abbr|b|blockquote|body|br|center|code|dd|div|dl|dt|em|font|form"
    r"|h[1-6]|head|hr|html|i|img|li|meta|o:p|ol|p|pre|s|small|span|strike|strong|style|sub|sup|table|tbody|td|th|title|tr|u|ul)"
    r"(?=[\s/>])[^<>]*+>)",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"<(?=[!?/a-z])(?:(?P<comment>!--)"
    r"|[!?][^<>]*+>"
    r"|(?P<close>/?)(?P<name>[a-z][a-z0-9]*+(?::[a-z0-9]++)?+)(?=[\s/>])"
    r"(?P<attributes>(?:[^<>\"']++|\"[^\"<]*+\"|'[^'<]*+'|[\"'])*+)>)",
    re.IGNORECASE,
)
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|br|center|dd|div|dl|dt|footer|form|h[1-6]|header|hr|html|li|main|ol|p|pre"
    "|section|table|tbody|tfoot|thead|tr|ul"
)
_CELL = re.compile("td|th|option|button")
_NOT_TEXT = re.compile("head|script|style|svg|template|title")
_QUOTE_CLASS = re.compile(
    r"\b(?:gmail_quote|gmail_signature|yahoo_quoted|moz-cite-prefix|moz-signature|protonmail_quote"
    r"|protonmail_signature_block|OutlookMessageHeader|ms-outlook-mobile-signature|AppleMailSignature|zmail_extra)\b"
    r"|\bid=[\"']?(?:Signature|x_Signature|divRplyFwdMsg)\b|\btype=[\"']?cite\b",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"\b(?:display\s{0,3}:\s{0,3}none|visibility\s{0,3}:\s{0,3}hidden)\b", re.IGNORECASE)
_NEVER_CLOSED = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|wbr")
_REST_IS_QUOTE = re.compile(
    r"\bid=[\"']?(?:x_)?(?:divRplyFwdMsg|appendonsend|mail-editor-reference-message)", re.IGNORECASE
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")


def drop_markup(text: str) -> list[Edit]:
    """Replace HTML tags: blocks and breaks by newlines, cells by spaces; drop the others and hidden text."""
    return _markup_edits(text, quotes=False)


def drop_markup_and_quotes(text: str) -> list[Edit]:
    """`drop_markup`, and drop elements that mail programs mark as quoted messages or signatures."""
    return _markup_edits(text, quotes=True)


def decode_entities(text: str) -> list[Edit]:
    """Replace character references such as &amp; and &#8217; by their characters."""
    decoded = ((match, html.unescape(match[0])) for match in _ENTITY.finditer(text))
    return [(match.start(), match.end(), character) for match, character in decoded if character != match[0]]


def _markup_edits(text: str, quotes: bool) -> list[Edit]:
    if not _KNOWN_TAG.search(text):
        return []
    edits = list(_tag_edits(text, quotes))
    if any(replacement == "\n" for _, _, replacement in edits):
        edits = list(_with_newlines_as_spaces(text, edits))
    return edits


def _tag_edits(text: str, quotes: bool) -> Iterator[Edit]:
    """The edit of each tag, or of the whole element if its content is dropped."""
    end_of, elements = _Finder(text), _ElementEnds(text)
    position = 0
    while match := _TAG.search(text, position):
        start, position = match.start(), match.end()
        if match["comment"]:
            closing = end_of("-->", position)
            if closing is None:
                continue
            position = closing
        elif match["name"] and not match["close"]:
            position = _end_of_dropped(text, match, end_of, elements, quotes)
        yield start, position, _replacement((match["name"] or "").lower())


def _end_of_dropped(
    text: str, opening: re.Match[str], end_of: _Finder, elements: _ElementEnds, quotes: bool
) -> int:
    """The end of the element if its content is dropped, else the end of its opening tag."""
    name, attributes, position = opening["name"].lower(), opening["attributes"], opening.end()
    if _NOT_TEXT.fullmatch(name):
        return end_of(f"</{name}", position) or position
    if not attributes or _NEVER_CLOSED.fullmatch(name):
        return position
    if quotes and _REST_IS_QUOTE.search(attributes):
        return len(text)
    if quotes and _QUOTE_CLASS.search(attributes):
        return elements.after(position) or len(text)
    if _HIDDEN.search(attributes):
        return elements.after(position) or position
    return position


def _replacement(name: str) -> str:
    return "\n" if _BLOCK.fullmatch(name) else " " if _CELL.fullmatch(name) else ""


class _Finder:
    """Finds marks from rising positions; after a failed search, a mark is not searched for again."""

    def __init__(self, text: str) -> None:
        self.lowered = text.lower() if len(text.lower()) == len(text) else text
        self.absent: set[str] = set()

    def __call__(self, mark: str, position: int) -> int | None:
        """The end of the next mark, or of the tag that it begins; None if there is none."""
        if mark in self.absent:
            return None
        found = self.lowered.find(mark, position)
        if found < 0:
            self.absent.add(mark)
            return None
        if mark == "-->":
            return found + len(mark)
        closing = self.lowered.find(">", found)
        return closing + 1 if closing >= 0 else len(self.lowered)


class _ElementEnds:
    """The ends of all elements, by the ends of their opening tags; found in one pass over the text.

    An element ends at the closing tag of its name at its own nesting depth.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int] | None = None

    def after(self, opening: int) -> int | None:
        """The end of the element whose opening tag ends at `opening`; None if it is never closed."""
        if self._ends is None:
            self._ends = dict(self._pairs())
        return self._ends.get(opening)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        depths: dict[str, int] = {}
        unclosed: dict[tuple[str, int], list[int]] = {}  # ends of opening tags, by name and depth
        for match in _TAG.finditer(self._text):
            name = (match["name"] or "").lower()
            depth = depths.get(name, 0)
            if match["close"]:
                for end in unclosed.pop((name, depth), ()):
                    yield end, match.end()
                depths[name] = depth - 1
            elif name:
                depths[name] = depth = depth + (not match["attributes"].endswith("/"))
                unclosed.setdefault((name, depth), []).append(match.end())


def _with_newlines_as_spaces(text: str, edits: list[Edit]) -> Iterator[Edit]:
    """The edits, and one more for each line break between them: in HTML with blocks it is a space."""
    at = 0
    for edit in [*edits, (len(text), len(text), "")]:
        for match in _NEWLINE.finditer(text, at, edit[0]):
            yield match.start(), match.end(), " "
        if edit[1] > edit[0]:
            yield edit
        at = edit[1]


_NEWLINE = re.compile(r"\r?\n|\r")

# ----------------------------------------------------------------------------------------------- quotes

_QUOTED_LINE = re.compile(r"^[ \t]{0,3}>[^\n]*+\n?", re.MULTILINE)
_QUOTE_MARK = re.compile(r"^[ \t]{0,3}>[> \t]*+", re.MULTILINE)
# "On Tue, 3 Mar 2026 at 10:15, Anna <anna@example.com> wrote:", over one to three lines.
_ATTRIBUTION = re.compile(
    r"^[ \t]*+(?:On|Le|Am|El|Il|Op|Em|Den|Dne|W dniu)\b[^\n]{0,250}?(?:\n[^\n]{1,250}?){0,2}?"
    r"\b(?:wrote|a écrit|schrieb[^\n:]{0,80}|escribió|ha scritto|schreef[^\n:]{0,80}|escreveu|skrev"
    r"[^\n:]{0,80}|napsala?|napisała?)[ \t\xa0]*:[ \t]*$\n?",
    re.MULTILINE,
)
_WHEN_OR_WHO = re.compile(r"\d{4}|\d[:.h]\d\d|@")
_ORIGINAL = re.compile(
    r"^[ \t]*+(?:-{2,}[ \t]*(?:Original (?:Message|Appointment)|Message (?:d'origine|original|transféré)"
    r"|Ursprüngliche Nachricht|Weitergeleitete Nachricht|Mensaje (?:original|reenviado)|Messaggio originale"
    r"|Oorspronkelijk bericht|Mensagem original|Forwarded message)[ \t]*-{2,}"
    r"|Begin forwarded message:|Début du message (?:réexpédié|transféré) ?:"
    r"|Anfang der weitergeleiteten Nachricht:"
    r"|[#=*_-]{0,20} ?(?:Please )?(?:type your |write your )?reply above this line)",
    re.MULTILINE | re.IGNORECASE,
)
_FROM = re.compile(r"^[ \t]*+\*?(?:From|De|Von|Da|Van|Från|Fra)[ \xa0]?:\*?[^\n]*$", re.MULTILINE)
_HEADER = re.compile(
    r"[ \t]*+\*?(?P<name>Sent|Date|To|Cc|Bcc|Subject|Reply-To|Importance|Envoyé|À|Objet|Répondre à|Gesendet"
    r"|Datum|An|Betreff|Enviado(?: el)?|Fecha|Para|Asunto|Inviato|Data|A|Oggetto|Verzonden|Aan|Onderwerp"
    r"|Assunto)[ \xa0]?:\*?"
)
_SUBJECT = frozenset(("Subject", "Objet", "Betreff", "Asunto", "Oggetto", "Onderwerp", "Assunto"))
_RULE = re.compile(r"[_-]{5,}+\s*+\Z")


def drop_quotes(text: str) -> list[Edit]:
    """Drop quoted lines, the line that attributes them, and everything below another message's headers."""
    pieces = [(match.start(), match.end()) for match in _QUOTED_LINE.finditer(text)]
    for match in _ATTRIBUTION.finditer(text):
        if _WHEN_OR_WHO.search(match[0]):
            followed_by_marks = text[match.end() : match.end() + 200].lstrip().startswith(">")
            pieces.append((match.start(), match.end() if followed_by_marks else len(text)))
    top = 0
    if original := _ORIGINAL.search(text):
        top = 0 if has_words(text[: original.start()], 1) else original.end()
        pieces.append((original.start(), top or len(text)))
    for start, below, subject in _header_blocks(text):
        if has_words(text[top:start], 1):
            pieces.append((_before_rule(text, start), len(text)))
            break
        pieces += [(start, subject[0]), (subject[1], below)] if subject else [(start, below)]
    return _cuts(pieces)


def drop_quote_marks(text: str) -> list[Edit]:
    """Drop only the marks of quoted lines, for a ticket that is nearly all quote."""
    return _cuts([match.span() for match in _QUOTE_MARK.finditer(text)])


def _header_blocks(text: str) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """(start, end, span of the subject's text or None) of each From: with two more header lines below it."""
    for match in _FROM.finditer(text):
        subject, headers, at = None, 0, match.end() + 1
        for _ in range(5):
            line_end = text.find("\n", at, at + 2000)
            header = _HEADER.match(text, at)
            if not header:
                break
            headers += 1
            end = len(text) if line_end < 0 else line_end
            if header["name"] in _SUBJECT:
                subject = (header.end(), end)
            at = end + 1
        if headers >= 2:
            yield match.start(), min(at, len(text)), subject


def _before_rule(text: str, start: int) -> int:
    """The start of the rule above the headers at `start`, as Outlook draws it; else `start`."""
    rule = _RULE.search(text, max(0, start - 200), start)
    return rule.start() if rule else start


def _cuts(pieces: list[tuple[int, int]]) -> list[Edit]:
    """Sorted, merged edits that drop the pieces, which may overlap."""
    edits: list[Edit] = []
    for start, end in sorted(pieces):
        if edits and start <= edits[-1][1]:
            edits[-1] = (edits[-1][0], max(end, edits[-1][1]), "")
        elif end > start:
            edits.append((start, end, ""))
    return edits


# --------------------------------------------------------------------------------------------- forwards

MAX_COVER_WORDS = 30  # above a forwarded message; a longer text is a request and is kept
FEW_WORDS = 10
_FORWARD_PREFIX = re.compile(
    r"\s{0,20}(?:\[[^\]\n]{1,20}\]\s{0,5})?(?:WG|FWD?|TR|RV|I|ENC|PD|VS|VB|Doorst|Doorgestuurd|Weitergeleitet)"
    r"[ \xa0]?:",
    re.IGNORECASE,
)
_REPLY_PREFIX = re.compile(
    r"\s{0,20}(?:\[[^\]\n]{1,20}\]\s{0,5})?(?:RE|AW|SV|R|RIF|Antw|RES|Odp|VA|RÉ)[ \xa0]?:", re.IGNORECASE
)
HEAD_CHARACTERS = 400  # at the start of a text, to search for "see below" in a cover note
# Parts of words, in lower case, one of which each match of _FORWARD_MARK contains.
_FORWARD_WORDS = (
    "forwarded", "weitergeleitete", "transféré", "réexpédié", "reenviado", "inoltrato", "doorgestuurd",
    "encaminhada", "przekazana",
)  # fmt: skip
_FORWARD_MARK = re.compile(
    r"^[ \t]*+(?:-{2,}[ \t]*(?:Forwarded message|Weitergeleitete Nachricht|Message transféré"
    r"|Mensaje reenviado|Messaggio inoltrato|Doorgestuurd bericht|Mensagem encaminhada"
    r"|Wiadomość przekazana)[ \t]*-{2,}"
    r"|Begin forwarded message ?:|Début du message (?:réexpédié|transféré) ?:"
    r"|Anfang der weitergeleiteten Nachricht ?:|Inicio del mensaje reenviado ?:|Inizio messaggio inoltrato ?:"
    r"|Begin doorgestuurd bericht ?:)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_SEE_BELOW = re.compile(
    r"\b(?:fyi|see below|below|forward(?:ing|ed)?|siehe unten|unten|weiter(?:leitung|geleitet)|zur info"
    r"|z\. ?k\.|ci-dessous|pour info|je (?:te|vous) transfère|abajo|reenvío|para tu información"
    r"|qui sotto|inoltro"
    r"|onderstaand|ter info|zie onder|abaixo|encaminho|poniżej|przekazuję)\b",
    re.IGNORECASE,
)


def holds_one_of(words: tuple[str, ...], lowered: str) -> bool:
    """Whether a text in lower case contains one of the words; much faster than a pattern of all of them."""
    return any(word in lowered for word in words)


def is_forward_subject(subject: str) -> bool | None:
    """Whether a subject (or text) begins like that of a forward; False if like that of a reply, else None."""
    if _FORWARD_PREFIX.match(subject):
        return True
    return False if _REPLY_PREFIX.match(subject) else None


def may_hold_forward(text: str) -> bool:
    """Whether a text contains words of a forward, as a quick test before `drop_forward_frame`."""
    if holds_one_of(_FORWARD_WORDS, text.lower()):
        return True
    return "\n" in text and _SEE_BELOW.search(text, 0, HEAD_CHARACTERS) is not None


def drop_forward_frame(text: str, is_forward: bool) -> list[Edit]:
    """Drop the headers and the cover note of a forwarded message; no edits if the text is not a forward.

    `is_forward`: the subject is that of a forward. Otherwise a forward is a mark ("Forwarded message") or a
    block of headers below a few words, which are kept; below a longer text they are a quote (`drop_quotes`).
    """
    edits: list[tuple[int, int]] = []
    at = 0
    for start, below, subject, is_marked in _frames(text):
        if start < at:
            continue
        above = text[at:start]
        few = not has_words(above, FEW_WORDS)
        seen_below = (few and _SEE_BELOW.search(above)) or not has_words(above, 1)
        if not (seen_below or (is_marked and few) or (is_forward and at == 0)):
            break
        if is_forward and not has_words(above, MAX_COVER_WORDS):
            edits.append((at, start))
        edits += [(start, subject[0]), (subject[1], below)] if subject else [(start, below)]
        at = below
    return _cuts(edits)


def drop_forward_quote_marks(text: str, is_forward: bool) -> list[Edit]:
    """Drop one level of quote marks below the mark of a forward (Apple Mail quotes forwarded messages)."""
    mark = _FORWARD_MARK.search(text) or (_ATTRIBUTION.search(text) if is_forward else None)
    if not mark or not (is_forward or not has_words(text[: mark.start()], FEW_WORDS)):
        return []
    if not text[mark.end() : mark.end() + 200].lstrip().startswith(">"):
        return []
    return [(found.start(), found.end(), "") for found in _ONE_MARK.finditer(text, mark.end())]


_ONE_MARK = re.compile(r"^[ \t]{0,3}>[ \t]?", re.MULTILINE)


def _frames(text: str) -> list[tuple[int, int, tuple[int, int] | None, bool]]:
    """(start, end, span of the subject or None, whether marked as forward) of every mark and header block.

    Headers directly below a mark are merged with it.
    """
    blocks = [(_before_rule(text, start), below, subject) for start, below, subject in _header_blocks(text)]
    marks = [(match.start(), match.end(), True) for match in _FORWARD_MARK.finditer(text)]
    marks += [(match.start(), match.end(), False) for match in _ORIGINAL.finditer(text)]
    marks += [
        (match.start(), match.end(), False)
        for match in _ATTRIBUTION.finditer(text)
        if _WHEN_OR_WHO.search(match[0])
    ]
    frames: list[tuple[int, int, tuple[int, int] | None, bool]] = []
    events = sorted(
        [(start, end, None, marked) for start, end, marked in marks]
        + [(start, end, subject, False) for start, end, subject in blocks],
        key=lambda event: (event[0], not event[3]),
    )
    for start, end, subject, marked in events:
        if frames and not text[frames[-1][1] : start].strip():  # directly below, or on the same lines
            first = frames[-1]
            frames[-1] = (first[0], max(first[1], end), first[2] or subject, first[3] or marked)
        else:
            frames.append((start, end, subject, marked))
    return frames


# ------------------------------------------------------------------------------------------- signatures

_LONGEST_SIGNATURE = 1500
_DASHES = re.compile(r"^--[ \t]*$", re.MULTILINE)
_DEVICE = re.compile(
    r"^[ \t]*(?:Sent (?:from|via) (?:my|the|mail|outlook|yahoo|samsung|an? )|Get Outlook for"
    r"|Envoyé (?:de|depuis) mon|Envoyé à partir|Télécharger Outlook|Von meinem [^\n]{1,40} gesendet"
    r"|Gesendet von|Enviado (?:desde mi|do meu)|Inviato da|Verzonden vanaf)[^\n]{0,120}$"
    r"|^[^\n]{0,40}\b(?:email|e-mail|message) (?:originated|came) (?:from )?outside[^\n]{0,300}$",
    re.MULTILINE | re.IGNORECASE,
)
_DISCLAIMER = re.compile(
    r"^[ \t*_]{0,20}(?:(?:confidentiality|legal) notice|disclaimer\b|haftungsausschluss"
    r"|avis de confidentialité|aviso (?:legal|de confidencialidad)|avviso di riservatezza"
    r"|(?:this|the information (?:contained )?in this) (?:e-?mail|message|communication)\b"
    r"|ce (?:message|courriel)\b|diese (?:e-?mail|nachricht)\b|este (?:mensaje|correo|e-?mail|mensagem)\b"
    r"|(?:questo messaggio|questa e-?mail)\b|(?:dit bericht|deze e-?mail)\b|ta wiadomość\b"
    r"|please consider the environment)",
    re.IGNORECASE | re.MULTILINE,
)
_LEGAL = re.compile(
    r"\b(?:confidential(?!ly)|intended (?:solely|only|recipient)|privileged|unauthori[sz]ed|liab(?:le|ility)"
    r"|vertraulich|unbefugt|haftung|confidentiel|destinataire|confidencial|destinatario|riservat[eoa]"
    r"|vertrouwelijk|geadresseerde|poufn|consider the environment|virus(?:es)?)\b",
    re.IGNORECASE,
)
_LEGAL_WORDS = (
    "confiden", "intended", "privileged", "unauthori", "liab", "vertraulich", "unbefugt", "haftung",
    "destinat", "riservat", "vertrouwelijk", "geadresseerde", "poufn", "environment", "virus",
)  # fmt: skip
# "[EXTERNAL]" in a line, and warnings of external mail.
_BANNER = re.compile(
    r"\[(?:EXT|EXTERNAL|EXTERN|EXTERNE|EXTERNO|ESTERNO|EXTERNAL (?:E-?MAIL|SENDER))\][ \t:]{0,5}"
    r"|^[ \t*!]{0,10}(?:(?:caution|warning|attention|achtung|vorsicht|prudence|atención|attenzione|let op)"
    r"[ \t]?[:!][ \t]{0,5})?(?:this|the|diese|dies ist|ce|este|questa|deze|external)\b[^\n.!]{0,60}"
    r"\b(?:e-?mail|message|mail|sender|courriel|correo|bericht|nachricht)\b[^\n.!]{0,60}"
    r"\b(?:outside (?:of )?(?:the|our|your|this) (?:\w{1,20} )?(?:organi[sz]ation|company|network|domain)"
    r"|external (?:e-?mail|sender|source|address|domain)|extern(?:en|er|em)? (?:absender|e-?mail|quelle)"
    r"|außerhalb (?:der|unserer|des|ihrer) \w{1,30}|(?:expéditeur|adresse|source) externe"
    r"|(?:remitente|correo|origen) externo|(?:mittente|origine) estern[oa]|externe (?:afzender|bron))\b"
    r"[^\n.!]{0,80}[.!]?"
    r"|^[ \t*!]{0,10}(?:do not|don't|never) (?:click|open)[^\n]{0,80}\b(?:links?|attachments?)\b[^\n]{0,120}"
    r"|\b(?:do not click (?:on )?(?:any )?links? or open attachments)[^\n.]{0,120}\.?"
    r"|^[ \t*!]{0,10}(?:klicken sie (?:nicht|keine)|öffnen sie keine|ne cliquez pas|no haga clic)"
    r"[^\n]{0,200}",
    re.IGNORECASE | re.MULTILINE,
)
# Lines that ticket systems add above and below a mail.
_SYSTEM = re.compile(
    r"^[ \t]{0,8}(?:received from:[^\n]{0,300}|ref:_\S{8,90}:ref|Ref:MSG\w{4,30}\S{0,40}"
    r"|(?:powered|delivered) by (?:zendesk|freshdesk|jira|otrs|zammad|servicenow|help ?scout|intercom)"
    r"[^\n]{0,80}"
    r"|(?:you can |to )?(?:view|track|update)(?: or \w{1,12})? (?:this|the|your) "
    r"(?:ticket|request|case|incident)"
    r"\b[^\n]{0,40}(?:https?:|click|here\b|:)[^\n]{0,200}"
    r"|(?:please )?do not reply to this (?:e-?mail|message)[^\n]{0,120}"
    r"|(?:ticket|case|incident|request|vorgang|demande)[ -]?(?:id|number|nr|no)?\.?[ \t]?[:#][ \t#]{0,4}"
    r"(?=[^\s]{0,30}\d)\S{1,40})[ \t]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_DATA_URI = re.compile(
    r"data:[a-z]{1,20}/[a-z0-9.+-]{1,60}(?:;[a-z-]{1,30}=[^;,\s]{1,60}){0,3};base64,[a-z0-9+/=%]*+",
    re.IGNORECASE,
)
_IMAGE = re.compile(r"\[(?:cid|image):[^\]\n]{1,200}\]|<mailto:[^>\n]{1,200}>", re.IGNORECASE)
_SIGN_OFF = re.compile(
    r"^[ \t]*(?:(?:with )?(?:(?:best|kind|kindest|warm|warmest|many|all the) )?(?:regards|wishes|thanks|best)"
    r"|thank you|thanks (?:again|in advance|so much)|cheers|(?:yours )?(?:sincerely|faithfully|truly)"
    r"|respectfully|(?:bien )?cordialement|salutations(?: distinguées)?|bien à vous|merci(?: d'avance)?|mfg"
    r"|mit (?:freundlichen|besten) grüßen|(?:freundliche|viele|beste) grüße|saludos(?: cordiales)?|un saludo"
    r"|atentamente|(?:cordiali|distinti) saluti|met vriendelijke groet(?:en)?|atenciosamente)"
    r"[ \t]?[,.!]*[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_CONTACT = re.compile(
    r"@|\||www\.|https?:|\+?\d[\d ()./-]{6,}|\b(?:tel|phone|mobile|fax|manager|director|officer|head of"
    r"|department|dept|ltd|limited|inc|llc|gmbh|sarl|team|assistant|coordinator|specialist|engineer|consultant|office)\b",
    re.IGNORECASE,
)
_SPOKEN = re.compile(
    r"\?|^\s*p\.?\s?s\b|\b(?:i|i'm|i've|my|me|please|you|we|je|mon|ma|vous|ich|mein|sie)\b", re.IGNORECASE
)


# Each pattern with parts of words, in lower case, one of which each match contains.
_LINES = (
    (_BANNER, ("[ext", "[est", "extern", "estern", "outside", "außerhalb", "attachment", "click", "klicken",
               "öffnen", "cliquez", "haga clic")),
    (_SYSTEM, ("received from:", "ref:", "powered by", "delivered by", "reply to this", "ticket", "case",
               "incident", "request", "vorgang", "demande")),
    (_DEVICE, ("sent ", "outlook", "envoyé", "gesendet", "enviado", "inviato", "verzonden", "outside")),
    (_IMAGE, ("[cid:", "[image:", "<mailto:")),
    (_DATA_URI, ("base64,",)),
)  # fmt: skip


def drop_device_lines(text: str) -> list[Edit]:
    """Drop "Sent from my phone", banners of external mail, lines of ticket systems, inline images."""
    lowered = text.lower()
    patterns = [pattern for pattern, words in _LINES if holds_one_of(words, lowered)]
    return _cuts([match.span() for pattern in patterns for match in pattern.finditer(text)])


def drop_disclaimers(text: str) -> list[Edit]:
    """Drop paragraphs with a legal disclaimer; the text below them is kept."""
    if not holds_one_of(_LEGAL_WORDS, text.lower()):
        return []
    pieces: list[tuple[int, int]] = []
    for match in _DISCLAIMER.finditer(text):
        if pieces and match.start() < pieces[-1][1]:
            continue
        if not _LEGAL.search(text, match.start(), match.start() + 500):
            continue
        end = match.start()
        while (line := _LINE.match(text, end)) and line[0].strip():
            end = line.end()
            is_whole = line[0].rstrip().endswith((".", "!", ":", "*"))
            if is_whole and not _LEGAL.search(text, end, _line_end(text, end)):
                break
        pieces.append((match.start(), end))
    return _cuts(pieces)


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start, start + 2_000)
    return end if end >= 0 else min(len(text), start + 2_000)


def drop_signature(text: str) -> list[Edit]:
    """Drop the lines below "-- ", and those below a sign-off and a name if they contain contact details.

    Lines that address the reader ("PS: could you also ...?") are kept, and so is a name alone.
    """
    end = len(text)
    pieces = []
    tail = max(0, end - _LONGEST_SIGNATURE)
    if dashes := _DASHES.search(text, tail, end):
        pieces += [dashes.span(), *_unspoken(_lines(text, dashes.end(), end))]
    sign_offs = list(_SIGN_OFF.finditer(text, tail, end))
    if sign_offs and has_words(text[: sign_offs[-1].start()], 5):
        below = _lines(text, sign_offs[-1].end(), end)
        if any(_CONTACT.search(line[0]) for line in below):
            is_name = not _CONTACT.search(below[0][0])
            pieces += _unspoken(below[is_name:])
    return _cuts(pieces)


def _lines(text: str, start: int, end: int) -> list[re.Match[str]]:
    return [line for line in _LINE.finditer(text, start, end) if line[0].strip()]


def _unspoken(lines: list[re.Match[str]]) -> list[tuple[int, int]]:
    return [line.span() for line in lines if not _SPOKEN.search(line[0])]


_LINE = re.compile(r"[^\n]++\n?")
