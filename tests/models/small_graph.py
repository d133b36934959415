"""A small graph with the bundle's inputs and outputs, and invalid variants of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_graph(
    vocab_size: int, teams: int, *, input_name: str = "input_ids", attention: bool = True, **changes: Any
) -> bytes:
    """logits = sum of one row of numbers per token; attention = equal weights, behind `with_attention`."""
    table = np.random.default_rng(0).normal(size=(vocab_size, teams)).astype(np.float32)
    table = changes.get("table", table)
    input_type = changes.get("input_type", TensorProto.INT64)
    nodes = [
        helper.make_node("Gather", ["table", input_name], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], [changes.get("output_name", "logits")], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(input_name, input_type, changes.get("input_shape", ["batch", "tokens"]))
    ]
    outputs = [
        helper.make_tensor_value_info(
            changes.get("output_name", "logits"), TensorProto.FLOAT, ["batch", teams]
        )
    ]
    constants = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    if attention:
        nodes.append(_attention_branch(input_name))
        inputs.append(helper.make_tensor_value_info("with_attention", TensorProto.BOOL, []))
        constants.append(numpy_helper.from_array(np.array(False), "with_attention"))
        outputs.append(helper.make_tensor_value_info("attention", TensorProto.FLOAT, None))
    if extra := changes.get("extra_input"):
        inputs.append(helper.make_tensor_value_info(extra, TensorProto.FLOAT, [1]))
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model.SerializeToString()


def _attention_branch(input_name: str) -> onnx.NodeProto:
    def constant(name: str, value: np.ndarray) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )

    on = branch(
        "on",
        [
            helper.make_node("Shape", [input_name], ["sizes"]),
            constant("first", np.array([0])),
            constant("second", np.array([1])),
            constant("blocks", np.array([2])),
            constant("heads", np.array([4])),
            helper.make_node("Gather", ["sizes", "first"], ["batch"]),
            helper.make_node("Gather", ["sizes", "second"], ["tokens"]),
            helper.make_node("Concat", ["batch", "blocks", "heads", "tokens", "tokens"], ["shape"], axis=0),
            helper.make_node("ConstantOfShape", ["shape"], ["on"]),
        ],
    )
    off = branch("off", [constant("off", np.zeros((0,), np.float32))])
    return helper.make_node("If", ["with_attention"], ["attention"], then_branch=on, else_branch=off)
