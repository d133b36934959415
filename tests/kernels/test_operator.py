"""`kernels.attention` as a PyTorch operator: right on the CPU, differentiable, compiled, exported."""

import itertools
import math
import pathlib
import random
import warnings

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from kernels import attention, cases, emulated, emulator, formula, launch, launches, rounding
from kernels.attention import DECOMPOSITIONS
from kernels.cases import Case

OPERATOR = torch.ops.larkfield.attention.default
SEED = random.SystemRandom().randrange(2**31)
MASKS = ["none", "keys", "queries", "heads", "full", "rows hidden"]


def drawn(case: Case, seed: int = SEED) -> cases.Inputs:
    inputs = cases.draw(case, seed)
    for x in (inputs.q, inputs.k, inputs.v):
        x.requires_grad_()
    return inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d_v", [16, 8])
@pytest.mark.parametrize("mask", MASKS)
def test_results_and_gradients_are_the_formulas(dtype: torch.dtype, d_v: int, mask: str) -> None:
    """For both ways through the CPU: PyTorch's fused function, and the formula (weights, d_v != d_k)."""
    for lengths, causal, weights in itertools.product(("none", "with 0"), (False, True), (False, True)):
        case = Case(dtype, 16, d_v, 12, 9, mask, lengths, causal, weights=weights, layout="heads last")
        x = drawn(case)
        options = {"mask": x.mask, "key_lengths": x.key_lengths, "causal": causal, "return_weights": weights}
        got = attention(x.q, x.k, x.v, **options)
        out, p = got if weights else (got, None)
        loss = (out * x.out_grad).sum() + (0 if p is None else (p * x.weights_grad).sum())
        loss.backward()
        results = {"out": out, "q_grad": x.q.grad, "k_grad": x.k.grad, "v_grad": x.v.grad}
        if p is not None:
            results["weights"] = p
        found = rounding.judge({name: y.detach() for name, y in results.items()}, x, causal)
        assert max(error.share for error in found.values()) < 1, f"{case}, seed {SEED}: {found}"


@pytest.mark.parametrize("d_v", [8, 16])
@pytest.mark.parametrize("mask", ["none", "heads", "full"])
def test_opcheck(d_v: int, mask: str) -> None:
    for lengths, weights in itertools.product(("none", "with 0"), (False, True)):
        x = drawn(Case(d_k=8, d_v=d_v, n=5, m=7, mask=mask, lengths=lengths, weights=weights))
        torch.library.opcheck(OPERATOR, (x.q, x.k, x.v, x.mask, x.key_lengths, True, weights))


@pytest.mark.parametrize("d_v", [8, 16])
@pytest.mark.parametrize("weights", [False, True])
def test_gradcheck(d_v: int, weights: bool) -> None:
    x = drawn(Case(torch.float64, 8, d_v, 4, 5, "rows hidden", "with 0", weights=weights))
    options = {"mask": x.mask, "key_lengths": x.key_lengths, "return_weights": weights}
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, **options), (x.q, x.k, x.v))


@pytest.mark.parametrize("used", ["output", "weights"])
def test_only_one_of_output_and_weights_is_used(used: str) -> None:
    x = drawn(Case(torch.float64, 8, 8, 4, 5, "rows hidden", "with 0"))
    options = {"mask": x.mask, "key_lengths": x.key_lengths, "return_weights": True}
    part = 0 if used == "output" else 1
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, **options)[part], (x.q, x.k, x.v))


needs_emulator = pytest.mark.skipif(
    emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)"
)


@needs_emulator
@pytest.mark.parametrize("sizes", [(8, 8), (16, 32)])
def test_gradcheck_of_the_kernel(sizes: tuple[int, int]) -> None:
    x = drawn(Case(torch.float64, *sizes, 4, 5, "rows hidden", "with 0"))
    options = {"mask": x.mask, "key_lengths": x.key_lengths, "return_weights": True}
    with emulated("random"):
        assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, **options), (x.q, x.k, x.v))


