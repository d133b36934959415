"""The instructions in the innermost loops of attention.cu, read from machine code by NVIDIA's nvdisasm."""

import collections
import dataclasses
import functools
import importlib.util
import pathlib
import re
import shutil
import subprocess
import tempfile

MULTIPLY_ADDS = ("FFMA", "DFMA")
SHARED_LOADS = {"LDS": 1, "LDS.64": 2, "LDS.128": 4}  # registers that the instruction returns


class DisassemblerError(RuntimeError):
    """nvdisasm is missing, or cannot read the code."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """One iteration of an innermost loop on the shortest path, without conditional parts."""

    counts: collections.Counter[str]  # of each instruction, by its name with its width: LDS.128

    @property
    def instructions(self) -> int:
        return self.counts.total()

    @property
    def multiply_adds(self) -> int:
        return sum(self.counts[name] for name in MULTIPLY_ADDS)

    @property
    def shared_cycles(self) -> float:
        """For how long one warp occupies shared memory, which returns a register of a warp each cycle.

        Loads are counted as two registers a cycle, since neighbouring threads of this kernel read the same
        numbers (documented for sm_70 to sm_75, assumed from there on).
        """
        loads = sum(registers * self.counts[name] for name, registers in SHARED_LOADS.items())
        return loads / 2 + self.counts["SHFL"] + self.counts["STS"]

    @property
    def special(self) -> int:
        """Instructions of the special function unit: 2^x."""
        return self.counts["MUFU"]


@functools.cache
def disassembler() -> str:
    """The path of nvdisasm: on PATH, or in the package nvidia-cuda-nvdisasm."""
    if found := shutil.which("nvdisasm"):
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in pathlib.Path(folder).glob("cu*/bin/nvdisasm"):
            return str(path)
    raise DisassemblerError(
        "nvdisasm is not installed: pip install nvidia-cuda-nvdisasm (in the extra `dev`)"
    )


def loops(cubin: bytes) -> dict[str, list[Loop]]:
    """The innermost loops of each kernel, those with most multiply-adds first."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True)
    if done.returncode != 0:
        raise DisassemblerError(f"nvdisasm: {done.stderr.strip()}")
    sections = done.stdout.split("//--------------------- .text.")[1:]
    return {section.split(maxsplit=1)[0]: _loops(section) for section in sections}


def _loops(section: str) -> list[Loop]:
    code, labels = _instructions(section)
    following = [_following(at, text, labels) for at, text in enumerate(code)]
    ends = [(to, at) for at, all_to in enumerate(following) for to in all_to if to <= at]
    innermost = [
        (start, end)
        for start, end in ends
        if not any(start <= a <= b <= end and (a, b) != (start, end) for a, b in ends)
    ]
    ways = (_shortest_way(following, start, end) for start, end in innermost)
    found = [Loop(collections.Counter(_name(code[at]) for at in way)) for way in ways if way]
    return sorted(found, key=lambda loop: -loop.multiply_adds)


def _instructions(section: str) -> tuple[list[str], dict[str, int]]:
    """The instructions in order, without their addresses, and where each label stands."""
    code: list[str] = []
    labels = {}
    for line in section.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?) ?;", line):
            code.append(instruction[1])
    return code, labels


def _name(instruction: str) -> str:
    """Without predicate, operands and modifiers; LDS with its width."""
    name = re.sub(r"^@\S+ ", "", instruction).split()[0]
    if name.startswith("LDS"):
        width = re.search(r"\.(64|128)", name)
        return "LDS" + (width[0] if width else "")
    return name.split(".")[0]


def _following(at: int, instruction: str, labels: dict[str, int]) -> list[int]:
    """The possible next instructions."""
    name = _name(instruction)
    if name not in ("BRA", "EXIT"):
        return [at + 1]
    conditional = instruction.startswith("@") or bool(re.search(r"\s!?U?P\d", instruction))
    target = re.search(r"`\((\.L_x_\d+)\)", instruction)
    return ([labels[target[1]]] if target else []) + ([at + 1] if conditional else [])


def _shortest_way(following: list[list[int]], start: int, end: int) -> list[int]:
    """The shortest path of instructions from start to end, forward only; empty if there is none."""
    before: dict[int, int] = {}
    steps = {start: 0}
    for at in range(start, end):
        for to in following[at] if at in steps else []:
            if at < to <= end and steps[at] + 1 < steps.get(to, end - start + 2):
                steps[to], before[to] = steps[at] + 1, at
    if end not in steps:
        return []
    way = [end]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way
