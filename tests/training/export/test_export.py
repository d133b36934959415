"""The exported graph: parity with torch, padding, the switch, and what runs when only logits are fetched."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from models.bundle import load_bundle, quiet_options
from models.network import Network, NetworkConfig
from models.text import join
from models.tokenizer import Tokenizer, build_word_tokenizer
from training.assess.evaluation import answer
from training.data.batches import TokenIds, batches_by_length
from training.export.from_onnx import from_onnx
from training.export.onnx_graph import to_onnx

YES = np.array(True)


def network_of(**sizes) -> Network:
    """A network whose every parameter matters: biases and norms are not left at 0 and 1."""
    torch.manual_seed(0)
    network = Network(NetworkConfig(**{"vocab_size": 50, "teams": 5, **sizes})).eval()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return network


def session_of(network: Network, options=None) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        to_onnx(network), options or quiet_options(), providers=["CPUExecutionProvider"]
    )


def padded_batch(lengths: list[int], vocab_size: int = 50) -> np.ndarray:
    generator = np.random.default_rng(0)
    ids = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = generator.integers(1, vocab_size, length)
    return ids


def compare(network: Network, session, ids: np.ndarray) -> tuple[float, float]:
    """Largest difference of logits and of weights between torch and the graph."""
    with torch.no_grad():
        logits, weights = network(torch.from_numpy(ids), return_weights=True)
    got, got_weights = session.run(["logits", "attention"], {"input_ids": ids, "with_attention": YES})
    assert got_weights.shape == tuple(weights.shape)
    return abs(got - logits.numpy()).max(), abs(got_weights - weights.numpy()).max()


@pytest.mark.parametrize(
    "sizes", [{}, {"teams": 2}, {"teams": 150}, {"heads": 8, "blocks": 3, "d": 32, "feed_forward": 40}]
)
@pytest.mark.parametrize("lengths", [[1], [7], [120], [120, 64, 3, 1], [5] * 9])
def test_logits_and_weights_are_torchs(sizes, lengths):
    network = network_of(**sizes)
    logits, weights = compare(network, session_of(network), padded_batch(lengths))
    assert logits <= 1e-5
    assert weights <= 1e-5


def test_parity_on_all_validation_tickets(larkfield):
    """The graph and torch on real tickets, in the batches that serving would make."""
    texts = {split: [row["text"] for row in rows] for split, rows in larkfield.items()}
    tokenizer = Tokenizer(build_word_tokenizer(texts["train"]), 120)
    network = network_of(vocab_size=tokenizer.vocab_size)
    session = session_of(network)
    tokens = TokenIds.from_rows(encoding.ids for encoding in tokenizer.encode_batch(texts["valid"]))
    differences = [
        compare(network, session, tokens.padded(rows).numpy())
        for rows in batches_by_length(tokens.lengths, 32, np.random.default_rng(0))
    ]
    assert len(tokens) == 600
    assert np.max(differences) <= 1e-5


def test_padding_is_exactly_zero_and_rows_sum_to_one():
    ids = padded_batch([60, 31, 2, 1])
    (weights,) = session_of(network_of()).run(["attention"], {"input_ids": ids, "with_attention": YES})
    real = ids != 0
    assert (weights * ~real[:, None, None, None, :] == 0).all()
    assert (weights * ~real[:, None, None, :, None] == 0).all()
    sums = weights.sum(axis=-1)  # (batch, blocks, heads, n)
    np.testing.assert_allclose(sums, np.broadcast_to(real[:, None, None, :], sums.shape), atol=1e-6)


def test_padding_changes_no_logits():
    session, ids = session_of(network_of()), padded_batch([9])
    (alone,) = session.run(["logits"], {"input_ids": ids})
    (beside,) = session.run(["logits"], {"input_ids": np.pad(ids, ((0, 0), (0, 80)))})
    np.testing.assert_allclose(beside, alone, atol=1e-6)


def test_a_ticket_of_padding_alone_gives_numbers_as_torch_does():
    network, ids = network_of(), padded_batch([6, 3])
    ids[1] = 0
    logits, weights = compare(network, session_of(network), ids)
    assert max(logits, weights) <= 1e-5


def test_inputs_and_outputs_are_the_contracts():
    session = session_of(network_of())
    assert [(one.name, one.type, one.shape) for one in session.get_inputs()] == [
        ("input_ids", "tensor(int64)", ["batch", "tokens"])
    ]
    assert [one.name for one in session.get_outputs()][:2] == ["logits", "attention"]
    assert session.get_outputs()[0].shape == ["batch", 5]
    assert "with_attention" in [one.name for one in session.get_overridable_initializers()]


def test_left_out_the_switch_gives_no_attention_and_the_same_logits():
    session, ids = session_of(network_of()), padded_batch([12, 5])
    fetch = ["logits", "attention"]
    logits, nothing = session.run(fetch, {"input_ids": ids})
    asked, weights = session.run(fetch, {"input_ids": ids, "with_attention": YES})
    assert nothing.size == 0
    assert weights.shape == (2, 2, 4, 12, 12)
    np.testing.assert_array_equal(logits, asked)


def nodes_that_ran(folder: Path, feed: dict, fetch: list[str]) -> Counter:
    """Operators of the nodes that ran, from ONNX Runtime's profile of one call."""
    options = quiet_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = session_of(network_of(), options)
    session.run(fetch, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    return Counter(event["args"]["op_name"] for event in kernels)


def test_fetching_logits_alone_computes_no_attention_output(tmp_path):
    ids = padded_batch([12, 5])
    plain = nodes_that_ran(tmp_path, {"input_ids": ids}, ["logits"])
    asked = nodes_that_ran(tmp_path, {"input_ids": ids, "with_attention": YES}, ["logits", "attention"])
    # What the branch alone runs: the stacking, and the rows of padding; the weights are there already.
    extra = asked - plain
    assert extra["Softmax"] == 0
    assert extra["Concat"] == 1
    assert extra["Mul"] == 1
    assert extra["Mul"] == 1
    assert plain["Softmax"] == 2  # the two that the logits need
    assert plain["Mul"] == 0
    assert sum(plain.values()) <= 70


def test_only_standard_operators_and_no_external_data():
    model = onnx.load_model_from_string(to_onnx(network_of()))
    assert {node.domain for node in model.graph.node} == {""}
    assert [opset.domain for opset in model.opset_import] == [""]
    assert not any(tensor.external_data for tensor in model.graph.initializer)


def test_the_same_network_gives_the_same_bytes():
    assert to_onnx(network_of()) == to_onnx(network_of())


def test_the_shipped_graph_gives_what_its_network_gives_in_torch(larkfield, shipped_bundle):
    """All 600 validation tickets: weights within 1e-5, logits within 1e-6 of the largest."""
    bundle = load_bundle(shipped_bundle)
    network = from_onnx(shipped_bundle / "model.onnx")
    longest = bundle.config.window or bundle.config.max_tokens
    texts = [join(None, row["text"]).text for row in larkfield["valid"]]
    tokens = TokenIds.from_rows(one.ids[:longest] for one in bundle.tokenizer.encode_batch(texts))
    differences = [
        compare(network, bundle.session, tokens.padded(rows).numpy())
        for rows in batches_by_length(tokens.lengths, 32, np.random.default_rng(0))
    ]
    assert len(tokens) == 600
    scale = np.abs(answer(bundle, texts).logits).max()
    assert np.max([weights for _, weights in differences]) <= 1e-5
    # float32 resolves 6e-8 of the largest logit; each is a sum of some hundred numbers.
    assert np.max([logits for logits, _ in differences]) <= max(1e-5, 1e-6 * scale)


def test_rows_of_any_length_are_read():
    network = network_of(positions="relative", bigrams=7, wide=8)
    assert max(compare(network, session_of(network), padded_batch([600, 257, 256]))) <= 1e-5
