"""The HTTP service: it loads a bundle with ONNX Runtime and answers `POST /route`."""

import models  # noqa: F401  switches telemetry off before onnxruntime is imported
