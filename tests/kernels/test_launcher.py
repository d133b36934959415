"""The way to the device: plan, parameters, machine code, disk cache. Only the device itself is replaced."""

import contextlib
import ctypes
import hashlib
import math
import multiprocessing
import pathlib
import types
from typing import Any

import pytest
import torch

from kernels import attention, cases, compile, emulator, gpu, launch, rounding
from kernels.cache import cached
from kernels.cases import Case
from kernels.launch import Launch, Params, Variant

cuda_core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
VARIANT = Variant("float", 8, 8, 1)


class TestPlan:
    @pytest.mark.parametrize("kernel", ["attention_forward", "attention_backward_q", "attention_backward_kv"])
    @pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
    def test_blocks_hold_all_rows_and_none_is_empty(self, kernel: str, dtype: torch.dtype) -> None:
        for length in (*range(1, 300), 1024, 8192):
            for d_k, d_v in ((8, 8), (16, 16), (64, 32), (8, 128)):
                plan = launch.plan(kernel, dtype, 3, length, d_k, d_v)
                lanes = max(1, max(d_k, d_v) // 16)
                rows = plan.variant.rows if kernel == "attention_forward" else min(plan.variant.rows, 2)
                rows_per_block = plan.threads // lanes * rows
                assert plan.threads % 32 == 0
                assert plan.threads <= 128
                assert plan.blocks == 3 * math.ceil(length / rows_per_block)

    def test_a_ticket_of_120_tokens_is_one_warp_to_a_head(self) -> None:
        plan = launch.plan("attention_forward", torch.float32, 4096, 120, 16, 16)
        assert plan == Launch("attention_forward", Variant("float", 16, 16, 4), 4096, 32)

    def test_too_many_heads(self) -> None:
        with pytest.raises(ValueError, match="a launch takes"):
            launch.plan("attention_forward", torch.float32, 2**31, 1, 16, 16)


def test_what_is_not_supported_is_refused_with_what_is() -> None:
    def of(d_k: int, d_v: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        return [torch.zeros(1, 1, 2, d, dtype=dtype) for d in (d_k, d_k, d_v)]

    launch.refuse_unsupported(*of(8, 128))
    for wrong in (of(24, 16), of(16, 256), of(16, 16, torch.complex64)):
        with pytest.raises(ValueError, match=r"torch\.bfloat16; d_k and d_v of 8, 16, 32, 64, 128"):
            launch.refuse_unsupported(*wrong)


def test_strided_inputs_are_read_in_place_and_unaligned_ones_copied() -> None:
    packed = torch.zeros(2, 5, 3, 4, 16).permute(2, 0, 3, 1, 4)[1]
    assert launch.readable(packed) is packed
    assert launch.readable(packed.expand(2, 4, 5, 16)[:1]).data_ptr() == packed.data_ptr()
    for x in (
        torch.zeros(1 + 160)[1:].view(1, 2, 5, 16),  # off a 16-byte boundary
        torch.zeros(1, 2, 16, 5).transpose(-2, -1),  # numbers of a row apart
        torch.zeros(1, 2, 5, 17)[..., :16],  # rows off a 16-byte boundary
    ):
        copy = launch.readable(x)
        assert copy.data_ptr() % 16 == 0
        assert copy.is_contiguous()


class FakeDriver:
    """The driver's launch, with the emulator for a GPU behind it."""

    CUresult = types.SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_INVALID_VALUE=1)
    CUfunction = CUstream = staticmethod(int)

    def __init__(self, device: emulator.Emulator, kernels: dict[int, tuple[Variant, str]]) -> None:
        self.device, self.kernels, self.streams = device, kernels, []

    def cuLaunchKernel(self, function: int, *rest: Any) -> tuple[int]:
        *grid_and_block, shared, stream, parameters, extra = rest
        blocks, threads = grid_and_block[0], grid_and_block[3]
        assert grid_and_block == [blocks, 1, 1, threads, 1, 1]
        assert (shared, extra) == (0, 0)
        pointer = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        params = Params.from_buffer_copy(ctypes.string_at(pointer, ctypes.sizeof(Params)))
        variant, name = self.kernels[function]
        self.streams.append(stream)
        self.device.launch(Launch(name, variant, blocks, threads), params)
        return (self.CUresult.CUDA_SUCCESS,)


@pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")
def test_launches_reach_the_device_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """From inputs to results through `Gpu`, NVRTC and the cache; the driver's one call runs the emulator."""
    kernels: dict[int, tuple[Variant, str]] = {}
    compiled = []

    def from_cubin(code: bytes, name: str) -> Any:
        assert code.startswith(b"\x7fELF")
        compiled.append(code)

        def get_kernel(entry: str) -> Any:
            assert entry.encode() in code
            handle = 1000 + len(kernels)
            kernels[handle] = (variants[-1], entry)
            return types.SimpleNamespace(handle=handle)

        return types.SimpleNamespace(get_kernel=get_kernel)

    variants: list[Variant] = []

    def machine_code(variant: Variant, architecture: str) -> bytes:
        variants.append(variant)
        return compile.machine_code(variant, architecture, tmp_path)

    monkeypatch.setattr("cuda.core.ObjectCode", types.SimpleNamespace(from_cubin=from_cubin))
    monkeypatch.setattr(gpu, "machine_code", machine_code)
    monkeypatch.setattr(gpu, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    stream = types.SimpleNamespace(cuda_stream=4321)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a launch must not wait"))
    gpu._module.cache_clear()
    gpu._kernel.cache_clear()

    case = Case(d_k=8, d_v=8, n=20, m=30, mask="heads", lengths="with 0", causal=True, layout="heads last")
    inputs = cases.draw(case, seed=1)
    with emulator.Emulator() as emulated:
        driver = FakeDriver(emulated, kernels)
        monkeypatch.setattr("cuda.bindings.driver", driver)
        device = gpu.Gpu(torch.device("cpu"))
        placed = inputs.map(emulated.place)
        monkeypatch.setattr(device, "empty", emulated.empty)
        got = {name: x.clone() for name, x in cases.run(device, placed, case.causal).items()}
    assert max(error.share for error in rounding.judge(got, inputs, case.causal).values()) < 1
    assert driver.streams == [4321] * 3
    assert len(compiled) == 1
    gpu._module.cache_clear()
    gpu._kernel.cache_clear()


def test_a_refused_launch_is_an_error() -> None:
    driver = types.SimpleNamespace(
        CUresult=FakeDriver.CUresult, CUfunction=int, CUstream=int, cuLaunchKernel=lambda *_: (1,)
    )
    with pytest.raises(gpu.LaunchError, match="attention_forward with 7 blocks of 32 threads"):
        gpu._launch(driver, 5, 0, Launch("attention_forward", VARIANT, 7, 32), Params())


class TestCompile:
    def test_the_assemblers_report_is_read(self) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        code, used = compile.compile_source(source, VARIANT, "sm_80")
        assert code.startswith(b"\x7fELF")
        assert set(used) == {"attention_forward", "attention_backward_q", "attention_backward_kv"}
        for usage in used.values():
            assert 0 < usage.registers <= 255
            assert usage.spill_bytes == usage.stack_bytes == 0
            assert usage.shared_bytes >= 64 * 16 * 4  # a tile of 64 keys and values of 8 floats

    def test_spills_are_seen(self) -> None:
        log = (
            "ptxas info    : Compiling entry function 'f' for 'sm_90'\n"
            "ptxas info    : Function properties for f\n"
            "ptxas         .     64 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
            "ptxas info    : Used 255 registers, used 1 barriers, 8192 bytes smem\n"
        )
        assert compile.usage(log) == {"f": compile.Usage(255, 64, 12, 8192)}

    def test_an_error_names_the_variant_and_the_line(self) -> None:
        with pytest.raises(compile.CompileError, match=r"(?s)d_k=8.*sm_90.*undefined"):
            compile.compile_source("__device__ int f() { return nothing; }", VARIANT, "sm_90")

    def test_an_unknownarchitecture(self) -> None:
        with pytest.raises(compile.CompileError, match="sm_1"):
            compile.compile_source("", VARIANT, "sm_1")

    @pytest.mark.parametrize("architecture", compile.ARCHITECTURES)
    def test_everyarchitecture(self, architecture: str) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        for variant in (Variant("float", 16, 16, 4), Variant("bfloat16", 64, 32, 1)):
            _, used = compile.compile_source(source, variant, architecture)
            assert [usage.spill_bytes for usage in used.values()] == [0, 0, 0]


class TestCache:
    def test_compiled_once(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = compile.machine_code(VARIANT, "sm_90", tmp_path)
        monkeypatch.setattr(compile, "compile_source", lambda *_: pytest.fail("compiled again"))
        assert compile.machine_code(VARIANT, "sm_90", tmp_path) == first
        assert [path.suffix for path in tmp_path.rglob("*.*")] == [".cubin"]  # and no temporary file

    def test_source_options_andarchitecture_are_the_key(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        monkeypatch.setattr(compile, "compile_source", lambda *what: (seen.append(what) or b"code", {}))
        compile.machine_code(VARIANT, "sm_90", tmp_path)
        compile.machine_code(VARIANT, "sm_80", tmp_path)
        compile.machine_code(Variant("float", 8, 8, 2), "sm_90", tmp_path)
        other = tmp_path / "attention.cu"
        other.write_text("// another source")
        monkeypatch.setattr(compile, "SOURCE", other)
        compile.machine_code(VARIANT, "sm_90", tmp_path)
        assert len(seen) == 4
        compile.machine_code(VARIANT, "sm_90", tmp_path)
        assert len(seen) == 4

    @pytest.mark.parametrize("damage", [b"", b"short", None, b"\0" * 100])
    def test_a_damaged_entry_is_built_again(self, tmp_path: pathlib.Path, damage: bytes | None) -> None:
        path = tmp_path / "entry"
        assert cached(path, lambda: b"content") == b"content"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"T" if damage is None else damage)
        assert cached(path, lambda: b"content") == b"content"
        assert path.read_bytes() == whole == hashlib.sha256(b"content").digest() + b"content"
        assert cached(path, lambda: pytest.fail("built again")) == b"content"

    def test_no_place_to_keep_it(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        assert cached(tmp_path / "file" / "entry", lambda: b"content") == b"content"

    def test_two_processes_at_once(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "entry"
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.starmap(build_large, [(path, number) for number in range(8)])
        assert [child.name for child in tmp_path.iterdir()] == ["entry"]


def build_large(path: pathlib.Path, number: int) -> bool:
    """Every process builds another content; whoever reads gets one of them whole."""
    content = cached(path, lambda: bytes([number]) * 1_000_000)
    return len(content) == 1_000_000 and len(set(content)) == 1


def test_the_gpu_is_not_needed_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on the CPU must not import the launcher's packages."""
    monkeypatch.setitem(__import__("sys").modules, "cuda.core", None)
    x = torch.randn(1, 1, 3, 8)
    assert attention(x, x, x).shape == (1, 1, 3, 8)
