"""attention.cu to machine code or PTX by NVRTC: needs no CUDA toolkit and no GPU."""

import dataclasses
import functools
import hashlib
import pathlib
import re
from typing import Any

from kernels.cache import cache_folder, cached
from kernels.launch import Variant

SOURCE = pathlib.Path(__file__).with_name("attention.cu")
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")  # Turing to Blackwell
STANDARD = "c++17"


class CompileError(RuntimeError):
    """NVRTC is missing, does not know the architecture, or refuses the source."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """The resources of one kernel, as the assembler reports them."""

    registers: int  # of each thread
    stack_bytes: int  # of each thread, in slow local memory
    spill_bytes: int  # written to local memory for want of registers
    shared_bytes: int  # of each block


@dataclasses.dataclass(frozen=True)
class Code:
    """What the driver loads: machine code ("cubin"), or PTX, which the driver compiles for its device."""

    kind: str
    content: bytes


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the package is missing, or its library is
        raise CompileError(
            "the attention kernel is compiled with NVRTC, which is not installed: "
            "pip install cuda-core nvidia-cuda-nvrtc (the extra `train` brings both)"
        ) from error
    return nvrtc


@functools.cache
def nvrtc_version() -> str:
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


@functools.cache
def known_architectures() -> tuple[int, ...]:
    """The architectures that this NVRTC supports, as numbers: 90 for sm_90."""
    _, numbers = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(sorted(numbers))


def compile_source(source: str, variant: Variant, architecture: str) -> tuple[bytes, dict[str, Usage]]:
    """The kernels of `source` for one architecture, and what each of them uses.

    Machine code (a cubin) for an architecture such as sm_90; PTX, without usage, for one such as compute_90.
    Raises CompileError with NVRTC's own report.
    """
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={architecture}", f"--std={STANDARD}", "--ptxas-options=-v"]
    options += [f"--define-macro={name}={value}" for name, value in variant.macros()]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"attention.cu", 0, [], [])
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().rstrip("\0\n")
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"attention.cu, {variant}, {architecture}: {error.name}\n{log}")
        if architecture.startswith("compute_"):
            return _bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), {}
        return _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), usage(log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(size_of: Any, read: Any, program: Any) -> bytes:
    _, size = size_of(program)
    content = bytes(size)  # NVRTC writes into it
    read(program, content)
    return content


def usage(log: str) -> dict[str, Usage]:
    """Read the assembler's report (`ptxas -v`)."""
    entry = (
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?"
        r"Used (\d+) registers([^\n]*)"
    )
    found = {}
    for name, stack, spill, registers, rest in re.findall(entry, log, re.DOTALL):
        shared = re.search(r"(\d+) bytes smem", rest)
        found[name] = Usage(int(registers), int(stack), int(spill), int(shared[1]) if shared else 0)
    return found


def target(architecture: str) -> str:
    """What to compile for: the architecture, or PTX of the newest older one where NVRTC does not know it.

    Raises CompileError where all that NVRTC knows is newer.
    """
    number = int(architecture.removeprefix("sm_"))
    known = known_architectures()
    if number in known:
        return architecture
    older = [one for one in known if one < number]
    if not older:
        raise CompileError(
            f"NVRTC {nvrtc_version()} makes code for sm_{known[0]} to sm_{known[-1]}, and the device is "
            f"{architecture}: use an older nvidia-cuda-nvrtc, or the CPU"
        )
    return f"compute_{older[-1]}"


def code(variant: Variant, architecture: str, folder: pathlib.Path | None = None) -> Code:
    """attention.cu for a device, from the disk cache or compiled now.

    The key in the cache is the hash of the source, the options, the target and NVRTC's version.
    """
    source, made_for = SOURCE.read_text(encoding="utf-8"), target(architecture)
    kind = "ptx" if made_for.startswith("compute_") else "cubin"
    facts = [source, STANDARD, repr(variant.macros()), made_for, nvrtc_version()]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    path = (folder or cache_folder()) / "cubin" / f"{key[:32]}.{made_for}.{kind}"
    return Code(kind, cached(path, lambda: compile_source(source, variant, made_for)[0]))


@functools.cache
def kernel_names() -> tuple[str, ...]:
    """The kernels of attention.cu, in the order in which they stand there."""
    return tuple(re.findall(r"__global__ .*?(\w+)\(const Params", SOURCE.read_text(encoding="utf-8")))
