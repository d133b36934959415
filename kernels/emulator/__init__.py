"""attention.cu on the CPU, thread by thread, for the tests (see cuda.h): a `Device` for kernels.launch."""

import ctypes
import functools
import hashlib
import mmap
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cache import cache_folder
from kernels.launch import TYPES, Launch, Params, Variant, accumulate_type

HERE = pathlib.Path(__file__).parent
KERNEL_SOURCE = HERE.parent / "attention.cu"
ORDERS = ("in order", "reverse", "random")

# An index outside an array of known size and a misaligned address call the emulator; locals start as -1.7e38.
FLAGS = [
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=fast", "-U_FORTIFY_SOURCE"),
    *("-fsanitize=bounds,alignment", "-ftrivial-auto-var-init=pattern"),
    *("-Wno-unknown-pragmas", "-Wno-attributes"),
]

SPARSE_BYTES = 256 << 20  # an array of more is not filled, so that its pages cost nothing until they are used
ALIGNMENT = 64  # of what PyTorch allocates on a CPU
MAP_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class EmulatorError(RuntimeError):
    """The kernel, or the launch, is wrong: what the emulator saw and in which thread."""


def compiler() -> str | None:
    """The C++ compiler that builds the emulator, or None."""
    return os.environ.get("CXX") or shutil.which("g++")


@functools.cache
def _machine_flags(cxx: str) -> list[str]:
    """-mfma where this CPU has it, for a GPU fuses multiply and add too."""
    cpu = pathlib.Path("/proc/cpuinfo")
    return ["-mfma"] if cpu.exists() and " fma " in cpu.read_text() else []


