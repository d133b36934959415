"""The exported effects against the same decomposition by automatic differentiation."""

import math
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from models.network import Network, NetworkConfig, bigram_rows
from training.export.from_onnx import from_onnx
from training.export.onnx_graph import to_onnx

CONFIG = NetworkConfig(vocab_size=50, teams=4, max_tokens=30, d=16, heads=2, blocks=2, feed_forward=32)
SHAPES = {
    "baseline": CONFIG,
    "pairs and a way past the blocks": replace(CONFIG, positions="relative", bigrams=64, wide=8),
    "word counts": replace(CONFIG, counts=32),
    "all of it": replace(CONFIG, positions="relative", bigrams=64, wide=8, counts=32),
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def network(request):
    torch.manual_seed(0)
    network = Network(request.param).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # norms and biases away from 1 and 0, scores away from flat
            parameter.add_(0.3 * torch.randn_like(parameter))
        if request.param.counts:  # the last column is a square
            for table in (network.counts.token, network.counts.bigram):
                table.weight[:, -1].abs_()
    return network


@pytest.fixture(scope="module")
def session(network):
    return onnxruntime.InferenceSession(to_onnx(network), providers=["CPUExecutionProvider"])


def norm(layer, x):
    """A layer norm whose deviation is held."""
    deviation = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
    return (x - x.mean(-1, keepdim=True)) / deviation * layer.weight + layer.bias


def rows_of(owner, ids, config):
    """What tokens, and the pairs they make, bring from an owner's tables (n, d)."""
    rows = owner.token(ids)
    return rows + owner.bigram(bigram_rows(ids[None], config.bigrams)[0]) if config.bigrams else rows


def held(network, ids, contrast):
    """Effects of one ticket: weights, norm scales and ReLUs detached, then input times gradient."""
    config = network.config
    embedded = rows_of(network, ids, config).detach().requires_grad_()

    def heads(x):
        return x.unflatten(-1, (config.heads, -1)).transpose(0, 1)

    learned = config.positions == "learned"
    x = embedded + network.position.weight[: len(ids)] if learned else embedded
    bias = 0 if learned else network.relative(len(ids))
    for block in network.blocks:
        layer = block.attention
        normed = norm(block.norm_1, x)
        q, k, v = heads(layer.W_Q(normed)), heads(layer.W_K(normed)), heads(layer.W_V(normed))
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1).detach()
        x = x + layer.W_O((weights @ v).transpose(0, 1).flatten(1))
        x = x + block.down(functional.relu(block.up(norm(block.norm_2, x))))
    pooled, given = norm(network.norm, x).mean(0), [(embedded, network.token)]
    if config.wide:
        wide = rows_of(network.wide, ids, config).detach().requires_grad_()
        shares = network.wide.gate(wide).softmax(0).detach()
        pooled = torch.cat([pooled, norm(network.wide.norm, (shares * wide).sum(0))])
        given.append((wide, network.wide.token))
    difference = network.head(pooled) @ contrast
    if config.counts:
        scores, shares = count_shares(network.counts, ids, config)
        by_counts = shares * (scores @ contrast)
        difference = difference + by_counts.sum() + network.counts.bias @ contrast
    assert difference.item() == pytest.approx((network(ids[None])[0] @ contrast).item(), abs=1e-4)
    gradients = torch.autograd.grad(difference, [rows for rows, _ in given])
    parts = [g * (rows - table.weight[2:].mean(0)) for g, (rows, table) in zip(gradients, given, strict=True)]
    effects = sum(part.sum(-1) for part in parts)
    return (effects + by_counts if config.counts else effects).detach().numpy()


def count_shares(counts, ids, config):
    """Scores (n, teams) of the tokens' rows, and what each token weighs (n,)."""
    rows = counts.token(ids) + counts.bigram(bigram_rows(ids[None], config.counts)[0])
    often = torch.tensor([float((ids == number).sum()) for number in ids])
    return rows[:, :-1], 1 / (often * rows[:, -1].sum()).sqrt()


@pytest.mark.parametrize("length", [1, 2, 13, 30])
def test_effects_are_input_times_gradient_of_the_held_network(network, session, length):
    ids = torch.randint(1, CONFIG.vocab_size, (length,), generator=torch.Generator().manual_seed(length))
    contrast = torch.tensor([1.0, 0, -1, 0])
    expected = held(network, ids, contrast)
    (found,) = session.run(["effects"], {"input_ids": ids[None].numpy(), "contrast": contrast[None].numpy()})
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found[0], expected, atol=3e-6)


def test_each_ticket_of_a_batch_has_its_own_contrast_and_padding_has_no_effect(network, session):
    ids = np.zeros((2, 9), np.int64)
    ids[0] = np.arange(3, 12)
    ids[1, :4] = [7, 1, 9, 30]
    contrasts = np.array([[1, -1, 0, 0], [0, 0, -1, 1]], np.float32)
    (found,) = session.run(["effects"], {"input_ids": ids, "contrast": contrasts})
    for row, length in ((0, 9), (1, 4)):
        expected = held(network, torch.from_numpy(ids[row, :length]), torch.from_numpy(contrasts[row]))
        np.testing.assert_allclose(found[row, :length], expected, atol=3e-6)
        assert not found[row, length:].any()


def test_effects_are_empty_unless_requested(session):
    assert [node.name for node in session.get_inputs()] == ["input_ids"]
    (found,) = session.run(["effects"], {"input_ids": np.array([[4, 5]])})
    assert found.size == 0


def test_from_onnx_gives_the_same_logits_and_weights(network):
    again = from_onnx(to_onnx(network))
    ids = torch.randint(1, CONFIG.vocab_size, (3, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = network(ids, return_weights=True), again(ids, return_weights=True)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_from_onnx_refuses_other_graphs():
    from onnx import TensorProto, helper

    node = helper.make_node("Identity", ["input_ids"], ["logits"])
    info = helper.make_tensor_value_info
    one, two = info("input_ids", TensorProto.INT64, [1]), info("logits", TensorProto.INT64, [1])
    other = helper.make_model(helper.make_graph([node], "other", [one], [two]))
    with pytest.raises(ValueError, match="was not written by training"):
        from_onnx(other.SerializeToString())
