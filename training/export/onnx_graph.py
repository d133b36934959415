"""Exports the trained network as an ONNX graph, built node by node to avoid unnecessary operations.

The tokens of all tickets form one (batch * tokens, d) matrix, so that every projection is a single Gemm with
its bias. The scale 1/sqrt(d / heads) is part of the query weights. The mask is computed once, one row per
ticket. All operators are standard, so that the graph runs on every provider.

`attention` is in an If on the optional input `with_attention`. By default that is False, the branch does not
run and the output has size 0. `effects` (`training.export.effects_graph`) depends on `contrast` in the same
way.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.network import MAX_DISTANCE, MIN_SQUARED_NORM, PAIR_MULTIPLIER, Network
from training.export.effects_graph import BlockActivations, effects_on_request
from training.export.graph_builder import GraphBuilder

# Added to the scores of padding: exp gives exactly 0, and unlike -inf no NaN for a ticket of padding alone.
HIDDEN = np.float32(-1e9)
STORED_TOKENS = 256  # up to this many tokens, relative biases are sliced from a stored square matrix


def to_onnx(network: Network) -> bytes:
    """The network as a serialized ONNX model with the bundle's inputs and outputs."""
    config = network.config
    graph = GraphBuilder()
    weights = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    ints = {"zero": [0], "one": [1], "one_two": [1, 2], "last": [-1], "flat": [-1, config.d]}
    for name, value in {**ints, "by_head": [config.heads, config.d // config.heads]}.items():
        graph.constant(name, value, np.int64)

    real = graph.op("Cast", "input_ids", to=TensorProto.BOOL, name="real")  # (batch, n)
    x = _embed(graph, weights)  # (batch, n, d)
    shape = graph.op("Shape", x, name="batch_tokens_d")
    graph.op("Concat", graph.op("Shape", "input_ids"), "by_head", axis=0, name="split_heads")
    hidden, visible = graph.constant("hidden", HIDDEN), graph.constant("visible", 0)
    padding = graph.op("Where", real, visible, hidden)  # (batch, n)
    _mask(graph, network, graph.op("Unsqueeze", padding, "one_two"))

    x = graph.op("Reshape", x, "flat")  # (batch * n, d)
    blocks: list[BlockActivations] = []
    for number in range(config.blocks):
        x, passed = _block(graph, weights, number, x, config.d // config.heads)
        blocks.append(passed)
    normed = graph.op("Reshape", _norm(graph, weights, "norm", x), shape)
    _mean_and_head(graph, weights, real, padding, normed)
    _attention_on_request(graph, [passed.attention for passed in blocks])
    effects_on_request(graph, blocks, config.teams)

    batch_tokens = ["batch", "tokens"]
    input_ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, batch_tokens)
    switch = helper.make_tensor_value_info("with_attention", TensorProto.BOOL, [])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", config.teams])
    attention = helper.make_tensor_value_info("attention", TensorProto.FLOAT, [None] * 5)
    contrast = helper.make_tensor_value_info("contrast", TensorProto.FLOAT, ["contrasts", config.teams])
    effects = helper.make_tensor_value_info("effects", TensorProto.FLOAT, [None] * 2)
    return graph.model([input_ids, switch, contrast], [logits, attention, effects]).SerializeToString()


def _embed(graph: GraphBuilder, weights: dict[str, np.ndarray]) -> str:
    """The input of the first block (batch, n, d).

    `token_rows` is that input without positions, and `wide_rows` (batch, n, wide) the input of `Wide`. Both
    are columns of the same tables, so that each token is looked up once.
    """
    pairs = "bigram.weight" in weights
    columns = {"token_rows": _width(weights, "token")}
    if "wide.token.weight" in weights:
        columns["wide_rows"] = _width(weights, "wide.token")
    whole = "" if len(columns) > 1 else "token_rows"
    rows = _rows(graph, "token", weights, "input_ids", name="" if pairs else whole)
    if pairs:
        pair_rows = _pairs(graph, "pairs", len(weights["bigram.weight"]))
        rows = graph.op("Add", rows, _rows(graph, "bigram", weights, pair_rows), name=whole)
    if len(columns) > 1:
        graph.split(rows, graph.constant("columns", list(columns.values()), np.int64), list(columns))
    if "position.weight" not in weights:
        return "token_rows"
    tokens = graph.op("Shape", "input_ids", start=1)
    positions = graph.constant("position", weights["position.weight"])
    return graph.op("Add", "token_rows", graph.op("Slice", positions, "zero", tokens, "zero"))


def _width(weights: dict[str, np.ndarray], table: str) -> int:
    return int(weights[f"{table}.weight"].shape[1])


def _rows(
    graph: GraphBuilder, table: str, weights: dict[str, np.ndarray], ids: str, *, name: str = ""
) -> str:
    """Look up rows of an embedding table joined with the wide one, stored in float16 if that is exact."""
    tables = (f"{owner}{table}.weight" for owner in ("", "wide."))
    parts = [weights[name] for name in tables if name in weights]
    values = np.concatenate(parts, axis=1)
    halves = values.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), values):
        return graph.op("Gather", graph.constant(table, values), ids, name=name)
    # ONNX Runtime converts the table once, when it opens the graph; casting rows would cost time per ticket.
    whole = graph.op("Cast", graph.constant(table, halves, np.float16), to=TensorProto.FLOAT)
    return graph.op("Gather", whole, ids, name=name)


