"""gpu-check cannot run here: its parts run on the CPU, with the emulator in the kernel's place."""

import dataclasses
import re

import pytest
import torch

from kernels import bench, cases, emulator, gpu_check, launch
from kernels.cases import Case
from kernels.gpu_check import Clock, Timing

CPU = torch.device("cpu")
RATES = {"bytes": 1e9, "torch.float32": 1e9, "torch.bfloat16": 1e9}
TINY = bench.Shape(2, 2, 12, 12, 8, 8, torch.float32)


def test_without_a_gpu_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert gpu_check.main([]) == 2
    assert "make kernel-check" in capsys.readouterr().out


def test_the_grid_has_every_type_mask_layout_and_size_in_few_variants() -> None:
    drawn = list(gpu_check.small_grid(1))
    for name, values in (("dtype", launch.TYPES), ("mask", cases.MASKS), ("layout", cases.LAYOUTS)):
        assert {getattr(case, name) for case in drawn} == set(values)
    assert {case.n for case in drawn} == set(cases.SIZES)
    assert {(case.lengths, case.causal) for case in drawn} == {
        (lengths, causal) for lengths in cases.LENGTHS for causal in (False, True)
    }
    assert len(set().union(*map(gpu_check.variants, drawn))) <= 4 * 7 * 3


@pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")
def test_wrong_results_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def make() -> emulator.Emulator:
        devices.append(emulator.Emulator())
        return devices[-1]

    drawn = [Case(n=5, m=6), Case(torch.bfloat16, n=7, m=3, causal=True)]
    count, wrong, worst = gpu_check.right(drawn, 1, make, CPU, Clock(), 1000)
    assert (count, wrong) == (2, [])
    assert set(worst) == {torch.float32, torch.bfloat16}
    assert gpu_check.right(drawn, 1, make, CPU, Clock(), -1)[0] == 0  # no time left

    run = cases.run
    monkeypatch.setattr(cases, "run", lambda *x: {k: y + 1e-3 * torch.rand(1) for k, y in run(*x).items()})
    _, wrong, _ = gpu_check.right(drawn[:1], 1, make, CPU, Clock(), 1000)
    assert "q_grad" in wrong[0]
    assert "differs between two runs" in wrong[-1]
    for device in devices:
        device.close()


def test_variants_are_compiled_into_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    monkeypatch.setenv("LARKFIELD_CACHE", str(tmp_path))
    drawn = [Case(d_k=8, d_v=8, n=5, m=100)]  # one row a thread for the queries, four for the keys
    assert gpu_check.compile_ahead(drawn, "sm_80", Clock(), 1000) == 2
    assert len(list((tmp_path / "cubin").iterdir())) == 2  # type: ignore[operator]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_timing(backward: bool, causal: bool) -> None:
    one = dataclasses.replace(TINY, causal=causal)
    timing = gpu_check.time_shape("tickets, padded (1024, 4, 120, 16)", one, backward, CPU, RATES, rounds=3)
    assert timing.ours_ms > 0
    assert timing.least_ms > 0
    assert timing.others_ms["math"] is not None
    assert set(timing.others_ms) >= set(gpu_check.BACKENDS)
    assert ("flash without its mask" in timing.others_ms) == (not causal)
    assert timing.best is not None
    assert re.search(r"of the best \((math|flash|efficient)\)", timing.line())


def test_verdicts() -> None:
    short, long = (list(bench.SHAPES)[i] for i in (0, 2))
    good = Timing(short, "torch.float32", False, 1.0, {"math": 2.0, "flash": None}, 0.6, 0.5)
    slow = Timing(short, "torch.float32", True, 3.0, {"math": 2.0, "flash without its mask": 1.0}, 1.0, 0.1)
    decoder = Timing(long, "torch.float32", False, 3.0, {"flash": 1.0}, 1.6, 0.1)
    met = [line.split()[0] for line in gpu_check.verdicts([good, slow, decoder])]
    assert met == ["met", "met", "MISSED", "MISSED", "met"]  # no target against PyTorch beyond n = 128
    assert "flash -" in good.line()
    assert slow.best == ("math", 2.0)


def test_both_encoders_compute_the_same() -> None:
    torch.manual_seed(0)
    ours, theirs = gpu_check.Encoder(True), gpu_check.Encoder(False)
    theirs.load_state_dict(ours.state_dict())
    ids, lengths = torch.randint(2, 3000, (4, 20)), torch.tensor([20, 1, 7, 13])
    torch.testing.assert_close(ours(ids, lengths), theirs(ids, lengths))


def test_an_epoch_is_timed() -> None:
    for ours in (False, True):
        assert gpu_check.epoch_seconds(ours, CPU, tickets=32, batch=8, n=12) > 0


def test_rates_are_measured() -> None:
    assert all(rate > 0 for rate in gpu_check.measured_rates(CPU, size=256).values())


class TestStatic:
    def test_operations_and_bytes_of_the_ticket_shape(self) -> None:
        one = bench.shape("tickets, padded (1024, 4, 120, 16)", torch.float32)
        assert one.operations("attention_forward") == 2 * 4096 * 120 * 120 * (16 + 16)
        assert one.least_bytes("attention_forward") == 4096 * 4 * (4 * 120 * 16 + 2 * 120)
        assert one.moved_bytes("attention_forward") == one.least_bytes(
            "attention_forward"
        )  # a block to a head
        assert one.seconds("attention_forward", 1e9, 1e30) == one.least_bytes("attention_forward") / 1e9

    def test_causal_halves_the_work(self) -> None:
        one = bench.shape("decoder, causal (8, 12, 1024, 64)", torch.float32)
        full = dataclasses.replace(one, causal=False)
        ratio = one.operations("attention_forward") / full.operations("attention_forward")
        assert ratio == pytest.approx(0.5, abs=0.001)

    def test_occupancy(self) -> None:
        usage = bench.compile.Usage(registers=255, stack_bytes=0, spill_bytes=0, shared_bytes=8192)
        assert bench.resident_warps(usage, 32, "sm_90") == 8  # by registers: 65,536 / (256 * 32)
        assert bench.resident_warps(usage, 128, "sm_90") == 8
        small = dataclasses.replace(usage, registers=32, shared_bytes=16 * 1024)
        assert bench.resident_warps(small, 128, "sm_75") == 16  # by shared memory: 4 blocks of 4 warps

    def test_the_table_names_every_kernel(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("cuda.core", reason="cuda-core is not installed")
        assert bench.print_usage("sm_86", [(8, 8)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 + 3 * 7 + 3  # a header; rows 1, 2 and 4 of three types, row 1 of float64
        bench.print_predictions("sm_86", 1000, 10)
        assert "PREDICTION, nothing here is measured" in capsys.readouterr().out
