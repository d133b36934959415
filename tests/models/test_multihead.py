"""`MultiHead` against PyTorch's own layer with the same weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from models.multihead import MultiHead

LENGTHS = torch.tensor([7, 5, 3])
LARGEST_ERROR = {
    torch.float32: 2**-22,
    torch.float64: 2**-51,
}  # 2.4e-7 and 4.4e-16: two units in the last place


@pytest.fixture(params=LARGEST_ERROR, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def pair(
    d: int, heads: int, dtype: torch.dtype, dropout: float = 0.0
) -> tuple[MultiHead, nn.MultiheadAttention]:
    torch.manual_seed(0)
    ours = MultiHead(d, heads, dropout).to(dtype)
    theirs = nn.MultiheadAttention(d, heads, dropout=dropout, batch_first=True, dtype=dtype)
    copy_weights(ours, theirs)
    return ours, theirs


def copy_weights(ours: MultiHead, theirs: nn.MultiheadAttention) -> None:
    inputs = (ours.W_Q, ours.W_K, ours.W_V)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in inputs]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in inputs]))
        theirs.out_proj.weight.copy_(ours.W_O.weight)
        theirs.out_proj.bias.copy_(ours.W_O.bias)


def with_biases(ours: MultiHead, theirs: nn.MultiheadAttention) -> None:
    for linear in (ours.W_Q, ours.W_K, ours.W_V, ours.W_O):
        nn.init.uniform_(linear.bias, -0.1, 0.1)
    copy_weights(ours, theirs)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_agrees_with_pytorch(dtype: torch.dtype, causal: bool, padded: bool) -> None:
    ours, theirs = pair(64, 4, dtype)
    with_biases(ours, theirs)
    x = torch.randn(3, 7, 64, dtype=dtype)
    with torch.no_grad():
        out, weights = ours(x, causal=causal, key_lengths=LENGTHS if padded else None, return_weights=True)
    future = torch.full((7, 7), -math.inf, dtype=dtype).triu(diagonal=1)
    is_padding = torch.arange(7) >= LENGTHS[:, None]
    expected, expected_weights = theirs(
        x,
        x,
        x,
        attn_mask=future if causal else None,
        key_padding_mask=torch.zeros(3, 7, dtype=dtype).masked_fill(is_padding, -math.inf)
        if padded
        else None,
        average_attn_weights=False,
    )
    assert float((out - expected).detach().abs().max()) <= LARGEST_ERROR[dtype]
    assert float((weights - expected_weights).detach().abs().max()) <= LARGEST_ERROR[dtype]
    if padded:
        assert (weights.permute(0, 3, 1, 2)[is_padding] == 0).all()


def test_masks_given_as_one_additive_mask_mean_the_same(dtype: torch.dtype) -> None:
    ours, _ = pair(64, 4, dtype)
    x = torch.randn(3, 7, 64, dtype=dtype)
    future = torch.full((7, 7), -math.inf, dtype=dtype).triu(diagonal=1)
    hidden = (torch.arange(7) >= LENGTHS[:, None])[:, None, None, :]
    mask = future + torch.zeros(3, 1, 1, 7, dtype=dtype).masked_fill(hidden, -math.inf)
    torch.testing.assert_close(ours(x, mask=mask), ours(x, causal=True, key_lengths=LENGTHS))


def test_reads_another_sequence(dtype: torch.dtype) -> None:
    ours, theirs = pair(64, 4, dtype)
    reader, read = torch.randn(3, 5, 64, dtype=dtype), torch.randn(3, 9, 64, dtype=dtype)
    out, weights = ours(reader, read, return_weights=True)
    expected, expected_weights = theirs(reader, read, read, average_attn_weights=False)
    assert weights.shape == (3, 4, 5, 9)
    assert float((out - expected).detach().abs().max()) <= LARGEST_ERROR[dtype]
    assert float((weights - expected_weights).detach().abs().max()) <= LARGEST_ERROR[dtype]


@pytest.mark.parametrize(("d", "parameters"), [(64, 16_640), (512, 1_050_624)])
@pytest.mark.parametrize("heads", [1, 4, 8])
def test_parameters_do_not_depend_on_heads(d: int, heads: int, parameters: int) -> None:
    assert sum(p.numel() for p in MultiHead(d, heads).parameters()) == parameters == 4 * d * d + 4 * d


def test_shapes_of_a_block_on_a_long_ticket() -> None:
    x = torch.randn(1, 120, 64)
    out, weights = MultiHead(64, 4)(x, return_weights=True)
    assert out.shape == (1, 120, 64)
    assert weights.shape == (1, 4, 120, 120)
    assert weights[0, 0].numel() == 14_400
    assert weights.numel() == 57_600
    assert weights.numel() * weights.element_size() == 230_400


def test_heads_must_share_the_columns() -> None:
    with pytest.raises(ValueError, match="heads = 3"):
        MultiHead(64, 3)


def test_starts_from_weights_drawn_as_pytorch_draws_them() -> None:
    """The same range and spread; the seeds differ, so each statistic is compared with room for chance."""
    torch.manual_seed(0)
    ours, theirs = MultiHead(256, 4), nn.MultiheadAttention(256, 4)
    inputs = torch.cat([linear.weight for linear in (ours.W_Q, ours.W_K, ours.W_V)])
    for mine, reference in ((inputs, theirs.in_proj_weight), (ours.W_O.weight, theirs.out_proj.weight)):
        assert float(mine.detach().abs().max()) == pytest.approx(
            float(reference.detach().abs().max()), rel=1e-3
        )
        assert float(mine.detach().std()) == pytest.approx(float(reference.detach().std()), rel=1e-2)
    for linear in (ours.W_Q, ours.W_K, ours.W_V, ours.W_O):
        assert (linear.bias == 0).all()
    assert (theirs.in_proj_bias == 0).all()
    assert (theirs.out_proj.bias == 0).all()


def test_drops_weights_in_training_and_only_then() -> None:
    ours, _ = pair(64, 4, torch.float64, dropout=0.25)
    x = torch.randn(8, 20, 64, dtype=torch.float64)
    whole = ours.eval()(x, return_weights=True)[1]
    dropped = ours.train()(x, return_weights=True)[1]
    kept = dropped != 0
    assert 0.70 < float(kept.double().mean()) < 0.80
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)


def test_training_with_dropout_follows_pytorch_step_by_step() -> None:
    """The same random numbers drop the same weights: output and every gradient agree."""
    ours, theirs = pair(64, 4, torch.float64, dropout=0.1)
    x = torch.randn(3, 7, 64, dtype=torch.float64)
    is_padding = torch.arange(7) >= LENGTHS[:, None]
    torch.manual_seed(5)
    out = ours.train()(x, key_lengths=LENGTHS)
    torch.manual_seed(5)
    expected, _ = theirs.train()(x, x, x, key_padding_mask=is_padding)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    gradient: Tensor = torch.cat([linear.weight.grad for linear in (ours.W_Q, ours.W_K, ours.W_V)])
    torch.testing.assert_close(gradient, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.W_O.weight.grad, theirs.out_proj.weight.grad)
