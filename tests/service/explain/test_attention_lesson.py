"""The numbers behind /learn: by hand, by the readable formula, and measured again."""

import json
import math

import numpy as np
import pytest
import torch

from kernels import formula
from service.explain import attention_lesson as lesson

# Attention on "damaged on arrival", worked out by hand.
BY_HAND = {
    "Q": [[0.5, 1.5], [0, 0], [1, 0]],
    "K": [[1, 0], [0, 0.5], [0, 2]],
    "V": [[2, 0], [0, 0], [0, 1]],
    "S": [[0.5, 0.75, 3], [0, 0, 0], [1, 0, 0]],
    "S/√d_k": [[0.354, 0.530, 2.121], [0, 0, 0], [0.707, 0, 0]],
}
ENDS = {
    "none": (
        [[0.124, 0.148, 0.728], [0.333, 0.333, 0.333], [0.503, 0.248, 0.248]],
        [[0.248, 0.728], [0.667, 0.333], [1.007, 0.248]],
    ),
    "causal": (
        [[1, 0, 0], [0.5, 0.5, 0], [0.503, 0.248, 0.248]],
        [[2, 0], [1, 0], [1.007, 0.248]],
    ),
    "padding": (
        [[0.456, 0.544, 0], [0.5, 0.5, 0], [0.670, 0.330, 0]],
        [[0.912, 0], [1, 0], [1.340, 0]],
    ),
}
# d_k: variance, scaled, largest weight, scaled, gradient size, scaled
MEASURED = {
    4: (4.03, 1.006, 0.335, 0.152, 0.2918, 0.2337),
    16: (15.84, 0.990, 0.637, 0.165, 0.2875, 0.2388),
    64: (63.69, 0.995, 0.822, 0.163, 0.1948, 0.2395),
    256: (256.00, 1.000, 0.903, 0.164, 0.1129, 0.2405),
    1024: (1024.99, 1.001, 0.953, 0.164, 0.0570, 0.2403),
}


@pytest.mark.parametrize("kind", lesson.MASKS)
def test_the_walk_is_the_one_by_hand(kind):
    steps = lesson.steps(kind)
    assert len(steps) == 7
    found = {matrix["name"]: matrix for step in steps for matrix in step}
    for name, values in BY_HAND.items():
        np.testing.assert_allclose(found[name]["values"], values, atol=5.01e-4)
    weights, output = ENDS[kind]
    np.testing.assert_allclose(found["A"]["values"], weights, atol=5.01e-4)
    np.testing.assert_allclose(found["O"]["values"], output, atol=5.01e-4)
    hidden = [[value is None for value in row] for row in found["M"]["values"]]
    unseen = {"none": lambda reader, read: False, "causal": lambda reader, read: read > reader}
    unseen["padding"] = lambda reader, read: read == 2
    assert hidden == [[unseen[kind](reader, read) for read in range(3)] for reader in range(3)]
    json.dumps(steps, allow_nan=False)


@pytest.mark.parametrize("kind", lesson.MASKS)
def test_the_walk_is_the_readable_formula(kind):
    found = {matrix["name"]: matrix["values"] for step in lesson.steps(kind) for matrix in step}
    q, k, v = (torch.from_numpy(lesson.X @ w) for w in (lesson.W_Q, lesson.W_K, lesson.W_V))
    hidden = torch.full((3, 3), -math.inf, dtype=torch.float64)
    padding = torch.tensor([0, 0, -math.inf], dtype=torch.float64).expand(3, 3)
    mask = {"none": None, "causal": hidden.triu(1), "padding": padding}[kind]
    output, weights = formula.attention(q, k, v, mask)
    np.testing.assert_allclose(found["A"], weights, atol=1e-15)
    np.testing.assert_allclose(found["O"], output, atol=1e-15)


def gradient_size(scores):
    """Mean Frobenius norm of d softmax / d scores = diag(p) - p pᵀ over the rows."""
    p = torch.softmax(scores, -1)
    squares = (p**2).sum(-1)
    return (squares - 2 * (p**3).sum(-1) + squares**2).clamp_min(0).sqrt().mean().item()