def _pairs(graph: GraphBuilder, name: str, rows: int) -> str:
    """`models.network.bigram_rows` (batch, n); `name` is the constant with the number of rows."""
    left = graph.op("Pad", "input_ids", graph.constant("shift_right", [0, 1, 0, -1], np.int64))
    left = graph.op("Mul", left, graph.constant("pair", PAIR_MULTIPLIER, np.int64))
    return graph.op("Mod", graph.op("Add", left, "input_ids"), graph.constant(name, rows, np.int64))


def _mask(graph: GraphBuilder, network: Network, padding: str) -> None:
    """`mask`, added to the scores in every block: the mask of padding (batch, 1, 1, n) and relative biases.

    The relative biases of up to STORED_TOKENS tokens are sliced from a stored matrix, others are computed.
    """
    if network.config.positions == "learned":
        graph.op("Identity", padding, name="mask")
        return
    ints = {
        "reach": MAX_DISTANCE,
        "nearest": -MAX_DISTANCE,
        "scalar_one": 1,
        "two": [2],
        "line": [0, -1],
        "laid": STORED_TOKENS,
    }
    for name, value in {**ints, "last_axis": [2], "starts": [0, 0], "heads": [network.config.heads]}.items():
        graph.constant(name, value, np.int64)
    graph.constant("distance", network.bias.numpy())
    graph.constant("laid_distance", network.relative(STORED_TOKENS).numpy())
    n = graph.op("Shape", "input_ids", start=1, name="tokens")  # (1,)
    count = graph.op("Squeeze", n, "zero", name="token_count")
    short, long = GraphBuilder("short_"), GraphBuilder("long_")
    short.op(
        "Slice", "laid_distance", "starts", short.op("Concat", n, n, axis=0), "one_two", name="away_short"
    )
    _lay_distances(long, n, count)
    branches = [
        helper.make_graph(
            one.nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * 3)]
        )
        for one, output in ((short, "away_short"), (long, "away_long"))
    ]
    fits = graph.op("LessOrEqual", count, "laid")
    away = graph.op("If", fits, then_branch=branches[0], else_branch=branches[1])  # (heads, reader, read)
    graph.op("Add", padding, away, name="mask")


