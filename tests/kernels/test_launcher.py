"""The way to the device: plan, parameters, machine code, disk cache. Only the device itself is replaced."""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import math
import multiprocessing
import pathlib
import re
import threading
import types
from collections.abc import Iterator
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
                for multiprocessors in (0, 1, 132):
                    plan = launch.plan(kernel, dtype, 3, length, d_k, d_v, multiprocessors)
                    lanes = launch.lanes(kernel, d_k, d_v)
                    rows = launch.used_rows(kernel, plan.variant.rows, d_k, d_v)
                    assert plan.threads % 32 == 0
                    assert plan.threads <= 128
                    assert plan.blocks == 3 * math.ceil(length / (plan.threads // lanes * rows))

    def test_many_tickets_of_120_tokens_are_two_warps_to_a_head(self) -> None:
        plan = launch.plan("attention_forward", torch.float32, 4096, 120, 16, 16, 132)
        assert plan == Launch("attention_forward", Variant("float", 16, 16, 2), 4096, 64)

    def test_few_heads_get_more_threads_on_a_larger_device(self) -> None:
        few, many = (
            launch.plan("attention_forward", torch.float32, 256, 120, 16, 16, multiprocessors)
            for multiprocessors in (16, 132)
        )
        assert few == Launch("attention_forward", Variant("float", 16, 16, 2), 256, 64)
        assert many == Launch("attention_forward", Variant("float", 16, 16, 1), 256, 128)

    @pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
    def test_one_backward_kernel_where_a_block_holds_all_keys(self, dtype: torch.dtype) -> None:
        for d in (8, 16, 32, 64, 128):
            held = [m for m in range(1, 200) if launch.plan_all_keys(dtype, 3, 128, m, d, d)]
            assert held == list(range(1, len(held) + 1))
            if dtype != torch.float64:
                assert len(held) == {64: 64, 128: 32}.get(d, 128)
            assert launch.plan_all_keys(dtype, 3, 129, 1, d, d) is None
            for m in held:
                plan = launch.plan_all_keys(dtype, 3, 128, m, d, d)
                assert plan is not None
                rows = launch.used_rows(plan.kernel, plan.variant.rows, d, d)
                assert plan.threads <= 256
                assert plan.threads // launch.lanes(plan.kernel, d, d) * rows >= m
                assert plan.variant in launch.variants(dtype, d, d)

    @pytest.mark.parametrize("dtype", list(launch.TYPES), ids=str)
    def test_variants_are_all_that_it_may_ask_for(self, dtype: torch.dtype) -> None:
        asked = {
            launch.plan(kernel, dtype, heads, length, 16, 32).variant
            for kernel in ("attention_forward", "attention_backward_q", "attention_backward_kv")
            for heads in (1, 8, 4096)
            for length in (*range(1, 200), 8192)
        }
        assert asked == set(launch.variants(dtype, 16, 32))

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


class Pointless:
    """A device that is never reached."""

    multiprocessors = 1

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def launch(self, launch: Launch, params: Params) -> None:
        pytest.fail("launched with a pointer of another device")


@pytest.mark.parametrize("name", ["k", "v", "mask", "key_lengths"])
def test_tensors_on_another_device_are_refused(name: str) -> None:
    """One tensor on the CPU, the others on a device, or the other way round; "meta" stands for the device."""
    for place, other in (("meta", "cpu"), ("cpu", "meta")):
        x = {"q": torch.zeros(2, 1, 3, 8), "k": torch.zeros(2, 1, 5, 8), "v": torch.zeros(2, 1, 5, 8)}
        x |= {"mask": torch.zeros(3, 5), "key_lengths": torch.ones(2, dtype=torch.int32)}
        x = {key: tensor.to(other if key == name else place) for key, tensor in x.items()}
        with pytest.raises(
            ValueError, match=rf"{name} is on {other} and q on {place}.*{name}\.to\(q\.device"
        ):
            attention(**x)
        if place == "meta":
            with pytest.raises(ValueError, match=rf"{name} is on cpu"):
                launch.forward(Pointless(), **x, causal=False, return_weights=False)


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


class FakeGpu:
    """The driver and cuda-core as `Gpu` uses them, with the emulator for a GPU behind them.

    As on a GPU, a thread has no current context until it sets one, a kernel must be loaded before it is
    launched, and the driver launches nothing without a context.
    """

    CUresult = types.SimpleNamespace(
        CUDA_SUCCESS="CUDA_SUCCESS", CUDA_ERROR_INVALID_CONTEXT="CUDA_ERROR_INVALID_CONTEXT"
    )
    CUfunction = CUkernel = CUstream = staticmethod(int)

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, architecture: str = "sm_90"
    ) -> None:
        self.emulated = emulator.Emulator()
        self.kernels: dict[int, tuple[Variant, str]] = {}
        self.kinds: list[str] = []
        self.streams: list[int] = []
        self.loaded: set[int] = set()
        self.capturing = False
        self.thread = threading.local()
        self.variants: list[Variant] = []
        make = compile.code

        def code(variant: Variant, architecture: str) -> compile.Code:
            self.variants.append(variant)
            return make(variant, architecture, folder)

        monkeypatch.setattr(compile, "code", code)
        monkeypatch.setattr(
            "cuda.core.ObjectCode",
            types.SimpleNamespace(
                from_cubin=functools.partial(self.object_code, "cubin"),
                from_ptx=functools.partial(self.object_code, "ptx"),
            ),
        )
        monkeypatch.setattr("cuda.core.Device", self.device)
        monkeypatch.setattr("cuda.bindings.driver", self)
        monkeypatch.setattr(gpu, "architecture", lambda device: architecture)
        monkeypatch.setattr(gpu, "_multiprocessors", lambda device: 0)
        monkeypatch.setattr(gpu, "_loaded", {})
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        stream = types.SimpleNamespace(cuda_stream=4321)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a launch must not wait"))
        monkeypatch.setattr(gpu.Gpu, "empty", lambda _, shape, dtype: self.emulated.empty(shape, dtype))
        gpu._module.cache_clear()

    def device(self, number: int) -> Any:
        return types.SimpleNamespace(set_current=lambda: setattr(self.thread, "context", number))

    def object_code(self, kind: str, content: bytes, name: str) -> Any:
        assert content.startswith(b"\x7fELF") == (kind == "cubin")
        self.kinds.append(kind)
        variant = self.variants[-1]

        def get_kernel(entry: str) -> Any:
            assert entry.encode() in content
            handle = 1000 + len(self.kernels)
            self.kernels[handle] = (variant, entry)
            return types.SimpleNamespace(handle=handle)

        return types.SimpleNamespace(get_kernel=get_kernel)

    def cuKernelGetFunction(self, kernel: int) -> tuple[str, int]:
        if not hasattr(self.thread, "context"):
            return "CUDA_ERROR_INVALID_CONTEXT", 0
        return "CUDA_SUCCESS", kernel

    def cuFuncLoad(self, function: int) -> tuple[str]:
        assert not self.capturing
        self.loaded.add(function)
        return ("CUDA_SUCCESS",)

    def cuLaunchKernel(self, function: int, *rest: Any) -> tuple[str]:
        if not hasattr(self.thread, "context"):
            return ("CUDA_ERROR_INVALID_CONTEXT",)
        assert function in self.loaded
        *grid_and_block, shared, stream, parameters, extra = rest
        blocks, threads = grid_and_block[0], grid_and_block[3]
        assert grid_and_block == [blocks, 1, 1, threads, 1, 1]
        assert (shared, extra) == (0, 0)
        pointer = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        params = Params.from_buffer_copy(ctypes.string_at(pointer, ctypes.sizeof(Params)))
        variant, name = self.kernels[function]
        self.streams.append(stream)
        self.emulated.launch(Launch(name, variant, blocks, threads), params)
        return ("CUDA_SUCCESS",)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[FakeGpu]:
    if emulator.compiler() is None:
        pytest.skip("the emulator needs a C++ compiler (g++)")
    fake = FakeGpu(monkeypatch, tmp_path)
    with fake.emulated:
        yield fake
    gpu._module.cache_clear()


CASE = Case(d_k=8, d_v=8, n=20, m=30, mask="heads", lengths="with 0", causal=True, layout="heads last")


class TestGpu:
    """From inputs to results through `Gpu`, NVRTC and the cache; the driver's calls run the emulator."""

    def test_launches_reach_the_device_whole(self, fake_gpu: FakeGpu) -> None:
        inputs = cases.draw(CASE, seed=1)
        got = cases.run(gpu.Gpu(torch.device("cpu")), inputs.map(fake_gpu.emulated.place), CASE.causal)
        assert max(error.share for error in rounding.judge(got, inputs, CASE.causal).values()) < 1
        assert set(fake_gpu.streams) == {4321}
        assert fake_gpu.kinds == ["cubin"]

    def test_backward_in_a_thread_without_a_context(self, fake_gpu: FakeGpu) -> None:
        """As in PyTorch's autograd: torch.cuda.device alone leaves such a thread without one."""
        inputs = cases.draw(CASE, seed=1)
        device = gpu.Gpu(torch.device("cpu"))
        failures: list[BaseException] = []

        def work() -> None:
            try:
                assert not hasattr(fake_gpu.thread, "context")
                cases.run(device, inputs, CASE.causal)
            except BaseException as error:
                failures.append(error)

        cases.run(device, inputs, CASE.causal)  # loads the kernels in the main thread
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert failures == []

    def test_a_new_kernel_within_the_capture_of_a_graph_is_refused(self, fake_gpu: FakeGpu) -> None:
        device, short = gpu.Gpu(torch.device("cpu")), cases.draw(CASE, seed=1)
        long = cases.draw(dataclasses.replace(CASE, n=70, m=70), seed=1)  # more rows a thread
        cases.run(device, short, CASE.causal)
        fake_gpu.capturing = True
        cases.run(device, short, CASE.causal)
        with pytest.raises(gpu.LaunchError, match=r"rows=2.*before the capture, call kernels\.gpu\.warm_up"):
            cases.run(device, long, CASE.causal)
        fake_gpu.capturing = False
        assert gpu.warm_up(torch.device("cpu"), torch.float32, 8, 8) == 2 * len(compile.kernel_names())
        fake_gpu.capturing = True
        cases.run(device, long, CASE.causal)

    def test_an_architecture_newer_than_nvrtc_gets_ptx(
        self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gpu, "architecture", lambda device: "sm_999")
        cases.run(gpu.Gpu(torch.device("cpu")), cases.draw(CASE, seed=1), CASE.causal)
        assert fake_gpu.kinds == ["ptx"]

    def test_a_refused_launch_is_an_error(self) -> None:
        driver = types.SimpleNamespace(
            CUresult=FakeGpu.CUresult, CUfunction=int, CUstream=int, cuLaunchKernel=lambda *_: ("CUDA_ERROR",)
        )
        with pytest.raises(
            gpu.LaunchError, match="attention_forward with 7 blocks of 32 threads: CUDA_ERROR"
        ):
            gpu._launch(driver, 5, 0, Launch("attention_forward", VARIANT, 7, 32), Params())


class TestCompile:
    def test_the_assemblers_report_is_read(self) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        code, used = compile.compile_source(source, VARIANT, "sm_80")
        assert code.startswith(b"\x7fELF")
        assert set(used) == set(compile.kernel_names())
        for name, usage in used.items():
            assert 0 < usage.registers <= 255
            assert usage.spill_bytes == usage.stack_bytes == 0
            tile = 0 if name == "attention_naive" else 32 * 16 * 4  # 32 keys and values of 8 floats
            assert usage.shared_bytes >= tile

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

    def test_an_unknown_architecture(self) -> None:
        with pytest.raises(compile.CompileError, match="sm_1"):
            compile.compile_source("", VARIANT, "sm_1")

    def test_ptx_stands_in_for_machine_code_that_nvrtc_cannot_make(self, tmp_path: pathlib.Path) -> None:
        newest = compile.known_architectures()[-1]
        assert compile.target(f"sm_{newest}") == f"sm_{newest}"
        assert compile.target("sm_999") == f"compute_{newest}"
        code = compile.code(VARIANT, "sm_999", tmp_path)
        assert code.kind == "ptx"
        assert f".target sm_{newest}".encode() in code.content
        assert all(f".entry {name}".encode() in code.content for name in compile.kernel_names())

    def test_an_architecture_older_than_all_that_nvrtc_knows(self) -> None:
        with pytest.raises(compile.CompileError, match=r"device is sm_50: use an older nvidia-cuda-nvrtc"):
            compile.target("sm_50")

    @pytest.mark.parametrize("architecture", ["compute_90", "compute_100", "compute_120"])
    def test_no_load_or_store_wants_more_than_the_16_bytes_that_the_launcher_guarantees(
        self, architecture: str
    ) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        ptx, _ = compile.compile_source(source, Variant("double", 16, 16, 1), architecture)
        moves = set(re.findall(rb"(?:ld|st)\.global[.\w]*", ptx))
        assert any(b".v2.f64" in move for move in moves)
        assert not [move for move in moves if b".v4.f64" in move or b".v8" in move]

    def test_the_names_of_the_kernels(self) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        _, used = compile.compile_source(source, VARIANT, "sm_90")
        assert set(compile.kernel_names()) == set(used)

    @pytest.mark.parametrize("architecture", compile.ARCHITECTURES)
    def test_every_architecture(self, architecture: str) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        for variant in (Variant("float", 16, 16, 2), Variant("bfloat16", 64, 32, 1)):
            _, used = compile.compile_source(source, variant, architecture)
            assert {name: usage.spill_bytes for name, usage in used.items()} == dict.fromkeys(used, 0)
            if variant.d_k == 16:
                assert used["attention_forward"].registers <= 128  # 16 warps on a multiprocessor


class TestCache:
    def test_compiled_once(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = compile.code(VARIANT, "sm_90", tmp_path)
        monkeypatch.setattr(compile, "compile_source", lambda *_: pytest.fail("compiled again"))
        assert compile.code(VARIANT, "sm_90", tmp_path) == first
        assert [path.suffix for path in tmp_path.rglob("*.*")] == [".cubin"]  # and no temporary file

    def test_source_options_and_architecture_are_the_key(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        monkeypatch.setattr(compile, "compile_source", lambda *what: (seen.append(what) or b"code", {}))
        compile.code(VARIANT, "sm_90", tmp_path)
        compile.code(VARIANT, "sm_80", tmp_path)
        compile.code(Variant("float", 8, 8, 2), "sm_90", tmp_path)
        other = tmp_path / "attention.cu"
        other.write_text("// another source")
        monkeypatch.setattr(compile, "SOURCE", other)
        compile.code(VARIANT, "sm_90", tmp_path)
        assert len(seen) == 4
        compile.code(VARIANT, "sm_90", tmp_path)
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