def test_the_gradient_size_is_the_norm_of_the_jacobian():
    scores = np.random.default_rng(0).normal(size=(5, 7)) * 3
    norms = [
        torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), torch.from_numpy(row))
        .norm()
        .item()
        for row in scores
    ]
    assert gradient_size(torch.from_numpy(scores)) == pytest.approx(np.mean(norms), abs=1e-12)


def test_the_committed_figures_are_the_lessons():
    rows = json.loads(lesson.KEY_SIZE_FIGURES.read_text(encoding="utf-8"))
    assert [row["d_k"] for row in rows] == list(MEASURED)
    for row in rows:
        variance, scaled, largest, largest_scaled, gradient, gradient_scaled = MEASURED[row["d_k"]]
        assert round(row["variance"], 2) == variance
        assert round(row["variance_scaled"], 3) == scaled
        assert round(row["largest"], 3) == largest
        assert round(row["largest_scaled"], 3) == largest_scaled
        assert round(row["gradient"], 4) == gradient
        assert round(row["gradient_scaled"], 4) == gradient_scaled
    assert round(rows[-1]["certain"], 2) == 0.73


def scores_of(generator, d_k, at_once=125):
    """Scores (2000, 32) of random queries with 32 random keys each, drawn in parts to save memory."""
    queries = torch.randn(lesson.QUERIES, d_k, dtype=torch.float64, generator=generator)
    parts = []
    for part in queries.split(at_once):
        keys = torch.randn(len(part), lesson.KEYS, d_k, dtype=torch.float64, generator=generator)
        parts.append(torch.einsum("nd,nkd->nk", part, keys))
    return torch.cat(parts)


def measure(key_sizes):
    """The figures per key size: seed 0 for variances and weights, seed 1 for the gradient."""
    for_weights, for_gradients = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    for d_k in key_sizes:
        query, key = (
            torch.randn(lesson.PAIRS, d_k, dtype=torch.float64, generator=for_weights) for _ in range(2)
        )
        dots = (query * key).sum(-1)
        scores = scores_of(for_weights, d_k)
        largest, largest_scaled = (torch.softmax(s, -1).amax(-1) for s in (scores, scores / math.sqrt(d_k)))
        scores = scores_of(for_gradients, d_k)
        yield {
            "d_k": d_k,
            "variance": dots.var().item(),
            "variance_scaled": (dots / math.sqrt(d_k)).var().item(),
            "largest": largest.mean().item(),
            "largest_scaled": largest_scaled.mean().item(),
            "certain": (largest > 0.99).double().mean().item(),
            "certain_scaled": (largest_scaled > 0.99).double().mean().item(),
            "gradient": gradient_size(scores),
            "gradient_scaled": gradient_size(scores / math.sqrt(d_k)),
        }


def assert_stored_figures(key_sizes):
    stored = {row["d_k"]: row for row in json.loads(lesson.KEY_SIZE_FIGURES.read_text(encoding="utf-8"))}
    for row in measure(key_sizes):
        assert row == pytest.approx({name: stored[row["d_k"]][name] for name in row}, abs=2e-6)


def test_measuring_again_gives_the_stored_figures():
    assert_stored_figures((4, 16, 64))


@pytest.mark.slow
def test_measuring_every_key_size_again_gives_the_stored_figures():
    assert_stored_figures(MEASURED)


def test_the_first_draw_shows_the_averages():
    for row in json.loads(lesson.KEY_SIZE_FIGURES.read_text(encoding="utf-8")):
        drawn = lesson.draw(row["d_k"], row["seed"])
        assert drawn["unscaled"][0] == pytest.approx(row["largest"], abs=0.005)
        assert drawn["scaled"][0] == pytest.approx(row["largest_scaled"], abs=0.005)


@pytest.mark.parametrize("d_k", MEASURED)
def test_a_draw_is_sorted_sums_to_one_and_saturates_with_the_key_size(d_k):
    drawn = lesson.draw(d_k, seed=3)
    for kind in ("unscaled", "scaled"):
        weights = drawn[kind]
        assert len(weights) == lesson.KEYS
        assert sum(weights) == pytest.approx(1)
        assert weights == sorted(weights, reverse=True)
    assert drawn["unscaled"][0] > drawn["scaled"][0]
    assert lesson.draw(d_k, seed=3) == drawn != lesson.draw(d_k, seed=4)
