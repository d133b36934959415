"""Which provider runs the graph, and with how large a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from models.bundle import BundleError
from service.inference import runtime
from service.inference.runtime import Runtime, providers
from service.settings import Settings

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def names(wanted: str) -> list[str]:
    return [entry if isinstance(entry, str) else entry[0] for entry in providers(wanted)]


@pytest.mark.parametrize(
    ("wanted", "built_with_cuda", "device", "expected"),
    [
        ("auto", True, True, [CUDA, CPU]),
        ("auto", True, False, [CPU]),
        ("auto", False, True, [CPU]),
        ("cpu", True, True, [CPU]),
        ("cuda", True, False, [CUDA, CPU]),
        ("cuda", False, True, [CPU]),
    ],
)
def test_cuda_where_there_is_a_device_and_the_cpu_behind_it(
    monkeypatch: pytest.MonkeyPatch, wanted: str, built_with_cuda: bool, device: bool, expected: list[str]
) -> None:
    available = [CUDA, CPU] if built_with_cuda else [CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(runtime, "_nvidia_device", lambda: device)
    assert names(wanted) == expected


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_device_is_none(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not runtime._nvidia_device()


def test_a_gpu_gets_larger_batches(bundle: Path) -> None:
    on_cpu = Runtime.load(bundle, Settings(provider="cpu"))
    assert (on_cpu.provider, on_cpu.batch_tokens, on_cpu.batch_tickets) == ("CPU", 512, 16)

    class Session:
        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

    loaded = on_cpu.bundle
    pretended = type(loaded)(loaded.folder, loaded.config, loaded.tokenizer, Session())  # type: ignore[arg-type]
    on_gpu = Runtime(pretended, Settings())
    assert (on_gpu.provider, on_gpu.batch_tokens, on_gpu.batch_tickets) == ("CUDA", 65_536, 512)
    assert Runtime(pretended, Settings(batch_tokens=99, batch_tickets=3)).batch_tokens == 99


def test_logits_and_weights_have_the_documented_shapes(bundle: Path) -> None:
    loaded = Runtime.load(bundle, Settings())
    ids = np.array([[2, 3, 4], [2, 0, 0]])
    logits, weights = loaded.attention(ids)
    assert logits.shape == (2, 3)
    assert weights.shape == (2, 2, 4, 3, 3)
    assert np.array_equal(loaded.run(ids), logits)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json"):
        Runtime.load(tmp_path, Settings())
