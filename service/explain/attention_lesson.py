"""The numbers behind `/learn`: attention on three words, and what the key size does to softmax.

The walk and the single draws are computed when they are asked for. The averages over 2,000 queries per key
size take ten seconds of a core, so `python -m service.explain.attention_lesson` measures them once into
`key_sizes.json`, and a test measures them again. `randn` draws the very numbers that `torch.randn` draws on a
CPU, without torch.
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

KEY_SIZES = (4, 16, 64, 256, 1024)
PAIRS, QUERIES, KEYS = 20_000, 2_000, 32
WORDS = ("damaged", "on", "arrival")
X = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], np.float64)  # (3, 4)
W_Q = np.array([[0.5, 0.5], [0, 0], [1, 0], [0, 1]], np.float64)  # (4, 2)
W_K = np.array([[1, 0], [0, 0.5], [0, 2], [0, 0]], np.float64)
W_V = np.array([[1, 0], [0, 0], [0, 1], [1, 0]], np.float64)
MEASURED = Path(__file__).parent / "key_sizes.json"


def softmax(scores: Array) -> Array:
    """Softmax over the last axis; -inf gives exactly 0."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = powers / powers.sum(axis=-1, keepdims=True)
    return weights


def attention(q: Array, k: Array, v: Array, mask: Array) -> dict[str, Array]:
    """Every matrix on the way through softmax(Q Kᵀ / √d_k + M) V, by its name."""
    scores = q @ k.T
    scaled = scores / math.sqrt(q.shape[-1])
    masked = scaled + mask
    weights = softmax(masked)
    return {"S": scores, "S/√d_k": scaled, "M": mask, "S/√d_k + M": masked, "A": weights, "O": weights @ v}


def walk(causal: bool) -> list[list[dict[str, Any]]]:
    """The seven steps, each a list of matrices: {name, columns, rows}; minus infinity is null."""
    n = len(WORDS)
    mask = np.triu(np.full((n, n), -np.inf), 1) if causal else np.zeros((n, n))
    made = {"X": X, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "Q": X @ W_Q, "K": X @ W_K, "V": X @ W_V}
    made |= attention(made["Q"], made["K"], made["V"], mask)
    steps = (
        ("X", "W_Q", "W_K", "W_V"),
        ("Q", "K", "V"),
        ("S",),
        ("S/√d_k",),
        ("M", "S/√d_k + M"),
        ("A",),
        ("O",),
    )
    return [[_matrix(name, made[name]) for name in step] for step in steps]


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
    """One random query and its 32 random keys: softmax weights, unscaled and scaled, largest first."""
    generator = np.random.default_rng(seed)
    scores = np.sort(generator.standard_normal((KEYS, d_k)) @ generator.standard_normal(d_k))[::-1]
    return {
        "d_k": d_k,
        "seed": seed,
        "unscaled": softmax(scores).tolist(),
        "scaled": softmax(scores / math.sqrt(d_k)).tolist(),
    }


def randn(generator: np.random.MT19937, *shape: int) -> Array:
    """`torch.randn(*shape, dtype=torch.float64)` of the same seed; needs 16 or a multiple of 16 numbers.

    torch fills 64-bit words from its Mersenne twister (two draws each, the first on top), keeps 53 bits of
    each as a uniform number, and turns blocks of 16 into normal ones (Box and Muller, 1958): the first
    eight give the radii, the last eight the angles.
    """
    count = math.prod(shape)
    raw = np.random.Generator(generator).integers(0, 2**32, 2 * count, np.uint32).reshape(count, 2)
    words = (raw[:, 0].astype(np.uint64) << np.uint64(32)) | raw[:, 1]
    uniform = (words & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53
    pairs = uniform.reshape(-1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log(1 - pairs[:, 0])), 2 * math.pi * pairs[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(shape)


def twister(seed: int) -> np.random.MT19937:
    """The Mersenne twister in the state in which `torch.manual_seed(seed)` leaves it."""
    # RandomState seeds as Matsumoto and Nishimura's init_genrand does, which is what torch calls.
    generator = np.random.MT19937()
    state: Any = np.random.RandomState(seed).get_state(legacy=False)
    generator.state = state
    return generator


def draw_scores(generator: np.random.MT19937, d_k: int, at_once: int = 125) -> Array:
    """Scores (2000, 32) of random queries with 32 random keys each, drawn in parts to spare memory."""
    queries = randn(generator, QUERIES, d_k)
    parts = [
        np.einsum("nd,nkd->nk", queries[i : i + at_once], randn(generator, at_once, KEYS, d_k))
        for i in range(0, QUERIES, at_once)
    ]
    return np.concatenate(parts)


def gradient_size(scores: Array) -> float:
    """Mean Frobenius norm of d softmax / d scores = diag(p) - p pᵀ over the rows."""
    p = softmax(scores)
    squares = (p**2).sum(-1)
    return float(np.sqrt(np.maximum(squares - 2 * (p**3).sum(-1) + squares**2, 0)).mean())


def measure(key_sizes: tuple[int, ...] = KEY_SIZES) -> list[dict[str, float]]:
    """The averages per key size: seed 0 for variances and weights, seed 1 for the gradient."""
    weights_from, gradients_from = twister(0), twister(1)
    measured = []
    for d_k in key_sizes:
        dots = (randn(weights_from, PAIRS, d_k) * randn(weights_from, PAIRS, d_k)).sum(-1)
        scores = draw_scores(weights_from, d_k)
        largest, tamed = softmax(scores).max(-1), softmax(scores / math.sqrt(d_k)).max(-1)
        for_gradient = draw_scores(gradients_from, d_k)
        measured.append(
            {
                "d_k": d_k,
                "variance": float(dots.var(ddof=1)),
                "variance_scaled": float((dots / math.sqrt(d_k)).var(ddof=1)),
                "largest": float(largest.mean()),
                "largest_scaled": float(tamed.mean()),
                "certain": float((largest > 0.99).mean()),
                "certain_scaled": float((tamed > 0.99).mean()),
                "gradient": gradient_size(for_gradient),
                "gradient_scaled": gradient_size(for_gradient / math.sqrt(d_k)),
            }
        )
    return measured


@cache
def numbers() -> dict[str, Any]:
    """Everything that `/learn` shows, but for the single draws."""
    return {
        "walk": {"none": walk(causal=False), "causal": walk(causal=True)},
        "key_sizes": json.loads(MEASURED.read_text(encoding="utf-8")),
        "measured_on": {"pairs": PAIRS, "queries": QUERIES, "keys": KEYS},
    }


def main() -> None:
    """Measure and write `key_sizes.json`."""
    rows = [{name: round(value, 6) for name, value in row.items()} for row in measure()]
    MEASURED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
