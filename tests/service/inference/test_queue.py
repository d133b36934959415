"""The queue: bounded, on time, batched greedily by length, and never held up by a long ticket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.tokenizer import Encoding
from service.api.problems import Problem
from service.api.schema import RouteRequest
from service.inference import queue
from service.inference.admission import LONG_TEXT, Admission, most_connections
from service.inference.queue import PADDING_WORTH_A_RUN, Engine, Job, split
from service.inference.runtime import Runtime, pad
from service.observe.metrics import Metrics
from service.settings import Settings


class Graph:
    """Stands in for a runtime: logits are each ticket's length; a run may be held up by `gate`."""

    def __init__(self, batch_tickets: int = 16, batch_tokens: int = 512) -> None:
        self.batch_tickets = batch_tickets
        self.batch_tokens = batch_tokens
        self.provider = "CPU"
        self.runs: list[tuple[int, int]] = []
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False

    def run(self, ids: np.ndarray) -> np.ndarray:
        self.runs.append(ids.shape)
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(60)
        if self.fail:
            raise RuntimeError("broken")
        return (ids != 0).sum(axis=1, keepdims=True).astype(np.float32)


def encoding(tokens: int) -> Encoding:
    return Encoding([2] * tokens, [(0, 1)] * tokens, "x", 0, tokens)


@pytest.fixture(autouse=True)
def no_spare_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches run on the event loop's thread, unless a test says otherwise."""
    monkeypatch.setattr(queue, "usable_cores", lambda: 1)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


Body = Callable[[Engine, Any], Awaitable[None]]


def run(metrics: Metrics, body: Body, graph: Graph | None = None, **settings: Any) -> Graph:
    """Run `body(engine, graph)` on an event loop."""
    graph = graph or Graph()

    async def main() -> None:
        engine = Engine(Settings(**settings), metrics)
        try:
            await asyncio.wait_for(body(engine, cast(Runtime, graph)), 60)
        finally:
            graph.gate.set()
            engine.close()

    asyncio.run(main())
    return graph


def soon() -> float:
    return perf_counter() + 60


def submit(engine: Engine, graph: Any, *lengths: int) -> list[Job]:
    return [engine.submit(graph, encoding(n), soon()) for n in lengths]


async def logits(jobs: list[Job]) -> list[float]:
    return [float((await job.done)[0]) for job in jobs]


