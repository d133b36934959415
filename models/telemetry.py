"""Switches off the telemetry of libraries."""

from __future__ import annotations

import os

# Libraries read these when they are imported: ONNX Runtime (which would also write a device id and an event
# store to the user's cache folder), huggingface_hub, Ray, and those that follow consoledonottrack.com.
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
}


def switch_off() -> None:
    """Set the variables for this process and its children, unless the user has set them."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
