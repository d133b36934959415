"""Serving imports these modules where torch, onnx and scikit-learn are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINING_ONLY = [
    "torch",
    "onnx",
    "onnxscript",
    "sklearn",
    "scipy",
    "pandas",
    "pyarrow",
    "matplotlib",
]


@pytest.mark.parametrize("module", ["text", "tokenizer", "bundle", "decision"])
def test_needs_nothing_of_training(module: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({TRAINING_ONLY!r}))\n"  # importing one of them now fails
        f"import models.{module}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
