"""The device to train on: the CPU, a GPU, or the CPU with attention.cu emulated.

On a GPU all attention runs through attention.cu, forward and backward. "emulator" executes the same file on
the CPU, thread by thread, thousands of times slower; it demonstrates on any machine that the kernel can train
a router.
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
    """The requested device is not available."""


@dataclass(frozen=True)
class Device:
    """`torch_device` holds the network and its batches; if `emulates`, attention.cu is emulated."""

    torch_device: torch.device
    emulates: bool = False

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """A context in which attention runs through the emulator if this device emulates."""
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
    """The device with this name; "auto" is a GPU if PyTorch finds one, else the CPU.

    Of several processes on one machine, each uses the GPU of its local rank. Raises DeviceError if the device
    is not available.
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
    """Counts the launches of attention.cu since this object was created."""

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
