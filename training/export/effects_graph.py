"""The `effects` output of the exported graph: each token's contribution to the difference between teams.

With the attention weights, the standard deviations of the layer norms and the active ReLUs of a ticket held
fixed, the network is linear in its token embeddings. The logits then split exactly into one effect per token
and a rest that is independent of the tokens (biases, positions, the average embedding). A token's effect
includes that of its pair with the left neighbour, and its score in the word counts:

    contrast · logits = sum of effects + rest

The effects are one backward pass through the linear network, which costs about as much as the forward pass
(Ali et al. 2022, "XAI for Transformers: Better Explanations through Conservative Propagation").
`python -m service.tools.faithfulness` compares them with leave-one-out and other methods.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from training.export.graph_builder import GraphBuilder

# The reference is the average embedding of all tokens but padding and the unknown token.
FIRST_WORD_ID = 2
END = np.iinfo(np.int64).max  # of a Slice


class BlockActivations(NamedTuple):
    """Names of values in a block: ReLU output (batch * n, feed_forward), attention (batch, heads, n, n)."""

    relu: str
    attention: str


def effects_on_request(graph: GraphBuilder, blocks: list[BlockActivations], teams: int) -> None:
    """Add `effects` (batch, n) in an If that runs only if `contrast` (1 or batch, teams) is given.

    Without it, `contrast` is empty, the branch does not run and `effects` has size 0. Padding has effect 0.
    """
    graph.constant("contrast", np.zeros((0, teams)))
    average = graph.initializers["token"][FIRST_WORD_ID:].mean(axis=0, dtype=np.float32)
    counts = "counts.bias" in graph.initializers
    d = int(graph.initializers["by_head"].prod())
    wide = len(average) - d
    graph.constant("mean_token", average[:d])
    if wide:
        graph.constant("wide_mean_token", average[d:])
    asked = graph.op("Cast", graph.op("Size", "contrast"), to=TensorProto.BOOL)
    yes, no = type(graph)("effects_"), type(graph)()
    _walk_back(yes, blocks, wide, counts)
    nothing = numpy_helper.from_array(np.zeros((0, 0), np.float32))
    no.op("Constant", value=nothing, name="no_effects")

    def branch(builder: GraphBuilder, output: str) -> GraphProto:
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * 2)
        return helper.make_graph(builder.nodes, output, [], [info])

    graph.op(
        "If",
        asked,
        name="effects",
        then_branch=branch(yes, "asked_effects"),
        else_branch=branch(no, "no_effects"),
    )


def _walk_back(back: GraphBuilder, blocks: list[BlockActivations], wide: int, counts: bool) -> None:
    # gradient of contrast · logits by the normed mean (batch, 1, d), then by each token (batch * n, d)
    last_axis, middle_axis = _axis(back, -1), _axis(back, 1)
    by_pooled = back.op("Gemm", "contrast", "head.weight", transB=1)
    deep = (
        back.op("Slice", by_pooled, _axis(back, 0), _axis(back, -wide), _axis(back, 1)) if wide else by_pooled
    )
    by_mean = back.op("Unsqueeze", deep, middle_axis)
    by_token = back.op("Mul", back.op("Transpose", "token_shares", perm=[0, 2, 1]), by_mean)
    g = _norm_back(back, "norm", back.op("Reshape", by_token, "flat"), last_axis)
    for number, passed in reversed(list(enumerate(blocks))):
        prefix = f"blocks.{number}"
        inner = back.op("Gemm", g, f"{prefix}.down.weight", transB=1)
        active = back.op("Cast", passed.relu, to=TensorProto.BOOL)
        inner = back.op("Where", active, inner, "visible")  # ReLU; "visible" is the constant 0
        inner = back.op("Gemm", inner, f"{prefix}.up.weight", transB=1)
        g = back.op("Add", g, _norm_back(back, f"{prefix}.norm_2", inner, last_axis))
        read = _attention_back(back, f"{prefix}.attention", passed.attention, g)
        g = back.op("Add", g, _norm_back(back, f"{prefix}.norm_1", read, last_axis))
    g = back.op("Reshape", g, "batch_tokens_d")
    shares = back.op(
        "ReduceSum", back.op("Mul", g, back.op("Sub", "token_rows", "mean_token")), last_axis, keepdims=0
    )
    if wide:
        by_wide = back.op("Slice", by_pooled, _axis(back, -wide), _axis(back, END), _axis(back, 1))
        shares = back.op("Add", shares, _wide_back(back, by_wide, last_axis, middle_axis))
    shares = back.op("Mul", shares, "counted")
    if counts:
        shares = back.op("Add", shares, _counts_back(back))
    back.op("Identity", shares, name="asked_effects")


def _counts_back(back: GraphBuilder) -> str:
    """The effects (batch, n) of the word counts: each token's share times its row's contrast."""
    by_row = back.op("MatMul", "count_rows", back.op("Unsqueeze", "contrast", _axis(back, 2)))
    return back.op(
        "Mul", back.op("Squeeze", by_row, _axis(back, 2)), back.op("Squeeze", "count_shares", "one")
    )


def _wide_back(back: GraphBuilder, by_wide: str, last_axis: str, middle_axis: str) -> str:
    """The effects (batch, n) of the wide embeddings, with the gate's weights and the norm held fixed."""
    by_mean = back.op("Unsqueeze", _norm_back(back, "wide.norm", by_wide, last_axis), middle_axis)
    by_token = back.op("Mul", back.op("Transpose", "wide_shares", perm=[0, 2, 1]), by_mean)
    brought = back.op("Sub", "wide_rows", "wide_mean_token")
    return back.op("ReduceSum", back.op("Mul", by_token, brought), last_axis, keepdims=0)


def _norm_back(back: GraphBuilder, name: str, g: str, last_axis: str) -> str:
    """Backward through a layer norm with a fixed standard deviation: (g · scale - its mean) / deviation."""
    scaled = back.op("Mul", g, f"{name}.scale")
    centred = back.op("Sub", scaled, back.op("ReduceMean", scaled, last_axis))
    return back.op("Mul", centred, f"{name}.per_deviation")


def _attention_back(back: GraphBuilder, prefix: str, attention: str, g: str) -> str:
    """Backward through W_O, the fixed attention weights and W_V; queries and keys have no effect."""
    g = back.op("Reshape", back.op("Gemm", g, f"{prefix}.W_O.weight", transB=1), "split_heads")
    g = back.op("Transpose", g, perm=[0, 2, 1, 3])  # (batch, heads, n, d_k)
    read_by = back.op("Transpose", attention, perm=[0, 1, 3, 2])
    g = back.op("Transpose", back.op("MatMul", read_by, g), perm=[0, 2, 1, 3])
    return back.op("Gemm", back.op("Reshape", g, "flat"), f"{prefix}.W_V.weight", transB=1)


def _axis(back: GraphBuilder, axis: int) -> str:
    return back.op("Constant", value=numpy_helper.from_array(np.array([axis], np.int64)))
