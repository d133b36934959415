"""One loaded bundle: tokenizer, graph, and the ONNX Runtime provider that runs it.

A runtime is immutable. A reload creates a new one; requests keep the one they began with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models.bundle import Bundle, load_bundle, with_precision, with_route_languages
from models.tokenizer import Encoding
from models.urgency import UrgentWords, urgent_words
from models.windows import read_windows
from service.settings import Settings

log = logging.getLogger("larkfield.runtime")

# Shapes (tickets, tokens) that a worker runs before it is ready.
_WARM_SHAPES = ((1, 8), (1, 64), (4, 48))
_WARM_ROUNDS = 5


class Runtime:
    """A verified bundle with its ONNX Runtime session."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        self.bundle = bundle
        self.config = bundle.config
        self.tokenizer = bundle.tokenizer
        self.session = bundle.session
        self.name = bundle.config.name
        self.version = bundle.config.version
        self.provider = bundle.session.get_providers()[0].removesuffix("ExecutionProvider")
        self._urgent = UrgentWords(bundle.tokenizer.vocabulary)
        tradeoff, precision = bundle.config.tradeoff, bundle.config.thresholds.precision
        self.caution = tradeoff.caution(precision) if tradeoff else ""
        on_gpu = self.provider != "CPU"
        self.batch_tokens = settings.batch_tokens or (65_536 if on_gpu else 512)
        self.batch_tickets = settings.batch_tickets or (512 if on_gpu else 16)

    @classmethod
    def load(cls, folder: Path, settings: Settings) -> Runtime:
        """Verify, open and warm up a bundle.

        BundleError if it is not valid or does not support the precision or the languages in the settings.
        """
        bundle = load_bundle(
            folder, session_options=session_options(settings), providers=providers(settings.provider)
        )
        bundle = with_route_languages(with_precision(bundle, settings.precision), settings.route_languages)
        runtime = cls(bundle, settings)
        runtime.warm()
        log.info(
            "bundle loaded",
            extra={"bundle": runtime.name, "version": runtime.version, "provider": runtime.provider},
        )
        if runtime.caution:
            log.warning("few or no tickets will be routed", extra={"reason": runtime.caution})
        return runtime

    def warm(self) -> None:
        """Run the graph with a few shapes, so that allocations do not delay the first ticket."""
        for tickets, tokens in _WARM_SHAPES:
            ids = np.ones((tickets, min(tokens, self.config.max_tokens)), np.int64)
            for _ in range(_WARM_ROUNDS):
                self.run(ids)

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Logits (tickets, teams) of padded ids (tickets, tokens); long tickets are read in windows."""
        window, whole = self.config.window, self.config.whole
        if window and ids.shape[1] > window:
            return read_windows(self._score, ids, window, whole)[0]
        return self._score(ids)

    def _score(self, ids: np.ndarray) -> np.ndarray:
        logits: np.ndarray = self.session.run(["logits"], {"input_ids": ids})[0]
        return logits

    def urgent_words(self, encoding: Encoding) -> list[str]:
        """The words of danger in a ticket (`models.urgency`)."""
        if encoding.language is not None:  # its ids are of English words, not of its own
            return urgent_words(encoding.text)
        unread = encoding.unknown + encoding.total - len(encoding.ids)
        return self._urgent.find(encoding.text, encoding.ids, unread)

    def attention(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (tickets, teams) and weights (tickets, blocks, heads, tokens, tokens)."""
        feed = {"input_ids": ids, "with_attention": np.array(True)}
        logits, weights = self.session.run(["logits", "attention"], feed)
        return logits, weights


def pad(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """Ids of several tickets as one int64 array, padded with 0 to the longest; an empty ticket is one 0."""
    if len(sequences) == 1 and sequences[0]:
        return np.array([sequences[0]], np.int64)
    longest = max(1, *(len(ids) for ids in sequences)) if sequences else 1
    padded = np.zeros((len(sequences), longest), np.int64)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = ids
    return padded


def session_options(settings: Settings) -> onnxruntime.SessionOptions:
    """One thread per run, no spinning: the cores are used by worker processes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    return options


def providers(wanted: str) -> list[Any]:
    """The providers in order: CUDA if wanted and present, then the CPU.

    ONNX Runtime falls back by itself, but first tries to load CUDA's libraries and prints errors. Without a
    device, CUDA is therefore left out.
    """
    cpu = "CPUExecutionProvider"
    if wanted == "cpu":
        return [cpu]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        if wanted == "cuda":
            log.warning("this build of ONNX Runtime has no CUDA provider; the CPU is used")
        return [cpu]
    if wanted == "auto" and not _nvidia_device():
        return [cpu]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries may be in Python packages
    return [("CUDAExecutionProvider", {"cudnn_conv_algo_search": "HEURISTIC"}), cpu]


def _nvidia_device() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in ("", "-1")
    return not hidden and (Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists())
