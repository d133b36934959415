"""Builds an ONNX graph node by node."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET, IR_VERSION = 18, 10


class GraphBuilder:
    """The nodes and initializers of a graph under construction; names are generated if not given."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.initializers[name] = np.array(value, dtype=dtype, order="C")
        return name

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        output = name or f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def split(self, value: str, sizes: str, outputs: list[str]) -> None:
        """Split the last axis into outputs of the given sizes."""
        self.nodes.append(helper.make_node("Split", [value, sizes], outputs, name=f"split_{value}", axis=-1))

    def model(self, inputs: list, outputs: list) -> onnx.ModelProto:
        stored = [numpy_helper.from_array(value, name) for name, value in self.initializers.items()]
        graph = helper.make_graph(self.nodes, "router", inputs, outputs, stored)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name=""
        )
        onnx.checker.check_model(model, full_check=True)
        return model
