"""What an image installs: the project's own dependencies, with the ONNX Runtime build that the image is for.

    python requirements.py cpu|gpu path/to/pyproject.toml

The GPU build is 1 GB larger and of no use without a device, so the CPU image takes the plain one. The GPU
image takes CUDA and cuDNN as Python packages; the container runtime only has to bring the driver.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

RUNTIMES = {"cpu": ["onnxruntime"], "gpu": ["onnxruntime-gpu[cuda,cudnn]"]}


def requirements(kind: str, pyproject: Path) -> list[str]:
    """Requirement lines for an image; the PostgreSQL driver is in both."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    base = [line for line in project["dependencies"] if not line.startswith("onnxruntime")]
    return [*base, *project["optional-dependencies"]["postgres"], *RUNTIMES[kind]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], Path(sys.argv[2]))))
