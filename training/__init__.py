"""From labelled tickets to a bundle: data, recipes, training loop, calibration, export, evaluation."""

import models  # noqa: F401  switches telemetry off before onnxruntime is imported
