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

import torch
from torch import Tensor

from kernels.cache import cache_folder
from kernels.launch import Launch, Params, Variant

HERE = pathlib.Path(__file__).parent
KERNEL_SOURCE = HERE.parent / "attention.cu"
ORDERS = ("in order", "reverse", "random")

# An index outside an array of known size calls the emulator; locals that nobody set are -1.7e38.
FLAGS = [
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=fast", "-U_FORTIFY_SOURCE"),
    *("-fsanitize=bounds", "-ftrivial-auto-var-init=pattern", "-Wno-unknown-pragmas", "-Wno-attributes"),
]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class EmulatorError(RuntimeError):
    """The kernel did what a GPU would punish or, worse, let pass."""


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
        *(ctypes.c_char_p, ctypes.POINTER(Params), ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_int),
    ]
    library.emulate_rounding.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    library.emulate_rounding.restype = None
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
    """A device whose threads run in a chosen order, with its arrays between pages that nobody may touch.

    Arrays end at such a page, or begin at one if not `at_end`. They live until `close`: clone what must
    outlive it.
    """

    def __init__(
        self,
        order: str = "in order",
        seed: int = 0,
        at_end: bool = True,
        source: pathlib.Path = KERNEL_SOURCE,
    ) -> None:
        self.order, self.seed, self.at_end, self.source = ORDERS.index(order), seed, at_end, source
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

    def _allocate(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """`count` numbers, all bits set (NaN), between guard pages."""
        size = count * dtype.itemsize
        if size == 0:
            return torch.empty(0, dtype=dtype)
        page = mmap.PAGESIZE
        used = -(-size // page) * page
        pages = _libc.mmap(None, used + 2 * page, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if pages in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"mmap: {os.strerror(ctypes.get_errno())}")
        assert pages is not None
        if _libc.mprotect(pages + page, used, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
            raise MemoryError(f"mprotect: {os.strerror(ctypes.get_errno())}")
        ctypes.memset(pages + page, 0xFF, used)
        data = pages + page + (used - size if self.at_end else 0)
        self._arrays.append(_Array(pages, data, used + 2 * page, size, name.encode()))
        return torch.frombuffer((ctypes.c_char * size).from_address(data), dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = int(torch.Size(shape).numel())
        return self._allocate(f"output {len(self._arrays)} {tuple(shape)}", count, dtype).view(shape)

    def place(self, name: str, x: Tensor) -> Tensor:
        """A read-only copy of `x` with the same strides; gaps between its numbers hold NaN."""
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        flat = self._allocate(name, span if x.numel() else 0, x.dtype)
        if x.numel() == 0:
            return torch.empty_like(x)
        placed = flat.as_strided(x.shape, x.stride())
        placed.copy_(x)
        array = self._arrays[-1]
        _libc.mprotect(array.pages + mmap.PAGESIZE, array.page_bytes - 2 * mmap.PAGESIZE, mmap.PROT_READ)
        return placed

    def launch(self, launch: Launch, params: Params) -> None:
        self.launches.append(launch)
        arrays = (_Array * len(self._arrays))(*self._arrays)
        problem = _library(launch.variant, self.source).emulate(
            *(
                launch.kernel.encode(),
                ctypes.byref(params),
                launch.blocks,
                launch.threads,
                self.order,
                self.seed,
            ),
            *(ctypes.addressof(arrays), len(arrays)),
        )
        if problem is not None:
            raise EmulatorError(f"{launch.kernel}, {launch.variant}: {problem.decode()}")


def to_bfloat16(x: Tensor, source: pathlib.Path = KERNEL_SOURCE) -> Tensor:
    """float32 rounded by the kernel's own code."""
    x, rounded = x.contiguous(), torch.empty(x.shape, dtype=torch.bfloat16)
    _library(Variant("bfloat16", 8, 8, 1), source).emulate_rounding(
        x.data_ptr(), rounded.data_ptr(), x.numel()
    )
    return rounded