@needs_emulator
class TestEmulated:
    """`with emulated():` the operator runs attention.cu on the CPU."""

    @pytest.mark.parametrize("weights", [False, True])
    def test_every_launch_is_counted_and_no_result_comes_from_pytorch(self, weights: bool) -> None:
        q, k, v, lengths = (*(x.requires_grad_() for x in example()[:3]), example()[3])
        wanted = attention(q, k, v, key_lengths=lengths)
        before = launches()
        with emulated():
            got = attention(q, k, v, key_lengths=lengths, return_weights=weights)
            got = got[0] if weights else got
        middle = launches()
        gradients = torch.autograd.grad(got.square().sum(), (q, k, v))  # after the end of `with`
        after = launches()

        def count(of: dict[str, int], word: str) -> int:
            return sum(times for kernel, times in of.items() if word in kernel)

        assert count(middle, "forward") == count(before, "forward") + 1
        assert count(middle, "backward") == count(before, "backward")
        assert count(after, "backward") > count(middle, "backward")
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(gradients, torch.autograd.grad(wanted.square().sum(), (q, k, v)))
        assert launches() == after  # outside, attention is PyTorch's

    def test_a_broken_kernel_shows(self, tmp_path: pathlib.Path) -> None:
        q, k, v, _ = example()
        broken = tmp_path / "broken.cu"
        source = emulator.KERNEL_SOURCE.read_text(encoding="utf-8")
        scaled = (
            "load_part<D_K, LANES>(q[r], p.q.at(at.batch, at.head, at.row(r)), at.lane, A(p.scale * LOG2_E))"
        )
        assert scaled in source
        broken.write_text(source.replace(scaled, scaled.replace("p.scale * ", "")), encoding="utf-8")
        with emulated(source=broken):
            got = attention(q, k, v)
        assert not torch.allclose(got, attention(q, k, v), atol=1e-3)

    def test_opcheck(self) -> None:
        x = drawn(Case(d_k=8, d_v=16, n=5, m=7, mask="heads", lengths="with 0"))
        with emulated():
            torch.library.opcheck(OPERATOR, (x.q, x.k, x.v, x.mask, x.key_lengths, True, True))


@needs_emulator
@pytest.mark.parametrize("weights", [False, True])
def test_tracing_for_a_gpu_expects_what_the_launcher_returns(weights: bool) -> None:
    x = cases.draw(Case(torch.bfloat16, 8, 16, 5, 7), SEED)
    with emulator.Emulator() as device:
        got = [y.clone() for y in launch.forward(device, x.q, x.k, x.v, None, None, True, weights)]
    with FakeTensorMode():
        q, k, v = (torch.empty(y.shape, dtype=y.dtype, device="cuda") for y in (x.q, x.k, x.v))
        expected = torch.ops.larkfield.attention(q, k, v, None, None, True, weights)
    assert [(y.shape, y.dtype) for y in expected] == [(y.shape, y.dtype) for y in got]
    assert expected[0].stride() == q.new_empty(2, 5, 2, 16).transpose(1, 2).stride()


class TwoWays(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_lengths: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = attention(q, k, v, key_lengths=key_lengths, return_weights=True)
        return out + attention(q, k, v, key_lengths=key_lengths, causal=True), weights


def example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, length, 8, generator=g) for length in (5, 7, 7))
    return q, k, v, torch.tensor([3, 7])


def test_compile_without_a_graph_break() -> None:
    q, k, v, lengths = (*(x.requires_grad_() for x in example()[:3]), example()[3])
    compiled = torch.compile(TwoWays(), fullgraph=True, backend="aot_eager")
    (wanted, _), (got, _) = TwoWays()(q, k, v, lengths), compiled(q, k, v, lengths)
    torch.testing.assert_close(got, wanted)
    gradients = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (wanted, got)]
    torch.testing.assert_close(*gradients)


def test_export_keeps_the_operator_and_can_take_it_apart() -> None:
    arguments = example()
    batch = torch.export.Dim("batch")
    program = torch.export.export(TwoWays(), arguments, dynamic_shapes=[{0: batch}] * 4)
    assert "larkfield.attention" in str(program.graph)
    plain = program.run_decompositions({**torch.export.default_decompositions(), **DECOMPOSITIONS})
    assert "larkfield" not in str(plain.graph)
    for made in (program, plain):
        torch.testing.assert_close(made.module()(*arguments), TwoWays()(*arguments))


