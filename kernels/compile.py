"""attention.cu to machine code by NVRTC, through NVIDIA's cuda-core: needs no toolkit and no GPU."""

import dataclasses
import functools
import hashlib
import io
import pathlib
import re

from kernels.cache import cache_folder, cached
from kernels.launch import Variant

SOURCE = pathlib.Path(__file__).with_name("attention.cu")
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")  # Turing to Blackwell
STANDARD = "c++17"


class CompileError(RuntimeError):
    """NVRTC is missing, does not know the architecture, or refuses the source."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What one kernel takes, as the assembler reports it."""

    registers: int  # of each thread
    stack_bytes: int  # of each thread, in slow local memory
    spill_bytes: int  # written to local memory for want of registers
    shared_bytes: int  # of each block


@functools.cache
def nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the package is missing, or its library is
        raise CompileError(
            "the attention kernel is compiled with NVRTC, which is not installed: "
            "pip install cuda-core nvidia-cuda-nvrtc (the extra `train` brings both)"
        ) from error
    return f"{major}.{minor}"


def compile_source(source: str, variant: Variant, architecture: str) -> tuple[bytes, dict[str, Usage]]:
    """Machine code (a cubin) of the three kernels for one architecture, and what each of them uses."""
    nvrtc_version()
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    options = ProgramOptions(
        name="attention.cu",
        arch=architecture,
        std=STANDARD,
        define_macro=variant.macros(),
        ptxas_options=["-v"],
    )
    try:
        code = Program(source, "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        raise CompileError(f"attention.cu, {variant}, {architecture}: {str(error).rstrip(chr(0))}") from error
    return bytes(code), usage(log.getvalue())


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


def machine_code(variant: Variant, architecture: str, folder: pathlib.Path | None = None) -> bytes:
    """The cubin of attention.cu, from the disk cache or compiled now.

    The cache knows it by the hash of the source, the options, the architecture and NVRTC's version.
    """
    source = SOURCE.read_text(encoding="utf-8")
    facts = [source, STANDARD, repr(variant.macros()), architecture, nvrtc_version()]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    path = (folder or cache_folder()) / "cubin" / f"{key[:32]}.{architecture}.cubin"
    return cached(path, lambda: compile_source(source, variant, architecture)[0])
