"""Gradient explanations in torch, to compare with those that the service can make without it.

`candidates` is what `python -m service.tools.faithfulness` asks for: functions of one ticket's ids and
contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.network import Network
from training.export.effects_graph import FIRST_WORD_ID
from training.export.from_onnx import from_onnx

Attribution = Callable[[Sequence[int], np.ndarray], np.ndarray]


def candidates(bundle: Path) -> dict[str, Attribution]:
    """Attributions by name; each takes ids and contrast (teams,) and gives (tokens,)."""
    network = from_onnx(bundle / "model.onnx")
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return {
        "gradient x input": partial(integrated_gradients, network, torch.ones(1)),
        "integrated gradients, 4 steps": partial(integrated_gradients, network, middles(4)),
        "integrated gradients, 20 steps": partial(integrated_gradients, network, middles(20)),
    }


def middles(steps: int) -> Tensor:
    """The middle of each of `steps` stretches from 0 to 1."""
    return (torch.arange(steps) + 0.5) / steps


def integrated_gradients(
    network: Network, shares: Tensor, ids: Sequence[int], contrast: np.ndarray
) -> np.ndarray:
    """Mean gradient on the straight way from the average embedding to the ticket's, times that way (tokens,).

    `shares` says where on the way the gradient is taken; 1 alone is gradient times input.
    Source: Sundararajan, Taly and Yan (2017), "Axiomatic Attribution for Deep Networks".
    """
    with _on_the_way(network, shares) as met:
        logits = network(torch.tensor([ids]).expand(len(shares), -1))
    difference = (logits @ torch.from_numpy(contrast).to(logits.dtype)).sum()
    gradients = torch.autograd.grad(difference, [point for point, _ in met])
    parts = [(g.mean(0) * way[0]).sum(-1) for g, (_, way) in zip(gradients, met, strict=True)]
    effects: np.ndarray = torch.stack(parts).sum(0).numpy()
    return effects


@contextmanager
def _on_the_way(network: Network, shares: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While this lasts, embeddings that tokens bring are moved towards their average; row s of a batch is at
    shares[s]. Gives (where they are, the whole way) of each table that was looked up."""
    met: list[tuple[Tensor, Tensor]] = []

    def move(reference: Tensor, _: Any, __: Any, found: Tensor) -> Tensor:
        way = found - reference
        point = (reference + shares[:, None, None] * way).requires_grad_()
        met.append((point, way))
        return point

    hooks = []
    for name, table in network.named_modules():
        if isinstance(table, nn.Embedding) and name != "position":
            nothing = name.endswith("bigram")  # a pair has its own row or none
            reference = torch.zeros(()) if nothing else table.weight[FIRST_WORD_ID:].mean(0)
            hooks.append(table.register_forward_hook(partial(move, reference)))
    try:
        yield met
    finally:
        for hook in hooks:
            hook.remove()
