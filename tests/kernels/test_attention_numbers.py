"""The lesson's worked example and measurements through the kernel (through the formula: tests/maths).

The kernel takes d_k of 8 and more: queries and keys of two numbers are padded with zeros, and the queries
multiplied by √(8 / 2) = 2, so that q·k / √d_k stays the same.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import emulator, launch

X = ((1, 0, 0, 1), (0, 1, 0, 0), (0, 0, 1, 0))  # damaged, on, arrival
W_Q = ((0.5, 0.5), (0, 0), (1, 0), (0, 1))
W_K = ((1, 0), (0, 0.5), (0, 2), (0, 0))
W_V = ((1, 0), (0, 0), (0, 1), (1, 0))
WEIGHTS = ((0.124, 0.148, 0.728), (0.333, 0.333, 0.333), (0.503, 0.248, 0.248))
OUTPUT = ((0.248, 0.728), (0.667, 0.333), (1.007, 0.248))
CAUSAL_WEIGHTS = ((1, 0, 0), (0.5, 0.5, 0), (0.503, 0.248, 0.248))
CAUSAL_OUTPUT = ((2, 0), (1, 0), (1.007, 0.248))
PADDED_WEIGHTS = ((0.456, 0.544, 0), (0.5, 0.5, 0), (0.67, 0.33, 0))

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")
DTYPES = [torch.float32, torch.float64]


def projected(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, *projections = (torch.tensor(rows, dtype=dtype) for rows in (X, W_Q, W_K, W_V))
    q, k, v = (x @ projection for projection in projections)
    return q, k, v


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    length: int | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and weights by the kernel, for one head: (n, d_k), (m, d_k), (m, d_v), d_k of 2 and more."""
    d_k, d_v = q.shape[-1], v.shape[-1]
    wider = max(8, d_k)
    q = functional.pad(q, (0, wider - d_k)) * math.sqrt(wider / d_k)
    k = functional.pad(k, (0, wider - d_k))
    v = functional.pad(v, (0, max(8, d_v) - d_v))
    key_lengths = None if length is None else torch.tensor([length], dtype=torch.int32)
    with emulator.Emulator("random") as device:
        placed = [device.place(name, x[None, None]) for name, x in zip("qkv", (q, k, v), strict=True)]
        out, _, weights = launch.forward(device, *placed, mask, key_lengths, causal, True)
        return out[0, 0, :, :d_v].clone(), weights[0, 0].clone()


