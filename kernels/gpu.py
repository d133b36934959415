"""attention.cu on a GPU: a `Device` for kernels.launch."""

import ctypes
import functools
import threading
from typing import Any

import torch
from torch import Tensor

from kernels import compile
from kernels.launch import Launch, Params, Variant, variants


class LaunchError(RuntimeError):
    """The driver refused a launch, or a kernel would have to be loaded while a CUDA graph is captured."""


class Gpu:
    """Compiles a kernel when it is first needed; launches on torch's current stream, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.multiprocessors = _multiprocessors(device)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def launch(self, launch: Launch, params: Params) -> None:
        from cuda.bindings import driver

        with torch.cuda.device(self.device):
            make_current(self.device)
            key = launch.variant, architecture(self.device), launch.kernel
            if key not in _loaded and torch.cuda.is_current_stream_capturing():
                raise LaunchError(
                    f"{launch.kernel} for {launch.variant} is not loaded yet, and loading it would break the "
                    "capture of this CUDA graph: before the capture, call kernels.gpu.warm_up(device, dtype, "
                    "d_k, d_v), or attention once with tensors of the same shapes"
                )
            stream = torch.cuda.current_stream(self.device).cuda_stream
            _launch(driver, _load(*key), stream, launch, params)


def warm_up(device: torch.device, dtype: torch.dtype, d_k: int, d_v: int) -> int:
    """Compile and load every kernel that attention of this type and size may need, whatever the lengths.

    Returns how many there are. A CUDA graph can then be captured with lengths that were not used before.
    """
    with torch.cuda.device(device):
        make_current(device)
        keys = [
            (variant, architecture(device), name)
            for variant in variants(dtype, d_k, d_v)
            for name in compile.kernel_names()
        ]
        for key in keys:
            _load(*key)
    return len(keys)


def make_current(device: torch.device) -> None:
    """Make the device's primary context the calling thread's current one.

    A thread that has not used the GPU, such as the one in which PyTorch runs backward, may have none:
    torch.cuda.device gives it none if the device is number 0 (PyTorch issues 124565 and 195256), and the
    driver then refuses a launch.
    """
    from cuda.core import Device

    Device(torch.cuda.current_device() if device.index is None else device.index).set_current()


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def architecture(device: torch.device) -> str:
    """What the device's machine code is called, such as sm_90."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


_loaded: dict[tuple[Variant, str, str], int] = {}  # handles of kernels, valid in every context
_loading = threading.Lock()


def _load(variant: Variant, architecture: str, name: str) -> int:
    """The handle of a kernel, loaded once; a context must be current."""
    with _loading:
        key = variant, architecture, name
        if key not in _loaded:
            _loaded[key] = _load_now(_module(variant, architecture).get_kernel(name))
        return _loaded[key]


def _load_now(kernel: Any) -> int:
    """The kernel's handle, after loading it: by default the driver waits until the first launch."""
    from cuda.bindings import driver

    error, function = driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle)))
    if error == driver.CUresult.CUDA_SUCCESS:
        (error,) = driver.cuFuncLoad(function)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"the driver cannot load a kernel of attention.cu: {error}")
    return int(kernel.handle)


@functools.cache
def _module(variant: Variant, architecture: str) -> Any:
    code = compile.code(variant, architecture)
    from cuda.core import ObjectCode

    load = ObjectCode.from_ptx if code.kind == "ptx" else ObjectCode.from_cubin
    return load(code.content, name="attention.cu")


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