def test_each_ticket_gets_its_own_logits(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        lengths = [5, 80, 3, 41, 100, 1, 60]
        assert await logits(submit(engine, graph, *lengths)) == lengths

    run(metrics, body)


def test_what_waits_is_run_together_without_waiting_for_more(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        await logits(submit(engine, graph, 10))
        await logits(submit(engine, graph, 10, 12, 14))

    assert run(metrics, body).runs == [(1, 10), (3, 14)]


def test_short_tickets_do_not_carry_a_long_ones_padding(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        await logits(submit(engine, graph, 100, 8, 95, 10))

    assert run(metrics, body, inline_tokens=512).runs == [(2, 100), (2, 10)]


def test_the_connections_are_looked_at_between_runs(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        jobs = submit(engine, graph, *[60] * 8)
        await jobs[0].done
        assert len(graph.runs) < 8
        assert await logits(jobs) == [60] * 8

    assert run(metrics, body, inline_tokens=120).runs == [(2, 60)] * 4


def test_a_run_keeps_its_budget(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        await logits(submit(engine, graph, *[10] * 20))

    runs = run(metrics, body, Graph(batch_tickets=8, batch_tokens=50)).runs
    assert all(tickets * tokens <= 50 for tickets, tokens in runs)
    assert sum(tickets for tickets, _ in runs) == 20


def test_admission_takes_all_places_or_none_and_gets_them_back(metrics: Metrics) -> None:
    admission = Admission(Settings(max_queue=3, max_explanations=1), metrics)
    explained = admission.ticket(RouteRequest(text="a", explain="tokens"))
    with pytest.raises(Problem) as refused:
        admission.ticket(RouteRequest(text="a" * (LONG_TEXT + 1), explain="tokens"))
    assert refused.value.status == 503
    assert (b"retry-after", b"1") in refused.value.header_list
    assert admission.taken == {**dict.fromkeys(admission.limits, 0), "queue": 1, "explanations": 1}
    with admission.ticket(RouteRequest(text="a")), admission.ticket(RouteRequest(text="b")):
        with pytest.raises(Problem):
            admission.ticket(RouteRequest(text="c"))
    explained.hold()
    explained.release()
    assert admission.taken["explanations"] == 1, "work in a thread still holds it"
    explained.release()
    assert not any(admission.taken.values())
    assert b'larkfield_refused_total{reason="queue_full"} 1.0' in metrics.render()
    assert b'larkfield_refused_total{reason="explanations_full"} 1.0' in metrics.render()


def test_connections_are_no_more_than_the_open_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    assert most_connections(4096) == 768
    assert most_connections(100) == 100
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    assert most_connections(4096) == 4096


def test_a_ticket_of_a_batch_waits_for_its_place(metrics: Metrics) -> None:
    admission = Admission(Settings(max_queue=1), metrics)
    ticket = RouteRequest(text="a")

    async def body() -> None:
        held = admission.ticket(ticket)
        asyncio.get_running_loop().call_later(0.05, held.release)
        with await admission.batch_ticket(ticket, 60):
            with pytest.raises(Problem) as refused:
                await admission.batch_ticket(ticket, 0.01)
        assert refused.value.status == 503

    asyncio.run(body())
    assert not any(admission.taken.values())


def test_a_deadline_ends_the_wait_and_frees_the_place(metrics: Metrics) -> None:
    graph = Graph()
    graph.provider = "CUDA"
    graph.gate.clear()

    async def body(engine: Engine, graph: Any) -> None:
        running = submit(engine, graph, 5)[0]
        while not graph.runs:
            await asyncio.sleep(0.001)
        late = [engine.submit(graph, encoding(5), perf_counter() + 0.05) for _ in range(2)]
        for job in late:
            with pytest.raises(Problem) as problem:
                await job.done
            assert problem.value.status == 504
        assert engine.depth == 0
        after = submit(engine, graph, 7)
        graph.gate.set()
        assert await logits([running, *after]) == [5, 7]

    run(metrics, body, graph)
    assert (2, 5) not in graph.runs, "a ticket whose deadline passed was run all the same"


def test_a_long_ticket_blocks_nobody(metrics: Metrics) -> None:
    graph = Graph()

    async def body(engine: Engine, graph: Any) -> None:
        graph.gate.clear()
        (long,) = submit(engine, graph, 400)
        while not graph.runs:
            await asyncio.sleep(0.001)
        graph.gate.set()
        short = submit(engine, graph, 5, 6)
        assert await logits(short) == [5, 6]
        assert await logits([long]) == [400]

    run(metrics, body, graph)
    by_shape = dict(zip(graph.runs, graph.threads, strict=True))
    assert by_shape[1, 400].startswith("larkfield-long")
    assert by_shape[2, 6] == threading.current_thread().name


def test_a_thread_and_the_event_loop_share_what_waits(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "usable_cores", lambda: 2)
    here = threading.current_thread().name

    class Shared(Graph):
        """The thread's run ends only after one in the event loop's thread."""

        def run(self, ids: np.ndarray) -> np.ndarray:
            if threading.current_thread().name == here:
                self.gate.set()
            return super().run(ids)

    graph = Shared(batch_tokens=120)
    graph.gate.clear()

    async def body(engine: Engine, graph: Any) -> None:
        assert await logits(submit(engine, graph, *[60] * 6)) == [60] * 6
        while engine._batches.busy:
            await asyncio.sleep(0.001)
        assert await logits(submit(engine, graph, 70)) == [70]

    run(metrics, body, graph, inline_tokens=120)
    by_thread = list(zip(graph.threads, graph.runs, strict=True))
    assert sum(tickets for name, (tickets, _) in by_thread if name.startswith("larkfield-batch")) >= 2
    assert sum(tickets for name, (tickets, _) in by_thread if name == here) >= 3
    assert by_thread[-1] == (here, (1, 70))  # a ticket alone is not handed over


def test_a_gpu_is_waited_for_in_a_thread(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        assert await logits(submit(engine, graph, *[60] * 8)) == [60] * 8
        assert await logits(submit(engine, graph, 70)) == [70]

    graph = Graph()
    graph.provider = "CUDA"
    run(metrics, body, graph)
    assert all(name.startswith("larkfield-batch") for name in graph.threads)


def test_two_runtimes_are_never_mixed(metrics: Metrics) -> None:
    old, new = Graph(), Graph()

    async def body(engine: Engine, _: Any) -> None:
        jobs = [engine.submit(cast(Any, graph), encoding(5), soon()) for graph in (old, old, new, old)]
        assert await logits(jobs) == [5] * 4

    run(metrics, body)
    assert old.runs == [(2, 5), (1, 5)]
    assert new.runs == [(1, 5)]


def test_a_ticket_that_is_alone_need_not_queue(metrics: Metrics) -> None:
    async def body(engine: Engine, graph: Any) -> None:
        job = engine.run_now(graph, encoding(9))
        assert job is not None
        assert await logits([job]) == [9]
        assert engine.run_now(graph, encoding(400)) is None, "a long ticket would block the others"
        submit(engine, graph, 5)
        assert engine.run_now(graph, encoding(9)) is None, "others came first"
        graph.fail = True
        await asyncio.sleep(0.01)
        failed = engine.run_now(graph, encoding(9))
        assert failed is not None
        with pytest.raises(RuntimeError, match="broken"):
            await failed.done

    run(metrics, body)


def test_an_error_reaches_the_tickets_of_that_run_only(metrics: Metrics) -> None:
    graph = Graph()

    async def body(engine: Engine, graph: Any) -> None:
        graph.fail = True
        jobs = submit(engine, graph, 5, 6)
        for job in jobs:
            with pytest.raises(RuntimeError, match="broken"):
                await job.done
        graph.fail = False
        assert await logits(submit(engine, graph, 7)) == [7]

    run(metrics, body, graph)


def test_a_late_thread_is_replaced_and_its_permit_held_until_it_ends(metrics: Metrics) -> None:
    gate = threading.Event()
    admission = Admission(Settings(max_explanations=2), metrics)
    ticket = RouteRequest(text="a", explain="tokens")

    async def body(engine: Engine, _: Any) -> None:
        with admission.ticket(ticket) as permit:
            with pytest.raises(Problem) as late:
                await engine.explain(lambda: gate.wait(60), perf_counter() + 0.05, permit)
        assert late.value.status == 504
        assert admission.taken["explanations"] == 1
        with admission.ticket(ticket) as permit:
            assert await engine.explain(lambda: 2, soon(), permit) == 2, "another thread goes on"
        gate.set()
        while any(admission.taken.values()):
            await asyncio.sleep(0.01)

    run(metrics, body)
    assert b'larkfield_threads_replaced_total{kind="explanations"} 1.0' in metrics.render()


def test_an_explanation_that_waits_is_dropped_when_it_is_late(metrics: Metrics) -> None:
    gate, ran = threading.Event(), []

    async def body(engine: Engine, _: Any) -> None:
        admission = Admission(Settings(), metrics)
        permit = admission.ticket(RouteRequest(text="a", explain="tokens"))
        first = asyncio.ensure_future(engine.explain(lambda: gate.wait(60), soon(), permit))
        await asyncio.sleep(0)
        with pytest.raises(Problem):
            await engine.explain(lambda: ran.append(1), perf_counter() + 0.05, permit)
        gate.set()
        assert await first

    run(metrics, body)
    assert ran == []


def test_splitting_keeps_every_job_and_little_padding() -> None:
    rng = np.random.default_rng(0)
    jobs = [cast(Job, SimpleNamespace(ids=[1] * int(n))) for n in rng.integers(1, 121, 50)]
    runs = split(jobs)
    assert sorted(map(id, jobs)) == sorted(id(job) for group in runs for job in group)
    for group in runs:
        lengths = [len(job.ids) for job in group]
        assert lengths[0] == max(lengths)
        assert max(lengths) - min(lengths) <= PADDING_WORTH_A_RUN


def test_padding_is_zero_and_an_empty_ticket_is_one_padding_token() -> None:
    assert pad([[3, 4], [5]]).tolist() == [[3, 4], [5, 0]]
    assert pad([[]]).tolist() == [[0]]
    assert pad([[7]]).dtype == np.int64
