"""Integrated gradients add up, and gradient times input is exact where the network is linear."""

import numpy as np
import pytest
import torch

from models.network import Network, NetworkConfig
from training.export.gradients import integrated_gradients, midpoints


@pytest.fixture(scope="module", params=[{}, {"positions": "relative", "bigrams": 32, "wide": 8}])
def network(request):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "teams": 3, "max_tokens": 20, "d": 16, "heads": 2, "feed_forward": 32}
    network = Network(NetworkConfig(**sizes, **request.param)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            parameter.requires_grad_(False)
    return network


def test_integrated_gradients_add_up_to_the_difference_from_the_average_ticket(network):
    """Completeness, the axiom that names the method: the sum is f(ticket) - f(reference)."""
    ids, contrast = [5, 9, 3, 17, 8], np.array([1, -1, 0], np.float32)
    effects = integrated_gradients(network, midpoints(200), ids, contrast)
    at_ticket = network(torch.tensor([ids]))[0]
    reference = []

    def average(table, _, found):
        reference.append(table.weight[2:].mean(0))
        return reference[-1].expand_as(found)

    def none(table, _, found):
        return torch.zeros_like(found)

    hooks = []
    for name, table in network.named_modules():
        if name.endswith("token"):
            hooks.append(table.register_forward_hook(average))
        elif name.endswith("bigram"):
            hooks.append(table.register_forward_hook(none))
    at_reference = network(torch.tensor([ids]))[0]
    for hook in hooks:
        hook.remove()
    expected = ((at_ticket - at_reference) @ torch.from_numpy(contrast)).item()
    assert len(reference) >= 1
    assert effects.sum() == pytest.approx(expected, abs=0.01 * max(1, abs(expected)))


def test_the_network_is_left_as_it_was(network):
    ids = torch.tensor([[4, 7, 1]])
    before = network(ids)
    integrated_gradients(network, torch.ones(1), [4, 7, 1], np.array([1, 0, -1], np.float32))
    assert torch.equal(network(ids), before)
