"""Makes text look hurriedly typed: typing errors, chat spelling, missing capitals and commas."""

import random
import re

from training.data.typos import slip

# Chat spelling, and words that many people spell in one wrong way.
CHAT = {
    "you": "u", "your": "ur", "are": "r", "please": "pls", "thanks": "thx", "thank you": "ty",
    "because": "cos", "though": "tho", "about": "abt", "people": "ppl", "tomorrow": "tmrw", "before": "b4",
    "message": "msg", "would like to": "wanna", "want to": "wanna", "going to": "gonna", "really": "rly",
    "and": "n", "something": "smth", "without": "w/o", "until": "til", "should": "shud", "could": "cud",
    "received": "recieved", "address": "adress", "account": "acc", "separate": "seperate", "which": "wich",
    "guarantee": "garantee", "warranty": "warrenty", "receipt": "reciept", "courier": "corier",
    "email": "e mail", "there is": "theres", "definitely": "definately", "their": "there",
}  # fmt: skip
_CHAT_WORDS = re.compile(rf"\b({'|'.join(sorted(CHAT, key=len, reverse=True))})\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{3,}")


def untidy(text: str, rng: random.Random) -> str:
    """`text` with random changes of a hurried writer; their strength is drawn for each ticket."""
    if rng.random() < 0.55:
        text = chat_spelling(text, rng, rng.uniform(0.1, 0.7))
    if rng.random() < 0.6:
        text = text.replace("'", "")
    if rng.random() < 0.8:
        text = text.lower()
    if rng.random() < 0.5:
        text = re.sub(r"[,;:]", "", text)
    if rng.random() < 0.25:
        text = re.sub(r"\. ", lambda _: rng.choice((" ", ", ", "... ", ". ")), text)
    if rng.random() < 0.3:
        text = re.sub(r"\?", lambda _: rng.choice(("", "??", "?!", "?")), text)
    if rng.random() < 0.25:
        text = text.rstrip(".")
    return slips(text, rng, rng.choice((0.0, 0.03, 0.06, 0.1, 0.15)))


def chat_spelling(text: str, rng: random.Random, rate: float) -> str:
    """Replace words by their chat spelling, each with probability `rate`."""

    def short(match: re.Match[str]) -> str:
        return CHAT[match.group().lower()] if rng.random() < rate else match.group()

    return _CHAT_WORDS.sub(short, text)


def slips(text: str, rng: random.Random, rate: float) -> str:
    """Make a typing error in each word with probability `rate`, except in order numbers and addresses."""

    def word(match: re.Match[str]) -> str:
        return slip(match.group(), rng) if rng.random() < rate else match.group()

    def token(match: re.Match[str]) -> str:
        found = match.group()
        return found if re.search(r"[\d@]", found) else _WORD.sub(word, found)

    return re.sub(r"\S+", token, text) if rate else text