def test_onnx_has_standard_operators_only(tmp_path) -> None:
    arguments = example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about itself
        program = torch.onnx.export(
            TwoWays(),
            arguments,
            dynamo=True,
            verbose=False,
            dynamic_shapes=[{0: "batch", 2: "n"}, {0: "batch", 2: "m"}, {0: "batch", 2: "m"}, {0: "batch"}],
        )
    assert program is not None
    program.save(tmp_path / "attention.onnx")
    assert {node.domain for node in program.model_proto.graph.node} <= {"", "ai.onnx"}
    assert not program.model_proto.functions
    session = onnxruntime.InferenceSession(tmp_path / "attention.onnx", providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    g = torch.Generator().manual_seed(4)
    other = *(torch.randn(3, 3, length, 8, generator=g) for length in (6, 4, 4)), torch.tensor([4, 0, 2])
    for feed in (arguments, other):
        got = session.run(None, {name: x.numpy() for name, x in zip(names, feed, strict=True)})
        for one, wanted in zip(got, TwoWays()(*feed), strict=True):
            torch.testing.assert_close(torch.from_numpy(one), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_pytorchs_own_function(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (x.to(dtype) for x in example()[:3])
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(attention(q, k, v, causal=causal), wanted)


def test_leading_dimensions() -> None:
    """(heads, n, d), (batch, heads, n, d) and more axes of batch."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 3, 4, length, 8, generator=g) for length in (5, 7, 7))
    mask = torch.randn(2, 3, 1, 5, 7, generator=g)
    lengths = torch.tensor([[7, 3, 0], [1, 2, 7]])
    out, weights = attention(q, k, v, mask=mask, key_lengths=lengths, return_weights=True)
    assert out.shape == (2, 3, 4, 5, 8)
    assert weights.shape == (2, 3, 4, 5, 7)
    for i, j in itertools.product(range(2), range(3)):
        one = attention(
            *(q[i, j], k[i, j], v[i, j]), mask=mask[i, j], key_lengths=lengths[i, j], return_weights=True
        )
        torch.testing.assert_close(one, (out[i, j], weights[i, j]))


def test_the_output_lies_ready_for_merging_the_heads() -> None:
    q, k, v, _ = example()
    for options in ({}, {"return_weights": True}):
        out = attention(q, k, v, **options)
        out = out[0] if options else out
        assert out.transpose(1, 2).is_contiguous()


def test_a_boolean_mask_is_refused_with_the_reason() -> None:
    q, k, v, _ = example()
    with pytest.raises(
        TypeError, match=r"nn\.MultiheadAttention \(True = may not read\).*masked_fill"
    ) as error:
        attention(q, k, v, mask=torch.ones(5, 7, dtype=torch.bool))
    assert "scaled_dot_product_attention" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 3, 7, 16)}, "same size d_k"),
        ({"v": torch.zeros(2, 3, 6, 8)}, "one value for each key"),
        ({"k": torch.zeros(2, 1, 7, 8)}, "batch and heads"),
        ({"q": torch.zeros(5, 8)}, "expected .*heads, n, d_k"),
        ({"v": torch.zeros(2, 3, 7, 8, dtype=torch.float64)}, "one float type"),
        ({"mask": torch.zeros(5, 6)}, "does not broadcast"),
        ({"mask": torch.zeros(5, 7, requires_grad=True)}, "mask.detach"),
        ({"key_lengths": torch.tensor([1, 2, 3])}, "one for each of"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], message: str) -> None:
    q, k, v, _ = example()
    with pytest.raises(ValueError, match=message):
        attention(**({"q": q, "k": k, "v": v} | change))


def test_key_lengths_must_be_whole_numbers() -> None:
    q, k, v, lengths = example()
    with pytest.raises(TypeError, match="whole numbers"):
        attention(q, k, v, key_lengths=lengths.double())


def test_a_mask_of_pytorchs_own_layers_means_the_same() -> None:
    """A float mask of 0 and -inf: the one meaning that every PyTorch function agrees on."""
    q, k, v, _ = example()
    mask = torch.zeros(5, 7).masked_fill(torch.ones(5, 7).triu(2).bool(), -math.inf)
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attention(q, k, v, mask=mask), wanted)
    torch.testing.assert_close(formula.attention(q, k, v, mask)[0], wanted)
