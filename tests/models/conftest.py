"""A small bundle, made without training: what the reader of bundles is tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.bundle import BundleConfig, write_bundle
from models.tokenizer import Tokenizer, build_word_tokenizer
from models.tradeoff import Thresholds
from tests.models.small_graph import small_graph

TEXTS = ["my parcel is late, my parcel is lost", "refund my card, refund my order", "parcel late card lost"]
TEAMS = ["delivery", "payment", "account"]


@pytest.fixture
def contents() -> Callable[..., dict[str, Any]]:
    """contents(**changes) -> the arguments of `write_bundle` for a small sound bundle."""

    def make(**changes: Any) -> dict[str, Any]:
        library = build_word_tokenizer(TEXTS)
        tokenizer = Tokenizer(library, 20)
        config = BundleConfig(
            name="small",
            version="1",
            teams=TEAMS,
            max_tokens=20,
            vocab_size=tokenizer.vocab_size,
            temperature=1.5,
            thresholds=Thresholds(confidence=0.7),
        )
        return {
            "model": small_graph(tokenizer.vocab_size, len(TEAMS)),
            "tokenizer_json": library.to_str(),
            "config": config,
            "model_card": "# Small\nKnows three teams.\n",
        } | changes

    return make


@pytest.fixture
def small_bundle(tmp_path: Path, contents: Callable[..., dict[str, Any]]) -> Path:
    """A folder with a small sound bundle."""
    folder = tmp_path / "small"
    write_bundle(folder, **contents())
    return folder