def _lay_distances(graph: GraphBuilder, n: str, scalar: str) -> None:
    """`models.network.Network.relative` (heads, n, n) for any n, as `away_long`.

    The bias of query r and key t is line[t - r + n], so each row is the previous one shifted by one. The line
    of 2n numbers is therefore repeated n times and reshaped to rows of 2n - 1, of which the first n are used.
    """
    places = graph.op("Range", graph.op("Neg", scalar), scalar, "scalar_one")  # -n .. n - 1
    index = graph.op("Add", graph.op("Clip", places, "nearest", "reach"), "reach")
    line = graph.op("Unsqueeze", graph.op("Gather", "distance", index, axis=1), "one")  # (heads, 1, 2n)
    twice = graph.op("Mul", n, "two")
    less = graph.op("Sub", twice, "one")
    laid = graph.op("Expand", line, graph.op("Concat", "heads", n, twice, axis=0))
    laid = graph.op("Reshape", laid, "line")  # (heads, 2n * n)
    cut = graph.op("Slice", laid, n, graph.op("Add", n, graph.op("Mul", n, less)), "one")
    rows = graph.op("Reshape", cut, graph.op("Concat", "heads", n, less, axis=0))
    graph.op("Slice", rows, "zero", n, "last_axis", name="away_long")


def _norm(graph: GraphBuilder, weights: dict[str, np.ndarray], name: str, x: str) -> str:
    scale = graph.constant(f"{name}.scale", weights[f"{name}.weight"])
    shift = graph.constant(f"{name}.shift", weights[f"{name}.bias"])
    outputs = [f"{name}.out", "", f"{name}.per_deviation"]  # 1 / standard deviation, for `effects`
    node = helper.make_node(
        "LayerNormalization", [x, scale, shift], outputs, name=outputs[0], axis=-1, epsilon=1e-5
    )
    graph.nodes.append(node)
    return outputs[0]


def _linear(
    graph: GraphBuilder,
    weights: dict[str, np.ndarray],
    name: str,
    x: str,
    *,
    scale: float = 1.0,
    out: str = "",
) -> str:
    """x (rows, in) -> (rows, out); `scale` multiplies weights and bias."""
    weight = graph.constant(f"{name}.weight", weights[f"{name}.weight"].T * np.float32(scale))
    bias = graph.constant(f"{name}.bias", weights[f"{name}.bias"] * np.float32(scale))
    return graph.op("Gemm", x, weight, bias, name=out)


def _block(
    graph: GraphBuilder, weights: dict[str, np.ndarray], number: int, x: str, d_k: int
) -> tuple[str, BlockActivations]:
    """One pre-norm block on x (batch * n, d): its output, and the activations that `effects` needs."""
    prefix = f"blocks.{number}"
    normed = _norm(graph, weights, f"{prefix}.norm_1", x)

    def project(which: str, order: list[int], scale: float = 1.0) -> str:
        flat = _linear(graph, weights, f"{prefix}.attention.{which}", normed, scale=scale)
        return graph.op("Transpose", graph.op("Reshape", flat, "split_heads"), perm=order)

    q = project("W_Q", [0, 2, 1, 3], scale=1 / math.sqrt(d_k))  # (batch, heads, n, d_k)
    k = project("W_K", [0, 2, 3, 1])  # (batch, heads, d_k, n)
    v = project("W_V", [0, 2, 1, 3])
    scores = graph.op("Add", graph.op("MatMul", q, k), "mask")
    attention = graph.op("Softmax", scores, axis=-1, name=f"attention_{number}")
    read = graph.op("MatMul", attention, v)
    together = graph.op("Reshape", graph.op("Transpose", read, perm=[0, 2, 1, 3]), "flat")
    middle = graph.op("Add", x, _linear(graph, weights, f"{prefix}.attention.W_O", together))
    inner = graph.op(
        "Relu", _linear(graph, weights, f"{prefix}.up", _norm(graph, weights, f"{prefix}.norm_2", middle))
    )
    out = graph.op("Add", middle, _linear(graph, weights, f"{prefix}.down", inner))
    return out, BlockActivations(inner, attention)


def _mean_and_head(
    graph: GraphBuilder, weights: dict[str, np.ndarray], real: str, padding: str, x: str
) -> None:
    """Mean over real tokens as one product of shares (batch, 1, n) and x (batch, n, d), then the head."""
    counted = graph.op("Cast", real, to=TensorProto.FLOAT, name="counted")
    tokens = graph.op("ReduceSum", counted, "one", keepdims=1)
    at_least_one = graph.op("Max", tokens, graph.constant("one_token", 1))
    shares = graph.op("Unsqueeze", graph.op("Div", counted, at_least_one), "one", name="token_shares")
    pooled = graph.op("Squeeze", graph.op("MatMul", shares, x), "one")
    if "wide.gate.weight" in weights:
        pooled = graph.op("Concat", pooled, _wide(graph, weights, padding), axis=1)
    counts = "counts.bias" in weights
    _linear(graph, weights, "head", pooled, out="head_logits" if counts else "logits")
    if counts:
        graph.op("Add", "head_logits", _counts(graph, weights), name="logits")


