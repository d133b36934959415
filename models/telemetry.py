"""Switches off the usage reports that libraries send to their makers."""

from __future__ import annotations

import os

# Read by the libraries when they are imported: ONNX Runtime (it would also write a device id and a store of
# events to the user's cache folder), huggingface_hub, Ray, and those that follow consoledonottrack.com.
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
}


def switch_off() -> None:
    """Set the variables for this process and its children, except those that the user has set."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
