"""Small differences between writers: contractions and British or American spelling."""

import random
import re

CONTRACTIONS = {
    "I am": "I'm", "I have": "I've", "I will": "I'll", "I would": "I'd", "we are": "we're",
    "we have": "we've",
    "do not": "don't", "does not": "doesn't", "did not": "didn't", "is not": "isn't", "are not": "aren't",
    "was not": "wasn't", "were not": "weren't", "has not": "hasn't", "have not": "haven't",
    "had not": "hadn't",
    "cannot": "can't", "could not": "couldn't", "would not": "wouldn't", "will not": "won't", "it is": "it's",
    "there is": "there's", "that is": "that's", "what is": "what's", "they are": "they're",
    "you are": "you're",
}  # fmt: skip
# "I have a bench" stays; only a helping verb contracts, and before "had" or a noun it is none.
_HELPING = (
    r"(?= (?:been|had|not|now|just|already|tried|asked|looked|checked|bought|ordered|changed|used|owned))"
)
AMERICAN = {
    "colour": "color", "grey": "gray", "neighbour": "neighbor", "parcel": "package", "postcode": "zip code",
    "instalment": "installment", "metre": "meter", "organise": "organize", "recognise": "recognize",
    "favourite": "favorite", "mum": "mom", "cheque": "check", "programme": "program",
    "courgettes": "zucchini",
    "catalogue": "catalog", "honour": "honor", "tyre": "tire", "arbour": "arbor",
    "autumn": "fall", "pavement": "sidewalk", "mould": "mold", "socket": "outlet",
}  # fmt: skip


def personal(text: str, rng: random.Random, contractions: float) -> str:
    """Apply a writer's habits: contractions, with probability `contractions`, and American spelling."""
    if rng.random() < contractions:
        text = contract(text)
    elif rng.random() < 0.7:
        text = write_out(text)
    return american(text) if rng.random() < 0.3 else text


def contract(text: str) -> str:
    """Contract wherever it reads well: "I am" to "I'm", "cannot" to "can't"."""
    return _CONTRACT.sub(lambda match: _like(match.group(), CONTRACTIONS[_plain(match.group())]), text)


def write_out(text: str) -> str:
    """Undo the contractions that can be read in one way only."""
    return _WRITE_OUT.sub(lambda match: _like(match.group(), _LONG[match.group().lower()]), text)


def american(text: str) -> str:
    """Spell the American way."""
    return _AMERICAN.sub(lambda match: _like(match.group(), AMERICAN[match.group().lower()]), text)


def _plain(found: str) -> str:
    return found if found.startswith("I ") else found[0].lower() + found[1:]


def _like(found: str, other: str) -> str:
    return other[0].upper() + other[1:] if found[0].isupper() else other


_LONG = {short.lower(): long for long, short in CONTRACTIONS.items()}
_CONTRACT = re.compile(
    r"\b(?:"
    + "|".join(key + (_HELPING if key in ("I have", "we have") else "") for key in CONTRACTIONS)
    + r")\b(?=[ ,])",
    re.IGNORECASE,
)
# "Why isn't it here?" would come out as "Why is not it here?": questions keep theirs.
_WRITE_OUT = re.compile(r"(?<!why )\b(?:" + "|".join(_LONG) + r")\b", re.IGNORECASE)
_AMERICAN = re.compile(r"\b(?:" + "|".join(AMERICAN) + r")(?=s?\b)", re.IGNORECASE)
