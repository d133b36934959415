"""Where a stage's work is done: on the GPU or, in a dry run, on the CPU with the emulator for the kernel."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels import emulated, launch
from kernels.emulator import Emulator
from kernels.gpu import Gpu, LaunchError

Results = tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Captured:
    """Work that `replay` does again, into the same `results`."""

    replay: Callable[[], None]
    results: Results


class Place(Protocol):
    dry: bool
    device: torch.device

    def kernels(self) -> contextlib.AbstractContextManager[launch.Device]:
        """A device for kernels.launch, whose outputs are NaN until a kernel writes them."""

    def attending(self) -> contextlib.AbstractContextManager[None]:
        """Within it, `kernels.attention` runs attention.cu for tensors that are here."""

    def capture(self, work: Callable[[], Results], first_runs: int = 3) -> Captured:
        """A CUDA graph of `work`, after `first_runs` without one, which load what it needs."""

    def milliseconds(self, replay: Callable[[], None], rounds: int) -> float:
        """The median time of a replay."""

    def finish(self) -> None:
        """Wait for what was launched."""


class PoisonedGpu(Gpu):
    """A GPU whose outputs are NaN until a kernel writes them."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return super().empty(shape, dtype).fill_(torch.nan)


class OnGpu:
    dry = False

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)

    @contextlib.contextmanager
    def kernels(self) -> Iterator[launch.Device]:
        yield PoisonedGpu(self.device)
        torch.cuda.synchronize()

    def attending(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def capture(self, work: Callable[[], Results], first_runs: int = 3) -> Captured:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # PyTorch asks for a stream other than the default one
            for _ in range(first_runs):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = work()
        return Captured(graph.replay, results)

    def milliseconds(self, replay: Callable[[], None], rounds: int) -> float:
        """By events around as many replays as take 2 ms."""
        replay()
        once = self._span(replay, 3) / 3
        repeats = max(1, min(200, round(2 / max(once, 1e-3))))
        return statistics.median(self._span(replay, repeats) / repeats for _ in range(rounds))

    def _span(self, replay: Callable[[], None], repeats: int) -> float:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(repeats):
            replay()
        after.record()
        after.synchronize()
        elapsed: float = before.elapsed_time(after)
        return elapsed

    def finish(self) -> None:
        torch.cuda.synchronize()


class InEmulator:
    dry = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def kernels(self) -> contextlib.AbstractContextManager[launch.Device]:
        return Emulator()

    def attending(self) -> contextlib.AbstractContextManager[None]:
        return emulated()

    def capture(self, work: Callable[[], Results], first_runs: int = 3) -> Captured:
        """Without a graph: a replay does the work once more, and copies what comes out."""
        results = tuple(x.clone() for x in work())

        def replay() -> None:
            for kept, new in zip(results, work(), strict=True):
                kept.copy_(new)

        return Captured(replay, results)

    def milliseconds(self, replay: Callable[[], None], rounds: int) -> float:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            replay()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    def finish(self) -> None:
        pass


def move(x: Tensor, to: torch.device) -> Tensor:
    """A copy with the same strides that begins as many bytes past a multiple of 64; NaN between its numbers.

    `x.to(device)` would make an aligned and contiguous tensor of a misaligned or strided one.
    """
    if not x.is_floating_point() or x.numel() == 0:
        return x.to(to, copy=True)
    offset = x.data_ptr() % 64 // x.element_size()
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    flat = torch.full((offset + span,), torch.nan, dtype=x.dtype, device=to)
    return flat.as_strided(x.shape, x.stride(), offset).copy_(x)


def refusal(place: Place, work: Callable[[], Any]) -> str | None:
    """The error of capturing `work`, which needs a kernel that is not loaded; None if there is none."""
    if place.dry:
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except LaunchError as error:
        return str(error)
    return None