def _counts(graph: GraphBuilder, weights: dict[str, np.ndarray]) -> str:
    """`models.network.WordCounts` (batch, teams); `count_shares` (batch, 1, n) are its token weights."""
    pair_rows = _pairs(graph, "count_pairs", len(weights["counts.bigram.weight"]))
    rows = _rows(graph, "counts.token", weights, "input_ids")
    rows = graph.op("Add", rows, _rows(graph, "counts.bigram", weights, pair_rows))
    columns = [_width(weights, "counts.token") - 1, 1]
    graph.split(rows, graph.constant("count_columns", columns, np.int64), ["count_rows", "count_squares"])
    same = graph.op(
        "Equal", graph.op("Unsqueeze", "input_ids", "one"), graph.op("Unsqueeze", "input_ids", "last")
    )
    repeats = graph.op("ReduceSum", graph.op("Cast", same, to=TensorProto.FLOAT), "last", keepdims=0)
    squares = graph.op("Mul", graph.op("Squeeze", "count_squares", "last"), "counted")
    length = graph.op(
        "Max",
        graph.op("ReduceSum", squares, "one", keepdims=1),
        graph.constant("min_squared_norm", MIN_SQUARED_NORM),
    )
    share = graph.op("Div", "counted", graph.op("Sqrt", graph.op("Mul", repeats, length)))
    share = graph.op("Unsqueeze", share, "one", name="count_shares")
    scores = graph.op("Squeeze", graph.op("MatMul", share, "count_rows"), "one")
    return graph.op("Add", scores, graph.constant("counts.bias", weights["counts.bias"]))


def _wide(graph: GraphBuilder, weights: dict[str, np.ndarray], padding: str) -> str:
    """`models.network.Wide` (batch, wide), from `wide_rows`; `wide_shares` (batch, 1, n)."""
    gate = graph.constant("wide.gate.weight", weights["wide.gate.weight"].T)
    score = graph.op(
        "Squeeze", graph.op("MatMul", "wide_rows", gate), "last"
    )  # the gate's bias moves none of them
    score = graph.op("Softmax", graph.op("Add", score, padding), axis=-1)
    shares = graph.op("Unsqueeze", score, "one", name="wide_shares")
    mean = graph.op("Squeeze", graph.op("MatMul", shares, "wide_rows"), "one", name="wide_mean")
    return _norm(graph, weights, "wide.norm", mean)


def _attention_on_request(graph: GraphBuilder, weights: list[str]) -> None:
    """`attention` (batch, blocks, heads, n, n), if `with_attention`; rows and columns of padding are 0."""
    yes = GraphBuilder()
    axis = yes.op("Constant", value=numpy_helper.from_array(np.array([1], dtype=np.int64)), name="block_axis")
    rows = yes.op(
        "Constant", value=numpy_helper.from_array(np.array([1, 2, 4], dtype=np.int64)), name="row_axes"
    )
    stacked = yes.op("Concat", *(yes.op("Unsqueeze", one, axis, name=f"{one}_5d") for one in weights), axis=1)
    yes.op("Mul", stacked, yes.op("Unsqueeze", "counted", rows, name="real_rows"), name="asked_attention")
    nothing = np.zeros((0, len(weights), 0, 0, 0), dtype=np.float32)
    no = GraphBuilder()
    no.op("Constant", value=numpy_helper.from_array(nothing), name="no_attention")

    def branch(builder: GraphBuilder, output: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * 5)
        return helper.make_graph(builder.nodes, output, [], [info])

    graph.constant("with_attention", False, np.bool_)
    graph.op(
        "If",
        "with_attention",
        name="attention",
        then_branch=branch(yes, "asked_attention"),
        else_branch=branch(no, "no_attention"),
    )
