"""Prints the requirements of an image: what serving needs, with the CPU or GPU build of ONNX Runtime.

    python requirements.py cpu|gpu path/to/pyproject.toml

The GPU build is 1 GB larger, so the CPU image uses the CPU build. The GPU image installs CUDA and cuDNN as
Python packages; the host provides the driver.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

RUNTIMES = {"cpu": ["onnxruntime"], "gpu": ["onnxruntime-gpu[cuda,cudnn]"]}


def requirements(kind: str, pyproject: Path) -> list[str]:
    """Requirement lines of an image; both images have the PostgreSQL driver."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["serve"], *extras["postgres"]]
    own = project["name"], "onnxruntime"  # the image installs the project itself, and one runtime
    return [*(line for line in lines if not line.startswith(own)), *RUNTIMES[kind]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], Path(sys.argv[2]))))
