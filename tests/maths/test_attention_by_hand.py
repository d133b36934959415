"""Attention on three words, every number as it comes out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels import attention, formula

INFINITY = math.inf
DAMAGED = 0  # the row of "damaged" in "damaged on arrival"


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def words(dtype: torch.dtype) -> Tensor:
    return torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=dtype)


@pytest.fixture
def projections(dtype: torch.dtype) -> list[Tensor]:
    """W_Q, W_K, W_V, each (4, 2)."""
    return [
        torch.tensor(rows, dtype=dtype)
        for rows in (
            [[0.5, 0.5], [0, 0], [1, 0], [0, 1]],
            [[1, 0], [0, 0.5], [0, 2], [0, 0]],
            [[1, 0], [0, 0], [0, 1], [1, 0]],
        )
    ]


@pytest.fixture
def qkv(words: Tensor, projections: list[Tensor]) -> list[Tensor]:
    return [words @ projection for projection in projections]


def rounded(values: Tensor, decimals: int = 3) -> list[list[float]]:
    return [[round(value, decimals) for value in row] for row in values.double().tolist()]


def both_ways(qkv: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output and weights of the formula, after checking that the operator gives the same."""
    out, weights = formula.attention(*qkv, mask)
    q, k, v = (matrix[None, None] for matrix in qkv)  # one ticket, one head
    op_out, op_weights = attention(q, k, v, mask=mask, return_weights=True)
    torch.testing.assert_close(op_out[0, 0], out)
    torch.testing.assert_close(op_weights[0, 0], weights)
    return out, weights


def test_queries_keys_and_values(qkv: list[Tensor]) -> None:
    assert qkv[0].tolist() == [[0.5, 1.5], [0, 0], [1, 0]]
    assert qkv[1].tolist() == [[1, 0], [0, 0.5], [0, 2]]
    assert qkv[2].tolist() == [[2, 0], [0, 0], [0, 1]]


def test_scores(qkv: list[Tensor]) -> None:
    scores = qkv[0] @ qkv[1].T
    assert scores.tolist() == [[0.5, 0.75, 3], [0, 0, 0], [1, 0, 0]]
    assert rounded(scores / math.sqrt(2)) == [[0.354, 0.53, 2.121], [0, 0, 0], [0.707, 0, 0]]


def test_weights_and_output(qkv: list[Tensor]) -> None:
    out, weights = both_ways(qkv)
    assert rounded(weights) == [[0.124, 0.148, 0.728], [0.333, 0.333, 0.333], [0.503, 0.248, 0.248]]
    assert rounded(out) == [[0.248, 0.728], [0.667, 0.333], [1.007, 0.248]]


def test_causal(qkv: list[Tensor], dtype: torch.dtype) -> None:
    mask = torch.full((3, 3), -INFINITY, dtype=dtype).triu(diagonal=1)
    out, weights = both_ways(qkv, mask)
    assert rounded(weights) == [[1, 0, 0], [0.5, 0.5, 0], [0.503, 0.248, 0.248]]
    assert rounded(out) == [[2, 0], [1, 0], [1.007, 0.248]]
    q, k, v = (matrix[None, None] for matrix in qkv)
    torch.testing.assert_close(attention(q, k, v, causal=True)[0, 0], out)


def test_the_third_key_is_padding(qkv: list[Tensor], dtype: torch.dtype) -> None:
    mask = torch.tensor([0, 0, -INFINITY], dtype=dtype)
    out, weights = both_ways(qkv, mask)
    assert rounded(weights) == [[0.456, 0.544, 0], [0.5, 0.5, 0], [0.67, 0.33, 0]]
    assert (weights[:, 2] == 0).all()
    q, k, v = (matrix[None, None] for matrix in qkv)
    by_length = attention(q, k, v, key_lengths=torch.tensor([2]))
    torch.testing.assert_close(by_length[0, 0], out)


