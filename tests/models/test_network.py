"""The network against nn.TransformerEncoder with the same weights, and its sizes and padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.network import Network, NetworkConfig
from models.tokenizer import Tokenizer, build_word_tokenizer

SMALL = NetworkConfig(vocab_size=50, teams=5, max_tokens=40)


def tickets(lengths: tuple[int, ...], tokens: int, vocab_size: int = 50) -> torch.Tensor:
    ids = torch.randint(1, vocab_size, (len(lengths), tokens))
    return ids.masked_fill(torch.arange(tokens) >= torch.tensor(lengths)[:, None], 0)


def encoder_with_weights_of(network: Network) -> nn.TransformerEncoder:
    config = network.config
    layer = nn.TransformerEncoderLayer(
        config.d, config.heads, config.feed_forward, config.dropout, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, config.blocks, enable_nested_tensor=False).double()
    for theirs, ours in zip(encoder.layers, network.blocks, strict=True):
        inputs = (ours.attention.W_Q, ours.attention.W_K, ours.attention.W_V)
        theirs.self_attn.load_state_dict(
            {
                "in_proj_weight": torch.cat([linear.weight for linear in inputs]),
                "in_proj_bias": torch.cat([linear.bias for linear in inputs]),
                "out_proj.weight": ours.attention.W_O.weight,
                "out_proj.bias": ours.attention.W_O.bias,
            }
        )
        theirs.norm1.load_state_dict(ours.norm_1.state_dict())
        theirs.norm2.load_state_dict(ours.norm_2.state_dict())
        theirs.linear1.load_state_dict(ours.up.state_dict())
        theirs.linear2.load_state_dict(ours.down.state_dict())
    return encoder


def expected_logits(network: Network, encoder: nn.TransformerEncoder, ids: torch.Tensor) -> torch.Tensor:
    """The definition, with PyTorch's layers in place of ours."""
    is_padding = ids == 0
    x = network.token(ids) + network.position(torch.arange(ids.shape[1]))
    x = network.norm(encoder(x, src_key_padding_mask=is_padding))
    means = [row[~hidden].mean(dim=0) for row, hidden in zip(x, is_padding, strict=True)]
    return network.head(torch.stack(means))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    network = Network(SMALL).double()
    for parameter in network.parameters():  # biases and norms that a new network has at 0 and 1 matter too
        nn.init.normal_(parameter, std=0.2)
    return network


def test_agrees_with_pytorch(network: Network) -> None:
    ids = tickets((9, 4, 1), 9)
    network.eval()
    encoder = encoder_with_weights_of(network).eval()
    torch.testing.assert_close(network(ids), expected_logits(network, encoder, ids), atol=1e-12, rtol=1e-12)


def test_training_with_dropout_follows_pytorch(network: Network) -> None:
    """Logits and the gradient of every embedding: dropout of weights, of activations and of outputs.

    The same seed drops the same numbers, so dropout stands at the same places in the same order.
    """
    ids = tickets((9, 4, 1), 9)
    encoder = encoder_with_weights_of(network).train()
    for (
        layer
    ) in encoder.layers:  # its attention comes out transposed in memory, and dropout draws in that order
        layer.dropout1.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
    gradients = []
    for run in (lambda: network.train()(ids), lambda: expected_logits(network, encoder, ids)):
        torch.manual_seed(3)
        network.zero_grad()
        logits = run()
        logits.square().sum().backward()
        gradients.append((logits.detach(), network.token.weight.grad.clone()))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-12, rtol=1e-10)


def test_size_on_the_larkfield_tickets(larkfield: dict[str, list[dict[str, str]]]) -> None:
    texts = [row["text"] for row in larkfield["train"]]
    vocab_size = Tokenizer(build_word_tokenizer(texts), 120).vocab_size
    network = Network(NetworkConfig(vocab_size, teams=5))
    assert vocab_size == 2864
    assert sum(parameter.numel() for parameter in network.parameters()) == 291_397


def test_padding_changes_nothing(network: Network) -> None:
    """A ticket's logits and weights do not depend on how far it is padded, nor on its neighbours."""
    network.eval()
    ids = tickets((9, 4, 1), 9)
    logits, weights = network(ids, return_weights=True)
    for row, length in enumerate((9, 4, 1)):
        alone, alone_weights = network(ids[row : row + 1, :length], return_weights=True)
        torch.testing.assert_close(logits[row : row + 1], alone)
        torch.testing.assert_close(weights[row : row + 1, :, :, :length, :length], alone_weights)


def test_weights_sum_to_one_and_are_zero_where_there_is_padding(network: Network) -> None:
    ids = tickets((9, 4, 1), 9)
    _, weights = network.eval()(ids, return_weights=True)
    assert weights.shape == (3, 2, 4, 9, 9)
    real = ids != 0
    both_real = (real[:, :, None] & real[:, None, :])[:, None, None].expand_as(weights)
    assert (weights[~both_real] == 0).all()
    sums = weights.sum(dim=-1)
    torch.testing.assert_close(sums, real[:, None, None, :].expand_as(sums).to(sums.dtype))


def test_asking_for_weights_does_not_change_the_logits(network: Network) -> None:
    ids = tickets((9, 4, 1), 9)
    torch.testing.assert_close(network.eval()(ids), network(ids, return_weights=True)[0])


def test_a_ticket_of_padding_alone_is_scored_by_the_bias(network: Network) -> None:
    logits = network.eval()(tickets((0, 3), 3))
    assert torch.isfinite(logits).all()
    assert (logits[0] == network.head.bias).all()


def test_padding_gets_no_gradient(network: Network) -> None:
    network.train()(tickets((9, 4, 0), 9)).square().sum().backward()
    assert (network.token.weight.grad[0] == 0).all()
    assert torch.isfinite(network.token.weight.grad).all()
