"""Formula, operator, CUDA source and exported graph agree on a trained network's attention weights."""

import copy
import itertools
import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from kernels import attention, emulator, formula, launch
from models.bundle import load_bundle
from models.text import join
from training.export.from_onnx import from_onnx

TOLERANCE = 1e-6
TRACED, OTHERS, EMULATED = "T-65052", 100, 6


@pytest.fixture(scope="module")
def bundle(shipped_bundle):
    return load_bundle(shipped_bundle)


@pytest.fixture(scope="module")
def network(shipped_bundle):
    return from_onnx(shipped_bundle / "model.onnx")


@pytest.fixture(scope="module")
def tickets(larkfield):
    """The ids of T-65052, then of 100 other validation tickets."""
    rows = sorted(larkfield["valid"], key=lambda row: row["ticket_id"] != TRACED)[: OTHERS + 1]
    assert rows[0]["ticket_id"] == TRACED
    return [join(None, row["text"]).text for row in rows]


def opened(model):
    """A session of the graph that also gives each block's queries, keys and what is added to the scores."""
    graph = model.graph
    made_by = {output: node for node in graph.node for output in node.output}
    names = []
    for number in itertools.count():
        softmax = made_by.get(f"attention_{number}")
        if softmax is None:
            break
        scores = made_by[softmax.input[0]]
        added = []
        while scores.op_type == "Add":
            product, term = scores.input
            added.append(term)
            scores = made_by[product]
        assert scores.op_type == "MatMul"
        names.append((*scores.input, *added))
    known = {output.name for output in graph.output}
    wanted = dict.fromkeys(name for block in names for name in block if name not in known)
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options), names


def by_block(session, names, ids):
    """[(q, k, mask, weights)] as the graph made them; q, k (1, heads, n, d_k), weights (1, heads, n, n)."""
    flat = [name for block in names for name in block]
    feed = {"input_ids": np.array([ids]), "with_attention": np.array(True)}
    attention_weights, *values = session.run(["attention", *flat], feed)
    found = dict(zip(flat, map(torch.from_numpy, values), strict=True))
    blocks = []
    for number, (q, k, *added) in enumerate(names):
        # the graph's queries carry the scale; the graph's keys are transposed
        unscaled = found[q] * math.sqrt(found[q].shape[-1])
        mask = sum((found[name] for name in added), torch.zeros(()))
        blocks.append((unscaled, found[k].mT, mask, torch.from_numpy(attention_weights[:, number])))
    return blocks


def largest(one, other):
    assert one.shape == other.shape
    return (one - other).abs().max().item()


@pytest.fixture(scope="module")
def blocks_of(shipped_bundle):
    session, names = opened(onnx.load(shipped_bundle / "model.onnx"))
    assert len(names) == 2
    return lambda ids: by_block(session, names, ids)


def allowed(q: torch.Tensor, k: torch.Tensor) -> float:
    """How far two weights may be apart: a score of size s is rounded by s / 2^24, and so is its weight."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return max(TOLERANCE, 2 * float(scores.abs().max()) * 2**-24)


def test_formula_operator_and_graph_agree_on_real_tickets(bundle, blocks_of, tickets):
    """The same queries and keys give the same weights, in both blocks."""
    for text in tickets:
        for q, k, mask, in_graph in blocks_of(bundle.tokenizer.encode(text).ids):
            v = torch.zeros(*k.shape[:-1], 1)
            _, as_it_reads = formula.attention(q, k, v, mask)
            _, by_operator = attention(q, k, v, mask=mask, return_weights=True)
            worst = max(
                largest(as_it_reads, in_graph),
                largest(by_operator, in_graph),
                largest(as_it_reads, by_operator),
            )
            assert worst <= allowed(q, k)


def test_the_cuda_source_agrees_with_the_graph(bundle, blocks_of, tickets):
    if emulator.compiler() is None:
        pytest.skip("no C++ compiler here to build the emulator with")
    for text in tickets[:EMULATED]:
        for q, k, mask, in_graph in blocks_of(bundle.tokenizer.encode(text).ids):
            with emulator.Emulator() as device:
                _, _, weights = launch.forward(device, q, k, k.contiguous(), mask, None, False, True)
                assert largest(weights.clone(), in_graph) <= allowed(q, k)


def test_the_whole_network_in_torch_agrees_with_the_graph(bundle, network, tickets):
    """From ids to weights, rounding of everything before adds up: float32 itself is that far from float64."""
    exact = copy.deepcopy(network).double()
    for text in tickets:
        ids = torch.tensor([bundle.tokenizer.encode(text).ids])
        feed = {"input_ids": ids.numpy(), "with_attention": np.array(True)}
        in_graph = torch.from_numpy(bundle.session.run(["attention"], feed)[0])
        with torch.no_grad():
            in_torch, true = (each(ids, return_weights=True)[1] for each in (network, exact))
        rounding = largest(in_torch.double(), true)
        assert largest(in_graph.double(), true) <= max(TOLERANCE, 3 * rounding)
