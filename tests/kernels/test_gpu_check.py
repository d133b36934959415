"""gpu-check cannot run here: its stages run on the CPU, with the emulator in the kernel's place."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import time
import types
from typing import Any

import pytest
import torch

from kernels import bench, cases, emulator, launch
from kernels.cases import Case
from kernels.gpu_check import __main__ as command
from kernels.gpu_check import correct, fast, place, record, stages, whole
from kernels.gpu_check.correct import Visit
from kernels.gpu_check.record import FAIL, NOT_RUN, PASS, Failed, NotRun, Record

CPU = torch.device("cpu")
needs_emulator = pytest.mark.skipif(
    emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)"
)


@pytest.fixture
def visit(tmp_path: pathlib.Path) -> Visit:
    return Visit(
        place.InEmulator(), Record(tmp_path / "out.jsonl", "test"), 1, time.monotonic() + 1000, "sm_90"
    )


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class TestCommand:
    def test_without_a_gpu_it_says_so_and_fails(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        assert command.main(["--out", str(tmp_path / "out.jsonl")]) == 2
        assert "make kernel-check" in capsys.readouterr().out

    def test_a_file_that_exists_is_not_written_over(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "out.jsonl"
        path.write_text("measured before")
        with pytest.raises(SystemExit):
            command.main(["--dry-run", "--out", str(path)])
        assert "exists already" in capsys.readouterr().err
        assert path.read_text() == "measured before"

    @needs_emulator
    def test_a_visit_in_processes_of_their_own(self, tmp_path: pathlib.Path) -> None:
        """As on a GPU: one command, a file that says what ran on what, and a result for each stage."""
        path = tmp_path / "out.jsonl"
        asked = ["--dry-run", "--seed", "5", "--out", str(path), "--only", "context", "memcheck"]
        done = subprocess.run(
            [sys.executable, "-m", "kernels.gpu_check", *asked],
            cwd=correct.ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        first, *rest = lines(path)
        assert first["stage"] == "run"
        assert (first["seed"], first["dry_run"]) == (5, True)
        assert {
            "commit",
            "attention.cu",
            "torch",
            "cuda-core",
            "architecture" if first["gpu"] else "gpu",
        } <= set(first)
        assert record.results(path) == {"context": PASS, "memcheck": PASS}
        assert [line["code"] for line in rest if line.get("figure") == "exit status"] == [0]
        assert "PASS     context, memcheck" in done.stdout

    def test_what_there_is_no_time_for_is_not_run(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            command, "machine", lambda: {"gpu": "a device", "torch": "2", "architecture": "sm_90"}
        )
        path = tmp_path / "out.jsonl"
        assert command.visit(path, 1, 5.0, False, stages.STAGES) == 0
        assert set(record.results(path).values()) == {NOT_RUN}

    def test_the_most_important_stage_comes_first(self) -> None:
        names = [stage.name for stage in stages.STAGES]
        order = ["context", "grid", "graph", "memcheck", "times", "epoch", "bundle"]
        assert [name for name in names if name in order] == order
        assert sum(stage.seconds for stage in stages.STAGES) <= command.SECONDS


class TestApart:
    def test_a_stage_that_dies_is_a_failure(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "out.jsonl"
        unknown = stages.Stage("unknown", correct.grid, 60)
        assert stages.run_apart(unknown, path, 1, 60, "sm_90", dry=True) == FAIL
        (line,) = lines(path)
        assert line["result"] == FAIL
        assert "died with status 1" in line["reason"]
        assert "KeyError" in line["reason"]

    def test_a_stage_that_does_not_end_is_stopped(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[subprocess.Popen[bytes]] = []

        def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            started.append(original(*arguments, **options))
            return started[-1]

        original = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", popen)
        monkeypatch.setattr(stages, "GRACE_SECONDS", 0.0)
        monkeypatch.setattr(stages, "SAMPLE_SECONDS", 0.05)
        monkeypatch.setattr(stages, "nvidia_smi", lambda *fields: dict.fromkeys(fields, "1980 MHz"))
        path = tmp_path / "out.jsonl"
        assert stages.run_apart(stages.named("grid"), path, 1, 0.2, "sm_90", dry=True) == FAIL
        *samples, last = lines(path)
        assert "not done within" in last["reason"]
        assert samples[0]["clocks.sm"] == "1980 MHz"
        assert started[0].returncode == -9

    @pytest.mark.parametrize(
        ("error", "result"), [(NotRun("no tool"), NOT_RUN), (Failed("wrong"), FAIL), (OSError("gone"), FAIL)]
    )
    def test_how_a_stage_ends(self, tmp_path: pathlib.Path, error: Exception, result: str) -> None:
        def work(visit: Visit) -> None:
            raise error

        noted = Record(tmp_path / "out.jsonl", "one")
        assert stages.run_here(stages.Stage("one", work, 1), noted, 1, 1, "sm_90", dry=True) == result
        (line,) = lines(tmp_path / "out.jsonl")
        assert str(error) in line["reason"]


@needs_emulator
@pytest.mark.parametrize("stage", stages.STAGES, ids=lambda stage: stage.name)
def test_every_stage_runs_dry(stage: stages.Stage, tmp_path: pathlib.Path) -> None:
    noted = Record(tmp_path / "out.jsonl", stage.name)
    result = stages.run_here(stage, noted, 7, 1000, "sm_90", dry=True)
    *figures, last = lines(tmp_path / "out.jsonl")
    if result == NOT_RUN:
        pytest.skip(last["reason"])
    assert result == PASS, last["reason"]
    assert figures


class TestCorrect:
    def test_the_grid_has_every_type_mask_layout_and_size_in_few_variants(self) -> None:
        drawn = list(correct.small_grid(1))
        for name, values in (("dtype", launch.TYPES), ("mask", cases.MASKS), ("layout", cases.LAYOUTS)):
            assert {getattr(case, name) for case in drawn} == set(values)
        assert {case.n for case in drawn} == set(cases.SIZES)
        assert {(case.lengths, case.causal) for case in drawn} == {
            (lengths, causal) for lengths in cases.LENGTHS for causal in (False, True)
        }
        assert len({variant for case in drawn for variant in correct.variants(case)}) <= 4 * 7 * 3

    @needs_emulator
    def test_wrong_results_are_reported(self, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = [Case(n=5, m=6), Case(torch.bfloat16, n=7, m=3, causal=True)]
        count, wrong, worst = correct.right(drawn, visit)
        assert (count, wrong) == (2, [])
        assert set(worst) == {torch.float32, torch.bfloat16}
        late = dataclasses.replace(visit, deadline=0.0)
        assert correct.right(drawn, late)[0] == 0
        monkeypatch.setattr(correct, "far_batches_problem", lambda _: None)
        with pytest.raises(NotRun, match="no time"):
            correct.grid(late)

        run = cases.run
        monkeypatch.setattr(
            cases, "run", lambda *x: {k: y + 1e-3 * torch.rand(1) for k, y in run(*x).items()}
        )
        _, wrong, _ = correct.right(drawn[:1], visit)
        assert "q_grad" in wrong[0]
        assert "differs between two runs" in wrong[-1]
        with pytest.raises(Failed, match="q_grad"):
            correct.grid(visit)

    @needs_emulator
    def test_an_unwritten_output_is_seen(self, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(emulator.Emulator, "launch", lambda *_: None)
        assert "inf" in correct.right([Case(n=5, m=6)], visit)[1][0]

    @needs_emulator
    def test_attention_that_is_pytorchs_own_fails_the_first_stage(
        self, visit: Visit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(visit.place, "attending", contextlib.nullcontext)
        with pytest.raises(Failed, match=r"attention\.cu did not run"):
            correct.context(visit)

    @needs_emulator
    def test_a_replay_that_does_nothing_fails(self, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
        capture = visit.place.capture
        monkeypatch.setattr(
            visit.place, "capture", lambda *x: dataclasses.replace(capture(*x), replay=lambda: None)
        )
        with pytest.raises(Failed, match="a replay differs"):
            correct.graph(visit)

    @pytest.mark.parametrize("layout", cases.LAYOUTS)
    def test_inputs_lie_on_the_device_as_they_were_drawn(self, layout: str) -> None:
        x = cases.draw(Case(layout=layout), 1).q
        moved = place.move(x, CPU)
        assert torch.equal(moved, x)
        assert moved.stride() == x.stride()
        assert moved.data_ptr() % 64 == x.data_ptr() % 64
        assert moved.data_ptr() != x.data_ptr()

    def test_what_compute_sanitizer_says(self, visit: Visit) -> None:
        correct.judge_sanitizer(0, "========= ERROR SUMMARY: 0 errors", visit.record)
        with pytest.raises(Failed, match="Invalid __global__ read"):
            correct.judge_sanitizer(9, "========= Invalid __global__ read of size 16", visit.record)
        with pytest.raises(NotRun, match="does not support"):
            correct.judge_sanitizer(1, "========= Error: Device not supported", visit.record)
        with pytest.raises(Failed, match="exit status 139"):
            correct.judge_sanitizer(139, "", visit.record)

    def test_without_compute_sanitizer(self, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(visit.place, "dry", False)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(NotRun, match="not on the PATH"):
            correct.sanitizer("memcheck")(visit)

    def test_the_sanitizer_watches_the_few_cases(
        self, visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        """A program in compute-sanitizer's place keeps what it was called with."""
        program = tmp_path / "compute-sanitizer"
        program.write_text(f'#!/bin/sh\necho "$@" $PYTORCH_NO_CUDA_MEMORY_CACHING > {tmp_path}/asked\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(visit.place, "dry", False)
        correct.sanitizer("racecheck")(visit)
        asked = (tmp_path / "asked").read_text().split()
        assert asked[:4] == ["--tool", "racecheck", "--error-exitcode", "9"]
        assert asked[4:8] == [sys.executable, "-m", "kernels.gpu_check", "--stage"]
        assert asked[8] == "few"
        assert asked[-3:] == ["--architecture", "sm_90", "1"]

    def test_a_sanitizer_that_takes_too_long_is_stopped(
        self, visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        program = tmp_path / "compute-sanitizer"
        program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(visit.place, "dry", False)
        with pytest.raises(NotRun, match="not done in time"):
            correct.sanitizer("memcheck")(dataclasses.replace(visit, deadline=time.monotonic() + 1))
        child = int((tmp_path / "child").read_text())
        state = pathlib.Path(f"/proc/{child}/stat")
        until = time.monotonic() + 30  # a killed process ends when the machine has a core for it
        while (
            running := state.exists() and state.read_text().split()[2] != "Z"
        ) and time.monotonic() < until:
            time.sleep(0.05)
        assert not running


class FakeEvent:
    """A CUDA event by a clock that each replay moves on by 0.5 ms."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = FakeEvent.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return end.time - self.time


class TestOnGpu:
    """What only a GPU can do, with PyTorch's side of it replaced."""

    @pytest.fixture
    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> place.OnGpu:
        graphs = types.SimpleNamespace(replay=lambda: setattr(FakeEvent, "now", FakeEvent.now + 0.5))
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, stand_in in {
            "Stream": lambda: stream,
            "current_stream": lambda: stream,
            "stream": lambda _: contextlib.nullcontext(),
            "CUDAGraph": lambda: graphs,
            "graph": lambda _: contextlib.nullcontext(),
            "Event": FakeEvent,
            "get_device_properties": lambda _: types.SimpleNamespace(multi_processor_count=132),
            "synchronize": lambda: None,
        }.items():
            assert hasattr(torch.cuda, name)
            monkeypatch.setattr(torch.cuda, name, stand_in)
        return place.OnGpu()

    def test_work_runs_before_it_is_captured(self, on_gpu: place.OnGpu) -> None:
        runs: list[int] = []
        captured = on_gpu.capture(lambda: (torch.tensor(len(runs)), runs.append(1))[:1])
        assert len(runs) == 4
        assert captured.results == (torch.tensor(3),)
        assert on_gpu.milliseconds(captured.replay, rounds=3) == pytest.approx(0.5)
        runs.clear()
        on_gpu.capture(lambda: (torch.tensor(len(runs)), runs.append(1))[:1], first_runs=0)
        assert len(runs) == 1

    def test_outputs_are_nan_until_they_are_written(
        self, on_gpu: place.OnGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        on_gpu.device = CPU
        with on_gpu.kernels() as device:
            assert device.empty((2, 3), torch.float32).isnan().all()

    def test_a_refused_capture(self, on_gpu: place.OnGpu) -> None:
        def refused() -> None:
            raise place.LaunchError("call warm_up")

        assert place.refusal(on_gpu, refused) == "call warm_up"
        assert place.refusal(on_gpu, lambda: None) is None


class TestFast:
    def test_the_shapes_that_are_asked_for(self) -> None:
        drawn = list(fast.jobs(dry=False))
        assert len(drawn) == 4 * 2 * 2 * 2
        assert {
            (job.size.batch, job.size.heads, job.size.n, job.size.d_k, job.size.causal) for job in drawn
        } == {
            (1024, 4, 120, 16, False),
            (64, 4, 120, 16, False),
            (64, 4, 512, 16, False),
            (1, 12, 1024, 64, True),
        }

    @needs_emulator
    @pytest.mark.parametrize("weights", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_one_job(self, visit: Visit, causal: bool, weights: bool) -> None:
        size = bench.Shape(2, 2, 12, 12, 8, 8, torch.float32, causal)
        job = fast.Job("small", size, backward=True, weights=weights)
        found = fast.time_job(job, visit.place, {"bytes": 1e9, "torch.float32": 1e9})
        assert found["ours_ms"] > 0
        others = (
            {"formula"} if weights else set(fast.BACKENDS) | (set() if causal else {"flash without its mask"})
        )
        assert set(found["others_ms"]) == others
        assert found["ours_over_best"] == found["ours_ms"] / found["others_ms"][found["best"]]

    def test_bounds(self) -> None:
        size = bench.Shape(1, 1, 8, 8, 8, 8, torch.float32)
        job = fast.Job("one", size, backward=False, weights=True)
        others = {"math": 4.0, "flash": None, "flash without its mask": 1.0}
        moved = 4 * (4 * 64 + 2 * 8) + 4 * 64  # q, k, v, out, two sums of a row; the weights
        found = fast._bounds(job, {"bytes": 1e3, "torch.float32": 1e9}, 1.0, 8.0 * moved, others)
        assert found == {
            "least_ms": moved,
            "ours_over_least": 8.0,
            "best": "math",
            "ours_over_best": 2.0 * moved,
        }
        found = fast._bounds(job, {"bytes": 1e9, "torch.float32": 1e3}, 0.5, 1.0, {"cudnn": None})
        assert found["least_ms"] == 0.5 * 2 * 64 * 16
        assert found["best"] is None

    def test_jobs_without_time_are_said(self, visit: Visit) -> None:
        with pytest.raises(NotRun, match="time for 0 of"):
            fast.times(dataclasses.replace(visit, deadline=0.0))


class TestWhole:
    def test_losses(self) -> None:
        whole.compare_losses([1.0, 0.5], [1.000001, 0.501])
        for here in ([1.001, 0.5], [1.0, 0.6], [1.0, math.nan]):
            with pytest.raises(Failed, match="losses differ"):
                whole.compare_losses([1.0, 0.5], here)

    def test_a_missing_room_is_not_run(self) -> None:
        with pytest.raises(NotRun, match=r"models\.nothing cannot be imported"):
            whole._load("models.nothing")

    def test_a_provider_that_is_not_there(self) -> None:
        ort = types.SimpleNamespace(
            __version__="1.30", get_available_providers=lambda: ["CPUExecutionProvider"]
        )
        with pytest.raises(NotRun, match="has no CUDA provider"):
            whole._cuda_session(ort, None, None)
        ort.get_available_providers = lambda: ["CUDAExecutionProvider"]
        session = types.SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
        ort.InferenceSession = lambda *_, **__: session
        with pytest.raises(NotRun, match="could not load"):
            whole._cuda_session(ort, None, None)

    def test_sessions_that_differ(self, visit: Visit) -> None:
        def session(change: float) -> Any:
            return types.SimpleNamespace(
                get_outputs=lambda: [types.SimpleNamespace(name="logits", shape=["batch", 5])],
                run=lambda _, feed: [feed["input_ids"][:, :5] * (1.0 + change)],
            )

        whole.compare_sessions(visit, session(0), session(1e-6), 2, 8)
        with pytest.raises(Failed, match=r"2 tickets of 8 tokens: .*logits"):
            whole.compare_sessions(visit, session(0), session(1e-3), 2, 8)
