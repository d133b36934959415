"""Detects the encoding of a text file: by its byte-order mark, else UTF-8, else by its bytes."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import IO

from models.languages import languages_of_words
from models.tickets.faults import DataError, Faults

# Encodings of helpdesks' and spreadsheets' exports, the commonest first. If several give the same text, the
# first one is reported.
CANDIDATES = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257",
    "iso8859_2", "iso8859_15", "koi8_r", "cp437", "cp850", "cp866", "mac_roman",
    "cp932", "euc_jp", "gb18030", "big5", "cp949",
)  # fmt: skip
SAMPLE_BYTES = 200_000  # of lines that are not ASCII, to compare encodings on
BROKEN_SHARE = 0.5  # if a smaller share of such lines is not UTF-8, the file is UTF-8 with broken lines
BLOCK = 1 << 20
WESTERN_SHARE = 0.25  # largest share of letters beyond ASCII; in Russian read as cp1252 nearly all are

_WORD = re.compile(r"[^\W\d_]{3,}")
_LETTER = re.compile(r"[^\W\d_]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f\W\d_]")
# Characters that are rare in Western exports, and punctuation between letters.
_NOT_WESTERN = re.compile(
    r"[^\x00-\x7f\xa0äöüßÄÖÜéèêëÉÈÊËàâáãåÀÂÁÃÅçÇñÑíìîïÍÌÎÏóòôõøÓÒÔÕØúùûÚÙÛæÆœŒ¿¡«»“”„‘’‚…–—•·°§€£©®™²½´]"
    r"|(?<=[^\W\d_])[¿¡«»“”„‚²½](?=[^\W\d_])|õ(?!e)|²[^\W\d_]"
)


def open_text(path: Path, encoding: str | None, faults: Faults) -> IO[str]:
    """Open a file for reading; bytes that are invalid in its encoding become lone surrogates (`is_broken`).

    Raises DataError if `encoding` is not a text encoding, or if the file is full of zero bytes.
    """
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(codecs.BOM_UTF8):
        faults.add("byte_order_mark", path.name, "keeps", "the file starts with a byte-order mark, removed")
    if encoding is None:
        encoding = _marked(start)
        if encoding:
            detail = f"read as {encoding.upper()}, as its byte-order mark says"
            faults.add("byte_order_mark", path.name, "keeps", detail)
        elif start.count(0) > len(start) // 4:
            detail = "full of zero bytes: not UTF-8 (UTF-16 without its mark? then --encoding utf-16-le)"
            raise DataError(f"{path}: {detail}")
        else:
            encoding = _found(path, faults)
    encoding = encoding or "utf-8-sig"
    return path.open(encoding=encoding, errors=_on_broken_bytes(encoding), newline="")


def is_broken(text: str) -> bool:
    """Whether a text contains bytes that were invalid in its encoding."""
    return any("\udc80" <= character <= "\udcff" for character in text) if not text.isascii() else False


def broken_encoding(path: Path, row: int, encoding: str | None, faults: Faults) -> None:
    """Add the fault of a row that is dropped for invalid bytes."""
    detail = "bytes that are not UTF-8 (a Windows export? then --encoding cp1252)"
    detail = f"bytes that are not {encoding}" if encoding else detail
    faults.add("broken_encoding", path.name, "drops", detail, row)


def _marked(start: bytes) -> str | None:
    """The encoding of a byte-order mark; UTF-32 first, because its mark begins like that of UTF-16."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def _found(path: Path, faults: Faults) -> str | None:
    """The likeliest encoding of a file that is not UTF-8, reported in `faults`; None for UTF-8."""
    if _is_utf8(path):
        return None
    sample, broken, lines = bytearray(), 0, 0
    with path.open("rb") as file:
        for line in file:
            if line.isascii():
                continue
            lines += 1
            broken += not _decodes(line, "utf-8")
            if len(sample) < SAMPLE_BYTES:
                sample += line[:BLOCK]
    if broken < BROKEN_SHARE * lines:
        return None
    encoding = likeliest(bytes(sample))
    if encoding:
        detail = f"not UTF-8; read as {encoding}, the likeliest for its bytes (--encoding sets another one)"
        faults.add("encoding", path.name, "keeps", detail)
    return encoding


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def likeliest(sample: bytes) -> str | None:
    """The encoding among CANDIDATES that gives the most common words; None if no candidate decodes the bytes.

    Only common words with letters beyond ASCII count. Without any, it is cp1252 if that gives only characters
    of Western Europe, else what charset-normalizer detects.
    """
    readings = {name: sample.decode(name) for name in CANDIDATES if _decodes(sample, name)}
    votes = {name: _known_words(text) for name, text in readings.items()}
    best = max(votes, key=votes.__getitem__, default=None)
    if best and votes[best]:
        return best
    if _is_western(readings.get("cp1252", "\u2400")):
        return "cp1252"

    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=list(CANDIDATES)).best()
    if found is None:
        return best
    text = sample.decode(found.encoding, "replace")
    return next((name for name in readings if readings[name] == text), str(found.encoding))


def _known_words(text: str) -> int:
    """The number of words that are not ASCII and are function words of some language."""
    listed = languages_of_words()
    return sum(word in listed for word in _WORD.findall(text.lower()) if not word.isascii())


def _is_western(text: str) -> bool:
    """Whether letters beyond ASCII are few, and all of them Western European."""
    letters = len(_LETTER.findall(text))
    return not _NOT_WESTERN.search(text) and len(_BEYOND_ASCII.findall(text)) <= WESTERN_SHARE * letters


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _on_broken_bytes(encoding: str) -> str:
    """The error handler for invalid bytes; DataError if `encoding` is not a text encoding."""
    try:
        like_ascii = "a\n".encode(encoding).endswith(b"a\n")
        b"a".decode(encoding, "replace")
    except (LookupError, UnicodeError):
        raise DataError(f"--encoding {encoding}: there is no such text encoding") from None
    return "surrogateescape" if like_ascii else "replace"