def build(variant: Variant, source: pathlib.Path = KERNEL_SOURCE) -> pathlib.Path:
    """Compile one variant of the kernels for the CPU, once for each content of source and emulator."""
    cxx = compiler()
    if cxx is None:
        raise EmulatorError("no C++ compiler: install g++, or set CXX")
    flags = FLAGS + _machine_flags(cxx) + [f"-D{name}={value}" for name, value in variant.macros()]
    contents = [source, HERE / "cuda.h", HERE / "library.cpp"]
    key = hashlib.sha256(
        b"\0".join([*(path.read_bytes() for path in contents), " ".join([cxx, *flags]).encode()])
    )
    library = cache_folder() / "emulator" / f"{key.hexdigest()[:32]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = pathlib.Path(folder) / "library.so"
        define = f'-DKERNEL_SOURCE="{source.resolve()}"'
        command = [cxx, *flags, define, f"-I{HERE}", str(HERE / "library.cpp"), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise EmulatorError(f"{' '.join(command)}\n{done.stderr}")
        built.replace(library)
    return library


@functools.cache
def _library(variant: Variant, source: pathlib.Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build(variant, source)))
    library.emulate.restype = ctypes.c_char_p
    library.emulate.argtypes = [
        *(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_uint64,
        *(ctypes.c_void_p, ctypes.c_int),
    ]
    for conversion in (library.emulate_narrow, library.emulate_widen):
        conversion.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
        conversion.restype = ctypes.c_char_p
    library.emulator_params_bytes.restype = ctypes.c_size_t
    if library.emulator_params_bytes() != ctypes.sizeof(Params):
        raise EmulatorError("struct Params of attention.cu and kernels.launch.Params differ in size")
    return library


class _Array(ctypes.Structure):
    _fields_ = [
        ("pages", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("page_bytes", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
    ]


class Emulator:
    """A device whose threads run in a chosen order, with each array between guard pages.

    An array ends at a guard page, or begins at one if not `at_end`. Arrays live until `close`: clone what
    must outlive it. With `last_blocks`, only so many of a launch's blocks run, the last ones.
    """

    def __init__(
        self,
        order: str = "in order",
        seed: int = 0,
        at_end: bool = True,
        source: pathlib.Path = KERNEL_SOURCE,
        last_blocks: int | None = None,
        multiprocessors: int = 0,
    ) -> None:
        self.multiprocessors = multiprocessors
        self.order, self.seed, self.at_end, self.source = ORDERS.index(order), seed, at_end, source
        self.last_blocks = last_blocks
        self.launches: list[Launch] = []
        self._arrays: list[_Array] = []

    def __enter__(self) -> "Emulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for array in self._arrays:
            _libc.munmap(array.pages, array.page_bytes)
        self._arrays.clear()

    def _allocate(self, name: str, count: int, dtype: torch.dtype, offset: int | None = None) -> Tensor:
        """`count` numbers, all bits set (NaN), between guard pages.

        With `offset`, they begin so many bytes past a multiple of ALIGNMENT, and end up to ALIGNMENT bytes
        before the guard page. An array of more than SPARSE_BYTES holds zeros.
        """
        size = count * dtype.itemsize
        if size == 0:
            return torch.empty(0, dtype=dtype)
        page = mmap.PAGESIZE
        used = -(-(size + (offset or 0)) // page) * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        pages = _libc.mmap(None, used + 2 * page, 0, flags, -1, 0)
        if pages in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"mmap: {os.strerror(ctypes.get_errno())}")
        assert pages is not None
        if _libc.mprotect(pages + page, used, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
            raise MemoryError(f"mprotect: {os.strerror(ctypes.get_errno())}")
        if size <= SPARSE_BYTES:
            ctypes.memset(pages + page, 0xFF, used)
        data = pages + page + (used - size if self.at_end else offset or 0)
        if offset is not None:
            data -= (data - offset) % ALIGNMENT
        self._arrays.append(_Array(pages, data, used + 2 * page, size, name.encode()))
        return torch.frombuffer((ctypes.c_char * size).from_address(data), dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = int(torch.Size(shape).numel())
        return self._allocate(f"output {len(self._arrays)} {tuple(shape)}", count, dtype).view(shape)

    def place(self, name: str, x: Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
        """A read-only copy of `x`, with its strides or other ones; gaps between its numbers hold NaN.

        Where `x` is misaligned or has gaps, the copy begins as many bytes past a multiple of ALIGNMENT as it.
        """
        strides = strides or x.stride()
        if x.numel() == 0:
            return torch.empty_like(x)
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True))
        offset: int | None = x.data_ptr() % ALIGNMENT
        if offset == 0 and x.is_contiguous():
            offset = None
        placed = self._allocate(name, span, x.dtype, offset).as_strided(x.shape, strides)
        placed.copy_(x)
        array = self._arrays[-1]
        _libc.mprotect(array.pages + mmap.PAGESIZE, array.page_bytes - 2 * mmap.PAGESIZE, mmap.PROT_READ)
        return placed

    def launch(self, launch: Launch, params: Params) -> None:
        self.launches.append(launch)
        arrays = (_Array * len(self._arrays))(*self._arrays)
        run_blocks = launch.blocks if self.last_blocks is None else min(launch.blocks, self.last_blocks)
        problem = _library(launch.variant, self.source).emulate(
            *(launch.kernel.encode(), ctypes.addressof(params), launch.blocks, run_blocks, launch.threads),
            *(self.order, self.seed, ctypes.addressof(arrays), len(arrays)),
        )
        if problem is not None:
            raise EmulatorError(f"{launch.kernel}, {launch.variant}: {problem.decode()}")


def narrow(x: Tensor, dtype: torch.dtype, source: pathlib.Path = KERNEL_SOURCE) -> Tensor:
    """`x`, of the type that the kernel computes with, converted to `dtype` by the kernel's own code."""
    library = _library(Variant(TYPES[dtype], 8, 8, 1), source)
    return _converted(library.emulate_narrow, x.to(accumulate_type(dtype)), dtype)


def widen(x: Tensor, source: pathlib.Path = KERNEL_SOURCE) -> Tensor:
    """`x` converted to the type that the kernel computes with, by the kernel's own code."""
    library = _library(Variant(TYPES[x.dtype], 8, 8, 1), source)
    return _converted(library.emulate_widen, x, accumulate_type(x.dtype))


def _converted(convert: Callable[[int, int, int], bytes | None], x: Tensor, dtype: torch.dtype) -> Tensor:
    x, converted = x.contiguous(), torch.empty(x.shape, dtype=dtype)
    problem = convert(x.data_ptr(), converted.data_ptr(), x.numel())
    if problem is not None:
        raise EmulatorError(problem.decode())
    return converted
