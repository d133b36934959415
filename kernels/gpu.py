"""attention.cu on a GPU: a `Device` for kernels.launch."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from kernels.compile import machine_code
from kernels.launch import Launch, Params, Variant


class LaunchError(RuntimeError):
    """The driver refused a launch."""


class Gpu:
    """Compiles a kernel when it is first needed; launches on torch's current stream, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def launch(self, launch: Launch, params: Params) -> None:
        from cuda.bindings import driver

        with torch.cuda.device(self.device):
            kernel = _kernel(launch.variant, architecture(self.device), launch.kernel)
            stream = torch.cuda.current_stream(self.device).cuda_stream
            _launch(driver, int(kernel.handle), stream, launch, params)


@functools.cache
def architecture(device: torch.device) -> str:
    """What the device's machine code is called, such as sm_90."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.cache
def _kernel(variant: Variant, architecture: str, name: str) -> Any:
    return _module(variant, architecture).get_kernel(name)


@functools.cache
def _module(variant: Variant, architecture: str) -> Any:
    code = machine_code(variant, architecture)
    from cuda.core import ObjectCode

    return ObjectCode.from_cubin(code, name="attention.cu")


def _launch(driver: Any, kernel: int, stream: int, launch: Launch, params: Params) -> None:
    # One parameter, passed by value: the driver copies the struct before it returns.
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(params))
    (error,) = driver.cuLaunchKernel(
        driver.CUfunction(kernel),
        *(launch.blocks, 1, 1),
        *(launch.threads, 1, 1),
        0,  # dynamic shared memory
        driver.CUstream(stream),
        ctypes.addressof(parameters),
        0,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{launch.kernel} with {launch.blocks} blocks of {launch.threads} threads: {error}")
