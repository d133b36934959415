"""Converts a bundle's graph back to a torch network, to inspect, compare or fine-tune it."""

import math
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

from models.network import Network, NetworkConfig


def from_onnx(model: bytes | Path) -> Network:
    """The network that `to_onnx` exported, in evaluation mode; ValueError for any other graph."""
    graph = onnx.load_model_from_string(model if isinstance(model, bytes) else model.read_bytes()).graph
    stored = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer
    }
    try:
        network = Network(_config(stored))
        d_k = network.config.d // network.config.heads
        network.load_state_dict({name: _as_trained(name, stored, d_k) for name in network.state_dict()})
    except KeyError as missing:
        raise ValueError(
            f"the graph has no initializer {missing}: it was not written by training.export"
        ) from None
    return network.eval()


def _config(stored: dict[str, torch.Tensor]) -> NetworkConfig:
    vocab_size = len(stored["token"])
    d = int(stored["by_head"].prod())
    return NetworkConfig(
        vocab_size=vocab_size,
        teams=stored["head.bias"].shape[0],
        max_tokens=stored["position"].shape[0] if "position" in stored else NetworkConfig.max_tokens,
        positions="learned" if "position" in stored else "relative",
        bigrams=len(stored["bigram"]) if "bigram" in stored else 0,
        wide=stored["token"].shape[1] - d,
        counts=len(stored["counts.bigram"]) if "counts.bigram" in stored else 0,
        d=d,
        heads=int(stored["by_head"][0]),
        blocks=sum(name.endswith(".attention.W_Q.weight") for name in stored),
        feed_forward=stored["blocks.0.up.bias"].shape[0],
    )


def _as_trained(name: str, stored: dict[str, torch.Tensor], d_k: int) -> torch.Tensor:
    """A parameter as in training: without Gemm's transposition and the scale of the query weights."""
    owner, _, kind = name.rpartition(".")
    if owner == "position":
        return stored[owner]
    d = int(stored["by_head"].prod())
    if owner in ("token", "bigram"):
        return stored[owner][:, :d].float()
    if owner in ("wide.token", "wide.bigram"):
        return stored[owner.removeprefix("wide.")][:, d:].float()
    if owner in ("counts.token", "counts.bigram"):
        return stored[owner].float()
    if name == "wide.gate.bias":  # softmax cancels it, so it is not in the graph
        return torch.zeros(1)
    if owner.rpartition(".")[2].startswith("norm"):
        return stored[f"{owner}.{'scale' if kind == 'weight' else 'shift'}"]
    value = stored[name].T if kind == "weight" else stored[name]
    return value * math.sqrt(d_k) if owner.endswith(".W_Q") else value