def test_a_hidden_score_of_zero_leaks(qkv: list[Tensor], dtype: torch.dtype) -> None:
    scaled = (qkv[0] @ qkv[1].T / math.sqrt(2))[DAMAGED]
    wrong = torch.softmax(scaled * torch.tensor([1, 0, 0], dtype=dtype), dim=0)
    assert rounded(wrong[None]) == [[0.416, 0.292, 0.292]]
    assert round(float(wrong[1:].sum()), 3) == 0.584
    right = torch.softmax(scaled + torch.tensor([0, -INFINITY, -INFINITY], dtype=dtype), dim=0)
    assert right.tolist() == [1, 0, 0]


def test_four_times_larger_embeddings_saturate(words: Tensor, projections: list[Tensor]) -> None:
    q, k, v = (4 * words @ projection for projection in projections)
    scaled = (q @ k.T / math.sqrt(2))[DAMAGED]
    assert [round(float(s), 2) for s in scaled] == [5.66, 8.49, 33.94]
    _, weights = both_ways([q, k, v])
    assert rounded(weights) == [[0, 0, 1], [0.333, 0.333, 0.333], [1, 0, 0]]


def test_a_row_with_its_last_key_hidden(dtype: torch.dtype) -> None:
    row = torch.tensor([2, 1, 0.5], dtype=dtype)
    right = torch.softmax(row + torch.tensor([0, 0, -INFINITY], dtype=dtype), dim=0)
    assert rounded(right[None]) == [[0.731, 0.269, 0]]
    wrong = torch.softmax(row * torch.tensor([1, 1, 0], dtype=dtype), dim=0)
    assert rounded(wrong[None]) == [[0.665, 0.245, 0.09]]


def test_a_query_that_may_read_nothing_gives_zeros(qkv: list[Tensor], dtype: torch.dtype) -> None:
    mask = torch.zeros(3, 3, dtype=dtype)
    mask[1] = -INFINITY
    out, weights = both_ways(qkv, mask)
    assert (out[1] == 0).all()
    assert (weights[1] == 0).all()


def test_a_boolean_mask_means_opposite_things_so_it_is_refused(qkv: list[Tensor]) -> None:
    q, k, v = (matrix[None, None] for matrix in qkv)
    future = torch.ones(3, 3, dtype=torch.bool).triu(diagonal=1)
    may_read = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=future)
    assert (
        may_read[0, 0, 2] == 0
    ).all()  # True = may read: the last word reads nothing, and no error says so
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~future)
    assert rounded(expected[0, 0]) == [[2, 0], [1, 0], [1.007, 0.248]]
    with pytest.raises(TypeError, match="additive"):
        attention(q, k, v, mask=future)


def test_cross_attention_with_values_of_another_size(dtype: torch.dtype) -> None:
    """2 queries read 5 keys, d_k = 3, d_v = 7; the sum is written out, one query and one head at a time."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, *shape, dtype=dtype) for shape in ((2, 3), (5, 3), (5, 7)))
    out, weights = attention(q, k, v, return_weights=True)
    assert out.shape == (2, 4, 2, 7)
    assert weights.shape == (2, 4, 2, 5)
    by_hand = torch.zeros_like(out, dtype=torch.float64)
    for ticket, head, i in ((t, h, i) for t in range(2) for h in range(4) for i in range(2)):
        scores = [float(q[ticket, head, i].double() @ k[ticket, head, j].double()) / 3**0.5 for j in range(5)]
        total = sum(math.exp(score) for score in scores)
        for j in range(5):
            by_hand[ticket, head, i] += math.exp(scores[j]) / total * v[ticket, head, j].double()
    largest = (out.double() - by_hand).abs().max()
    assert largest <= (1e-6 if dtype == torch.float32 else 1e-15)


@pytest.mark.parametrize("hidden", ["nothing", "the future", "padding"])
def test_one_head_agrees_with_pytorch(dtype: torch.dtype, hidden: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 7, 16, dtype=dtype) for _ in range(3))
    mask = torch.zeros(3, 7, 7, dtype=dtype)
    if hidden == "the future":
        mask += torch.full((7, 7), -INFINITY, dtype=dtype).triu(diagonal=1)
    if hidden == "padding":
        mask.masked_fill_(torch.arange(7) >= torch.tensor([7, 5, 3])[:, None, None], -INFINITY)
    out, _ = formula.attention(q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert float((out - expected).abs().max()) <= (2**-22 if dtype == torch.float32 else 2**-51)
