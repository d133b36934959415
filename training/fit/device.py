"""Where training computes: on the CPU, on a GPU, or on the CPU with attention.cu in PyTorch's place.

On a GPU every attention of every step runs attention.cu, forward and backward: `kernels.attention` knows no
other way there. "emulator" executes the same file on the CPU, thread by thread, thousands of times slower: it
shows on any machine that the kernel trains a router.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from kernels import emulated, emulator, launches
from training.fit import distributed

DeviceName = Literal["auto", "cpu", "cuda", "emulator"]
DEVICE_NAMES: tuple[str, ...] = get_args(DeviceName)


class DeviceError(ValueError):
    """A device that was asked for and is not there."""


@dataclass(frozen=True)
class Device:
    """`torch_device` holds the network and its batches; `emulates` runs attention.cu on the CPU."""

    torch_device: torch.device
    emulates: bool = False

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """Within this context, attention on this device is executed as the device says."""
        with emulated() if self.emulates else contextlib.nullcontext():
            yield

    def __str__(self) -> str:
        if self.emulates:
            return "CPU, attention.cu in the emulator"
        if self.torch_device.type == "cuda":
            return f"GPU {torch.cuda.get_device_name(self.torch_device)}, attention.cu"
        return "CPU"


CPU = Device(torch.device("cpu"))


def choose_device(name: str) -> Device:
    """The device of that name; "auto" takes a GPU where PyTorch finds one, else the CPU.

    Of several processes on one machine, each takes the GPU of its local rank. Raises DeviceError where the
    device is not there.
    """
    if name == "emulator":
        if emulator.compiler() is None:
            raise DeviceError(
                "--device emulator needs a C++ compiler (g++): install one, or use --device cpu"
            )
        return Device(torch.device("cpu"), emulates=True)
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        raise DeviceError("--device cuda: PyTorch finds no GPU here; use --device cpu or --device auto")
    device = torch.device("cuda", distributed.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return Device(device)


class LaunchCounter:
    """How often attention.cu was launched since this object was made."""

    def __init__(self) -> None:
        self._before = launches()

    def counts(self) -> tuple[int, int]:
        """Launches of forward kernels and of backward kernels."""
        since = {name: times - self._before.get(name, 0) for name, times in launches().items()}
        forward = sum(times for name, times in since.items() if "forward" in name)
        return forward, sum(since.values()) - forward

    def __str__(self) -> str:
        forward, backward = self.counts()
        return f"attention.cu was launched {forward:,} times forward and {backward:,} times backward"
