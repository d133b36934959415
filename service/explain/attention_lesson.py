"""The numbers behind `/learn`: attention on three words, and the effect of the key size on softmax.

The steps and single draws are computed on request. The averages over 2,000 queries per key size come from
`key_sizes.json`; the tests compute them again with torch. There, `seed` is a seed whose draw has weights
close to these averages.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MASKS = ("none", "causal", "padding")
PAIRS, QUERIES, KEYS = 20_000, 2_000, 32
WORDS = ("damaged", "on", "arrival")
X = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], np.float64)  # (3, 4)
W_Q = np.array([[0.5, 0.5], [0, 0], [1, 0], [0, 1]], np.float64)  # (4, 2)
W_K = np.array([[1, 0], [0, 0.5], [0, 2], [0, 0]], np.float64)
W_V = np.array([[1, 0], [0, 0], [0, 1], [1, 0]], np.float64)
KEY_SIZE_FIGURES = Path(__file__).parent / "key_sizes.json"


def softmax(scores: Array) -> Array:
    """Softmax over the last axis; -inf gives exactly 0."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = powers / powers.sum(axis=-1, keepdims=True)
    return weights


def attention(q: Array, k: Array, v: Array, mask: Array) -> dict[str, Array]:
    """The matrices of softmax(Q Kᵀ / √d_k + M) V by name; `mask` is M."""
    scores = q @ k.T
    scaled = scores / math.sqrt(q.shape[-1])
    masked = scaled + mask
    weights = softmax(masked)
    return {"S": scores, "S/√d_k": scaled, "M": mask, "S/√d_k + M": masked, "A": weights, "O": weights @ v}


def mask_of(kind: str) -> Array:
    """The additive mask (3, 3): "none", "causal", or "padding", which takes the last word for padding."""
    n = len(WORDS)
    if kind == "causal":
        return np.triu(np.full((n, n), -np.inf), 1)
    mask = np.zeros((n, n))
    if kind == "padding":
        mask[:, -1] = -np.inf
    return mask


def steps(kind: str) -> list[list[dict[str, Any]]]:
    """The seven steps, each a list of matrices {name, rows, columns, values}; minus infinity is null."""
    mask = mask_of(kind)
    made = {"X": X, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "Q": X @ W_Q, "K": X @ W_K, "V": X @ W_V}
    made |= attention(made["Q"], made["K"], made["V"], mask)
    names = (
        ("X", "W_Q", "W_K", "W_V"),
        ("Q", "K", "V"),
        ("S",),
        ("S/√d_k",),
        ("M", "S/√d_k + M"),
        ("A",),
        ("O",),
    )
    return [[_matrix(name, made[name]) for name in step] for step in names]


def _matrix(name: str, values: Array) -> dict[str, Any]:
    by_word = values.shape[0] == len(WORDS)
    onto_words = by_word and values.shape[1] == len(WORDS)
    return {
        "name": name,
        "rows": list(WORDS) if by_word else None,
        "columns": list(WORDS) if onto_words else None,
        "values": [[None if math.isinf(value) else value for value in row] for row in values.tolist()],
    }


def draw(d_k: int, seed: int) -> dict[str, Any]:
    """Softmax weights of one random query over 32 random keys, unscaled and scaled, largest first."""
    generator = np.random.default_rng(seed)
    scores = np.sort(generator.standard_normal((KEYS, d_k)) @ generator.standard_normal(d_k))[::-1]
    return {
        "d_k": d_k,
        "seed": seed,
        "unscaled": softmax(scores).tolist(),
        "scaled": softmax(scores / math.sqrt(d_k)).tolist(),
    }


@cache
def numbers() -> dict[str, Any]:
    """Everything that `/learn` shows except the single draws."""
    return {
        "walk": {kind: steps(kind) for kind in MASKS},
        "key_sizes": json.loads(KEY_SIZE_FIGURES.read_text(encoding="utf-8")),
        "measured_on": {"pairs": PAIRS, "queries": QUERIES, "keys": KEYS},
    }
