"""What `kernels.bench` counts and predicts, from the compiler and from machine code."""

import dataclasses

import pytest
import torch

from kernels import bench, compile, machine_code
from kernels.launch import Variant

pytest.importorskip("cuda.core", reason="cuda-core is not installed")
TICKETS = bench.shape("tickets, padded (1024, 4, 120, 16)", torch.float32)


def machine_code_or_skip(variant: Variant, architecture: str = "sm_90") -> dict[str, list[machine_code.Loop]]:
    try:
        machine_code.disassembler()
    except machine_code.DisassemblerError as error:
        pytest.skip(str(error))
    code, _ = compile.compile_source(compile.SOURCE.read_text(encoding="utf-8"), variant, architecture)
    return machine_code.loops(code)


class TestShape:
    def test_operations_and_bytes_of_the_ticket_shape(self) -> None:
        pairs = 4096 * 120 * 120
        assert TICKETS.operations("attention_forward") == 2 * pairs * (16 + 16)
        assert TICKETS.operations("attention_backward") == 2 * pairs * 5 * 16
        assert TICKETS.least_bytes("attention_forward") == 4096 * 4 * (4 * 120 * 16 + 2 * 120)
        assert TICKETS.least_bytes("attention_backward") == 4096 * 4 * (8 * 120 * 16 + 2 * 120)

    def test_one_backward_kernel_makes_five_products_two_make_seven(self) -> None:
        assert [one.kernel for one in TICKETS.launches(True)] == ["attention_backward"]
        longer = dataclasses.replace(TICKETS, n=512, m=512)
        assert [one.kernel for one in longer.launches(True)] == [
            "attention_backward_q",
            "attention_backward_kv",
        ]
        two = sum(TICKETS.operations(kernel) for kernel in ("attention_backward_q", "attention_backward_kv"))
        assert two / TICKETS.operations("attention_backward") == 7 / 5

    def test_causal_halves_the_work(self) -> None:
        one = bench.shape("decoder, causal (1, 12, 1024, 64)", torch.float32)
        full = dataclasses.replace(one, causal=False)
        ratio = one.operations("attention_forward") / full.operations("attention_forward")
        assert ratio == pytest.approx(0.5, abs=0.001)


def test_occupancy() -> None:
    usage = compile.Usage(registers=255, stack_bytes=0, spill_bytes=0, shared_bytes=8192)
    assert bench.resident_warps(usage, 32, "sm_90") == 8  # by registers: 65,536 / (256 * 32)
    assert bench.resident_warps(usage, 128, "sm_90") == 8
    small = dataclasses.replace(usage, registers=32, shared_bytes=16 * 1024)
    assert bench.resident_warps(small, 128, "sm_75") == 16  # by shared memory: 4 blocks of 4 warps


class TestMachineCode:
    """The targets: at most 1.5 instructions for each multiply-add, and 16 warps on a multiprocessor."""

    def test_the_forward_loop_for_16_numbers(self) -> None:
        (plan,) = TICKETS.launches(False, 132)
        main = machine_code_or_skip(plan.variant)["attention_forward"][0]
        useful = 2 * 4 * 2 * 16  # rows, keys at a time, products, numbers
        assert useful <= main.multiply_adds <= main.instructions <= 1.5 * useful
        assert main.special == 2 * 4 + 2  # a power of two for each score, and one to rescale each row
        assert main.counts["LDG"] == 0  # no mask on the shortest way

    @pytest.mark.parametrize("type", ["float", "bfloat16", "float16"])
    def test_16_warps_forward_and_12_backward(self, type: str) -> None:
        source = compile.SOURCE.read_text(encoding="utf-8")
        _, used = compile.compile_source(source, Variant(type, 16, 16, 2), "sm_90")
        warps = {name: bench.resident_warps(usage, 128, "sm_90") for name, usage in used.items()}
        assert warps["attention_forward"] >= 16
        assert min(warps.values()) >= 12

    def test_the_main_loop_of_every_kernel_is_found(self) -> None:
        found = machine_code_or_skip(Variant("float", 16, 16, 2))
        useful = {"forward": 256, "backward_q": 2 * 4 * 3 * 8, "backward_kv": 2 * 4 * 4 * 8}
        for name, multiply_adds in (useful | {"backward": 2 * 4 * 4 * 8}).items():
            assert multiply_adds <= found[f"attention_{name}"][0].multiply_adds < 1.3 * multiply_adds
        assert found["attention_backward"][1].multiply_adds % 16 == 0  # dQ: 4 x 4 numbers for each key

    def test_the_way_through_a_loop_skips_what_is_conditional(self) -> None:
        code = "\n".join(
            [
                "attention_x:",
                "        /*0000*/                   MOV R1, R2 ;",
                ".L_x_1:",
                "        /*0010*/                   LDS.U.128 R4, [R2] ;",
                "        /*0020*/              @!P0 BRA `(.L_x_2) ;",
                "        /*0030*/                   LDG.E R3, [R4] ;",
                ".L_x_2:",
                "        /*0040*/                   FFMA R0, R4, R5, R0 ;",
                "        /*0050*/               @P1 BRA `(.L_x_1) ;",
                "        /*0060*/                   EXIT ;",
            ]
        )
        (loop,) = machine_code._loops(code)
        assert loop.counts == {"LDS.128": 1, "BRA": 2, "FFMA": 1}
        assert loop.shared_cycles == 2

    def test_without_a_disassembler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine_code.shutil, "which", lambda name: None)
        monkeypatch.setattr(machine_code.importlib.util, "find_spec", lambda name: None)
        machine_code.disassembler.cache_clear()
        with pytest.raises(machine_code.DisassemblerError, match="pip install nvidia-cuda-nvdisasm"):
            machine_code.disassembler()
        machine_code.disassembler.cache_clear()

    def test_what_is_no_machine_code(self) -> None:
        machine_code_or_skip(Variant("float", 8, 8, 1))
        with pytest.raises(machine_code.DisassemblerError, match="nvdisasm"):
            machine_code.loops(b"not a cubin")


class TestPredictions:
    def test_no_time_is_below_the_limits(self) -> None:
        for name in bench.SHAPES:
            one = bench.shape(name, torch.float32)
            for backward in (False, True):
                for plan in one.launches(backward, 132):
                    found = bench.predict(
                        one, plan, machine_code_or_skip(plan.variant)[plan.kernel], bench.Rates()
                    )
                    assert found.seconds >= max(found.bytes, found.arithmetic), (name, plan)
                    assert found.per_multiply_add > 1

    def test_twice_the_clock_halves_what_is_not_bytes(self) -> None:
        (plan,) = TICKETS.launches(False, 132)
        loops = machine_code_or_skip(plan.variant)[plan.kernel]
        slow, fast = (bench.predict(TICKETS, plan, loops, bench.Rates(hertz=x)) for x in (1e9, 2e9))
        assert fast.bytes == slow.bytes
        assert fast.instructions == slow.instructions / 2

    def test_the_tables(self, capsys: pytest.CaptureFixture[str]) -> None:
        machine_code_or_skip(Variant("float", 8, 8, 1))
        assert bench.print_usage("sm_86", [(8, 8)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 + 4 * (3 * 2 + 1)  # a header; rows 1 and 2 of three types, row 1 of float64
        bench.print_predictions("sm_86", bench.Rates(1e12, 10, 1e9))
        printed = capsys.readouterr().out
        assert "PREDICTED for 10 multiprocessors at 1 GHz and 1000 GB/s; nothing here is measured" in printed
        assert all(name in printed for name in bench.SHAPES)
