"""Why scores are divided by √d_k, measured: without it softmax saturates and its gradient vanishes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from kernels import formula

KEY_SIZES = (4, 16, 64, 256, 1024)


@pytest.fixture(scope="module")
def measured() -> dict[int, dict[str, float]]:
    """20,000 pairs, and 2,000 queries with 32 keys each, drawn in one run from seed 0 in float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    figures = {}
    for d_k in KEY_SIZES:
        dots = (normal(20_000, d_k) * normal(20_000, d_k)).sum(dim=1)
        queries, keys = normal(2000, 1, d_k), normal(2000, 32, d_k)
        unscaled = torch.softmax(queries @ keys.mT, dim=-1).max(dim=-1).values
        _, weights = formula.attention(queries, keys, keys)
        figures[d_k] = {
            "variance": float(dots.var()),
            "scaled variance": float((dots / math.sqrt(d_k)).var()),
            "largest weight": float(unscaled.mean()),
            "largest scaled weight": float(weights.max(dim=-1).values.mean()),
            "saturated rows": float((unscaled > 0.99).double().mean()),
        }
    return figures


@pytest.mark.parametrize(
    ("d_k", "variance", "scaled", "largest", "largest_scaled"),
    [
        (4, 4.03, 1.006, 0.335, 0.152),
        (16, 15.84, 0.990, 0.637, 0.165),
        (64, 63.69, 0.995, 0.822, 0.163),
        (256, 256.00, 1.000, 0.903, 0.164),
        (1024, 1024.99, 1.001, 0.953, 0.164),
    ],
)
def test_variance_is_the_key_size_until_scaled(
    measured: dict[int, dict[str, float]],
    d_k: int,
    variance: float,
    scaled: float,
    largest: float,
    largest_scaled: float,
) -> None:
    figures = measured[d_k]
    assert round(figures["variance"], 2) == variance
    assert round(figures["scaled variance"], 3) == scaled
    assert round(figures["largest weight"], 3) == largest
    assert round(figures["largest scaled weight"], 3) == largest_scaled


def test_unscaled_rows_saturate(measured: dict[int, dict[str, float]]) -> None:
    assert round(100 * measured[1024]["saturated rows"]) == 73


def jacobian(scores: torch.Tensor) -> torch.Tensor:
    """d softmax_i / d s_j = p_i (δ_ij - p_j), (rows, keys, keys)."""
    p = torch.softmax(scores, dim=-1)
    return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]


def drawn() -> Iterator[tuple[int, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for d_k in KEY_SIZES:
        queries = torch.randn(2000, 1, d_k, dtype=torch.float64, generator=generator)
        keys = torch.randn(2000, 32, d_k, dtype=torch.float64, generator=generator)
        yield d_k, (queries @ keys.mT).squeeze(1)  # (2000, 32)


def test_gradient_size() -> None:
    sizes = {
        d_k: tuple(
            round(float(torch.linalg.matrix_norm(jacobian(s)).mean()), 4) for s in (raw, raw / math.sqrt(d_k))
        )
        for d_k, raw in drawn()
    }
    assert sizes == {
        4: (0.2918, 0.2337),
        16: (0.2875, 0.2388),
        64: (0.1948, 0.2395),
        256: (0.1129, 0.2405),
        1024: (0.0570, 0.2403),
    }


def test_the_written_gradient_is_the_one_that_training_follows() -> None:
    scores = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    followed = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, dim=0), scores)
    torch.testing.assert_close(jacobian(scores), followed, atol=1e-16, rtol=1e-12)


def test_a_confident_row_hardly_moves() -> None:
    p = torch.tensor([0.99, 0.01], dtype=torch.float64)
    assert round(float(jacobian(p.log())[0, 0]), 6) == 0.0099
