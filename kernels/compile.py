"""attention.cu to machine code by NVRTC, through NVIDIA's cuda-core: needs no toolkit and no GPU."""

import dataclasses
import functools
import hashlib
import io
import itertools
import pathlib
import re
from typing import Any

from kernels.cache import cache_folder, cached
from kernels.launch import Variant

SOURCE = pathlib.Path(__file__).with_name("attention.cu")
GENERATIONS = {
    "Turing": ("sm_75",),
    "Ampere and Ada": ("sm_80", "sm_86", "sm_89"),
    "Hopper": ("sm_90",),
    "Blackwell": ("sm_100", "sm_120"),
}
ARCHITECTURES = tuple(itertools.chain(*GENERATIONS.values()))
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
    code, log = _nvrtc(source, variant, architecture, "cubin", ptxas_options=["-v"])
    return code, usage(log)


def check_source(source: str, variant: Variant, architecture: str) -> None:
    """Raise CompileError if NVRTC does not accept the source: many times faster than making machine code."""
    _nvrtc(source, variant, architecture, "ltoir", link_time_optimization=True)


def _nvrtc(
    source: str, variant: Variant, architecture: str, target: str, **options: Any
) -> tuple[bytes, str]:
    nvrtc_version()
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    common = {"name": "attention.cu", "arch": architecture, "std": STANDARD, "define_macro": variant.macros()}
    try:
        program = Program(source, "c++", ProgramOptions(**common, **options))
        return bytes(program.compile(target, logs=log).code), log.getvalue()
    except Exception as error:
        raise CompileError(f"attention.cu, {variant}, {architecture}: {str(error).rstrip(chr(0))}") from error


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
