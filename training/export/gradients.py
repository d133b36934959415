"""Gradient attributions in torch, for `python -m service.tools.faithfulness` to compare with `effects`."""

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
    """Attributions by name; each maps the ids and contrast (teams,) of a ticket to effects (tokens,)."""
    network = from_onnx(bundle / "model.onnx")
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return {
        "gradient x input": partial(integrated_gradients, network, torch.ones(1)),
        "integrated gradients, 4 steps": partial(integrated_gradients, network, midpoints(4)),
        "integrated gradients, 20 steps": partial(integrated_gradients, network, midpoints(20)),
    }


def midpoints(steps: int) -> Tensor:
    """The midpoints of `steps` equal intervals from 0 to 1."""
    return (torch.arange(steps) + 0.5) / steps


def integrated_gradients(
    network: Network, shares: Tensor, ids: Sequence[int], contrast: np.ndarray
) -> np.ndarray:
    """The mean gradient along the line from the average embedding to the ticket's, times the line (tokens,).

    `shares` are the points on the line at which the gradient is taken; 1 alone is gradient times input.
    Source: Sundararajan, Taly and Yan (2017), "Axiomatic Attribution for Deep Networks".
    """
    with _interpolated(network, shares) as lookups:
        logits = network(torch.tensor([ids]).expand(len(shares), -1))
    difference = (logits @ torch.from_numpy(contrast).to(logits.dtype)).sum()
    gradients = torch.autograd.grad(difference, [point for point, _ in lookups])
    parts = [(g.mean(0) * line[0]).sum(-1) for g, (_, line) in zip(gradients, lookups, strict=True)]
    effects: np.ndarray = torch.stack(parts).sum(0).numpy()
    return effects


@contextmanager
def _interpolated(network: Network, shares: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """A context in which row s of a batch gets embeddings at shares[s] between their average and themselves.

    Yields a list of (interpolated embeddings, embeddings - average), one for each table that is looked up.
    """
    lookups: list[tuple[Tensor, Tensor]] = []

    def interpolate(reference: Tensor, _: Any, __: Any, found: Tensor) -> Tensor:
        line = found - reference
        point = (reference + shares[:, None, None] * line).requires_grad_()
        lookups.append((point, line))
        return point

    hooks = []
    for name, table in network.named_modules():
        if isinstance(table, nn.Embedding) and name != "position":
            # The reference of a pair's row is 0: without the pair there is no row.
            reference = torch.zeros(()) if name.endswith("bigram") else table.weight[FIRST_WORD_ID:].mean(0)
            hooks.append(table.register_forward_hook(partial(interpolate, reference)))
    try:
        yield lookups
    finally:
        for hook in hooks:
            hook.remove()
