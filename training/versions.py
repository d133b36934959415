"""The versions of the libraries that a bundle's weights depend on."""

import platform
from importlib import metadata

import onnxruntime

LIBRARIES = ("torch", "tokenizers", "numpy", "onnx", "scikit-learn")


def library_versions() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__, **versions}