def same(got: Tensor, wanted: object, digits: int = 3) -> None:
    """Equal to all digits given."""
    tensor = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(got.double(), tensor, rtol=0, atol=0.5001 * 10**-digits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestByHand:
    def test_weights_and_output(self, dtype: torch.dtype) -> None:
        out, weights = attend(*projected(dtype))
        same(weights, WEIGHTS)
        same(out, OUTPUT)

    def test_causal(self, dtype: torch.dtype) -> None:
        out, weights = attend(*projected(dtype), causal=True)
        same(weights, CAUSAL_WEIGHTS)
        same(out, CAUSAL_OUTPUT)
        assert (weights.triu(1) == 0).all()

    def test_third_key_is_padding(self, dtype: torch.dtype) -> None:
        _, weights = attend(*projected(dtype), length=2)
        same(weights, PADDED_WEIGHTS)
        assert (weights[:, 2] == 0).all()

    def test_hiding_with_zeros_leaks(self, dtype: torch.dtype) -> None:
        """What goes wrong if hidden scores become 0 instead of -inf: a mask that cancels the scores."""
        q, k, v = projected(dtype)
        scores = q @ k.T / math.sqrt(2)
        to_zero = torch.where(torch.ones(3, 3).triu(1).bool(), -scores, torch.zeros(3, 3, dtype=dtype))
        _, weights = attend(q, k, v, mask=to_zero)
        same(weights[0], (0.416, 0.292, 0.292))
        same(weights[0, 1:].sum(), 0.584)

    def test_four_times_larger_embeddings_saturate(self, dtype: torch.dtype) -> None:
        q, k, v = projected(dtype)
        _, weights = attend(4 * q, 4 * k, 4 * v)
        same(weights, ((0, 0, 1), (0.333, 0.333, 0.333), (1, 0, 0)))

    def test_a_row_of_scores(self, dtype: torch.dtype) -> None:
        """Scores (2, 1, .5) with the last key hidden, by -inf and, wrongly, by 0."""
        q = torch.tensor([[math.sqrt(2), 0]], dtype=dtype)
        k = torch.tensor([[2, 0], [1, 0], [0.5, 0]], dtype=dtype)
        v = torch.eye(3, 2, dtype=dtype)
        _, weights = attend(q, k, v, length=2)
        same(weights[0], (0.731, 0.269, 0))
        _, weights = attend(q, k, v, mask=torch.tensor([[0, 0, -0.5]], dtype=dtype))
        same(weights[0], (0.665, 0.245, 0.090))


KEY_SIZES = (4, 16, 64, 256, 1024)
LARGEST = {
    4: (0.335, 0.152),
    16: (0.637, 0.165),
    64: (0.822, 0.163),
    256: (0.903, 0.164),
    1024: (0.953, 0.164),
}
GRADIENT = {
    4: (0.2918, 0.2337),
    16: (0.2875, 0.2388),
    64: (0.1948, 0.2395),
    256: (0.1129, 0.2405),
    1024: (0.0570, 0.2403),
}


@pytest.fixture(scope="module")
def pairs() -> dict[int, tuple[Tensor, Tensor]]:
    """2,000 queries (2000, 1, d_k) with 32 keys each (2000, 32, d_k), drawn as the lesson draws them."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    drawn = {}
    for d_k in KEY_SIZES:
        normal(20_000, d_k), normal(20_000, d_k)  # the pairs whose variance the lesson measures
        drawn[d_k] = normal(2000, 1, d_k), normal(2000, 32, d_k)
    return drawn


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d_k", [4, 16, 64])  # the kernel takes d_k up to 128
def test_softmax_saturates_without_scaling(
    pairs: dict[int, tuple[Tensor, Tensor]], d_k: int, dtype: torch.dtype
) -> None:
    q, k = (x.to(dtype) for x in pairs[d_k])
    for factor, wanted in zip((math.sqrt(d_k), 1.0), LARGEST[d_k], strict=True):
        wider = max(8, d_k)
        padded = functional.pad(q * factor, (0, wider - d_k)) * math.sqrt(wider / d_k)
        with emulator.Emulator() as device:
            _, _, weights = launch.forward(
                *(device, padded[:, None], functional.pad(k, (0, wider - d_k))[:, None]),
                *(torch.zeros(2000, 1, 32, 8, dtype=dtype), None, None, False, True),
            )
            assert round(float(weights.amax(-1).mean()), 3) == wanted


@pytest.fixture(scope="module")
def drawn_scores() -> dict[int, Tensor]:
    """Scores (2000, 1, 32) of 2,000 queries with 32 keys each, drawn as the lesson draws them."""
    g = torch.Generator().manual_seed(1)
    scores = {}
    for d_k in KEY_SIZES:
        queries = torch.randn(2000, 1, d_k, dtype=torch.float64, generator=g)
        scores[d_k] = queries @ torch.randn(2000, 32, d_k, dtype=torch.float64, generator=g).mT
    return scores


@pytest.mark.parametrize(
    "d_k", [4, 1024, *(pytest.param(d_k, marks=pytest.mark.slow) for d_k in (16, 64, 256))]
)
def test_gradient_size_of_softmax(drawn_scores: dict[int, Tensor], d_k: int) -> None:
    """The Jacobian through the kernel's backward pass.

    With K the identity, q·k / √32 are any 32 scores; the gradient of weight i alone then gives row i of the
    Jacobian as dQ √32.
    """
    scores = drawn_scores[d_k]
    identity = torch.eye(32, dtype=torch.float64)
    for factor, wanted in zip((1.0, 1 / math.sqrt(d_k)), GRADIENT[d_k], strict=True):
        q = (scores * factor * math.sqrt(32)).expand(-1, 32, -1)[:, None]  # (2000, 1, 32, 32)
        k, v = identity.expand(2000, 1, 32, 32), torch.zeros(2000, 1, 32, 8, dtype=torch.float64)
        with emulator.Emulator() as device:
            out, log_sum_exp, weights = launch.forward(device, q, k, v, None, None, False, True)
            one_weight = identity.expand(2000, 1, 32, 32)
            q_grad, _, _ = launch.backward(
                *(device, torch.zeros_like(out), one_weight, q, k, v, out, log_sum_exp, weights),
                *(None, None, False),
            )
            jacobian = q_grad[:, 0] * math.sqrt(32)
            assert round(float(torch.linalg.matrix_norm(jacobian).mean()), 4) == wanted
