"""The queue before the graph: what waits is batched at once, nothing waits for company.

A ticket is put into a bounded queue; as soon as the engine is free it takes what is there, up to a token
budget, sorts it by length so that little is padding, and runs it. A small batch runs where it is (a hand-off
to a thread costs about as much as the run); a large one goes to a thread where there is a core for it, so
that the event loop goes on reading and writing. A long ticket always goes to a thread of its own and blocks
nobody.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from models.tokenizer import Encoding
from service.metrics import Metrics
from service.problems import Problem, unavailable
from service.runtime import Runtime, pad
from service.settings import Settings

T = TypeVar("T")

# A shorter ticket joins a longer one's run while the padding costs less than a run of its own would.
PADDING_WORTH_A_RUN = 24
_SWEEP_SECONDS = 0.02


@dataclass(slots=True, eq=False)
class Job:
    """One ticket on its way through the graph; times are perf_counter seconds."""

    runtime: Runtime
    ids: list[int]
    done: asyncio.Future[np.ndarray]
    submitted: float
    deadline: float
    began: float = 0.0
    ended: float = 0.0


# Each run with its logits (tickets, teams), or with the error that took their place.
Outcomes = list[tuple[list[Job], object]]


@dataclass(slots=True)
class Lane:
    """One thread that runs the graph, and whether it is at it."""

    name: str
    pool: ThreadPoolExecutor = field(init=False)
    busy: bool = False

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=self.name)


class Aside:
    """Work of one kind in a thread of its own, a bounded number waiting or running."""

    def __init__(self, kind: str, limit: int, settings: Settings, metrics: Metrics) -> None:
        self._kind = kind
        self._limit = limit
        self._retry_after_seconds = settings.retry_after_seconds
        self._metrics = metrics
        self._held = 0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=f"larkfield-{kind}")

    async def run(self, work: Callable[[], T], deadline: float) -> T:
        """The result of `work()`; Problem 503 when full, 504 when late."""
        if self._held >= self._limit:
            self._metrics.refused.inc(f"{self._kind}_full")
            raise unavailable(
                f"Too many {self._kind.replace('_', ' ')} are waiting.", self._retry_after_seconds
            )
        started = self.pool.submit(work)
        running = asyncio.wrap_future(started)
        self._held += 1
        running.add_done_callback(self._free)
        try:
            # Shielded: work that is late still holds its place until its thread is free.
            return await asyncio.wait_for(asyncio.shield(running), max(0.0, deadline - perf_counter()))
        except TimeoutError:
            started.cancel()  # no effect if it has begun
            self._metrics.refused.inc("deadline")
            raise late() from None

    def _free(self, running: asyncio.Future[Any]) -> None:
        self._held -= 1
        if not running.cancelled():
            running.exception()  # of work that nobody waits for any more


class Engine:
    """Runs tickets through their runtime; all methods are called on the event loop's thread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._queue: deque[Job] = deque()
        self._long: deque[Job] = deque()
        self._waiting: list[Job] = []  # all that are not known to be done, for the sweeper
        self._scheduled = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._batch_lane = Lane("larkfield-batch")
        self._long_lane = Lane("larkfield-long")
        self._explanations = Aside("explanations", settings.max_explanations, settings, metrics)
        self._long_texts = Aside("long_texts", settings.max_queue, settings, metrics)
        spare_cores = (os.cpu_count() or 1) > settings.workers
        self._hand_off = settings.handoff == "always" or (settings.handoff == "auto" and spare_cores)

    @property
    def depth(self) -> int:
        """Tickets that wait."""
        return len(self._queue) + len(self._long)

    def refuse_when_full(self) -> None:
        """503 before any work is done for a ticket that would find no place."""
        if self.depth >= self._settings.max_queue:
            self._metrics.refused.inc("queue_full")
            raise unavailable("Too many tickets are waiting.", self._settings.retry_after_seconds)

    def submit(self, runtime: Runtime, encoding: Encoding, deadline: float) -> Job:
        """Queue a ticket; await `job.done` for its logits (teams,). Problem 503 when full, 504 when late."""
        self.refuse_when_full()
        loop = asyncio.get_running_loop()
        job = Job(runtime, encoding.ids, loop.create_future(), perf_counter(), deadline)
        long = len(job.ids) > self._settings.inline_tokens and runtime.provider == "CPU"
        (self._long if long else self._queue).append(job)
        self._waiting.append(job)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._drain)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return job

    async def explain(self, work: Callable[[], T], deadline: float) -> T:
        """Run an explanation in its own thread, a bounded number at a time."""
        return await self._explanations.run(work, deadline)

    async def read_long_text(self, work: Callable[[], T], deadline: float) -> T:
        """Clean and tokenize a long text in a thread, so that the event loop goes on meanwhile."""
        return await self._long_texts.run(work, deadline)

    def close(self) -> None:
        """Stop the threads; what runs is finished."""
        for pool in (self._batch_lane, self._long_lane, self._explanations, self._long_texts):
            pool.pool.shutdown(wait=False, cancel_futures=True)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _drain(self) -> None:
        """Start what can be started now."""
        self._scheduled = False
        if self._long and not self._long_lane.busy:
            self._start(self._long_lane, self._take(self._long))
        if not self._queue or self._batch_lane.busy:
            return
        jobs = self._take(self._queue)
        runs = split(jobs)
        tokens = sum(len(run) * max(1, len(run[0].ids)) for run in runs)
        if self._hand_off and tokens > self._settings.inline_tokens:
            self._start(self._batch_lane, jobs)
            return
        for run in runs:
            self._finish(run, run_jobs(run))
        if self._queue or self._long:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _take(self, queue: deque[Job]) -> list[Job]:
        """The oldest jobs that still matter, within one run's budget, all of one runtime."""
        jobs: list[Job] = []
        longest = 0
        while queue:
            job = queue[0]
            if job.done.done():  # its deadline passed
                queue.popleft()
                continue
            longest = max(longest, len(job.ids))
            runtime = jobs[0].runtime if jobs else job.runtime
            full = len(jobs) >= runtime.batch_tickets or longest * (len(jobs) + 1) > runtime.batch_tokens
            if jobs and (full or job.runtime is not runtime):
                break
            jobs.append(queue.popleft())
        return jobs

    def _start(self, lane: Lane, jobs: list[Job]) -> None:
        if not jobs:
            return
        lane.busy = True
        future = lane.pool.submit(run_all, split(jobs))
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda ran: loop.call_soon_threadsafe(self._ran, lane, jobs, ran))

    def _ran(self, lane: Lane, jobs: list[Job], future: Future[Outcomes]) -> None:
        lane.busy = False
        try:
            results: Outcomes = future.result()
        except BaseException as error:
            results = [(jobs, error)]
        for run, outcome in results:
            self._finish(run, outcome)
        self._drain()

    def _finish(self, run: list[Job], outcome: object) -> None:
        """Hand logits, or the error that took their place, to those who wait."""
        self._metrics.batch_tickets.observe(len(run))
        self._metrics.batch_tokens.observe(len(run) * max(1, len(run[0].ids)))
        for row, job in enumerate(run):
            if job.done.done():
                continue
            if isinstance(outcome, np.ndarray):
                job.done.set_result(outcome[row])
            else:
                job.done.set_exception(
                    outcome if isinstance(outcome, Exception) else RuntimeError("the graph did not run")
                )

    def _sweep(self) -> None:
        """504 for every ticket whose deadline passed; its place is free at once."""
        now = perf_counter()
        expired = [job for job in self._waiting if job.deadline <= now and not job.done.done()]
        for job in expired:
            self._metrics.refused.inc("deadline")
            job.done.set_exception(late())
        if expired:
            self._queue = deque(job for job in self._queue if not job.done.done())
            self._long = deque(job for job in self._long if not job.done.done())
        self._waiting = [job for job in self._waiting if not job.done.done()]
        self._metrics.queue_depth.set(self.depth)
        self._sweeper = None
        if self._waiting:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)


def split(jobs: list[Job]) -> list[list[Job]]:
    """Jobs, longest first, in runs within which padding costs less than one more run."""
    if len(jobs) == 1:
        return [jobs]
    runs: list[list[Job]] = []
    for job in sorted(jobs, key=lambda job: -len(job.ids)):
        if runs and len(runs[-1][0].ids) - len(job.ids) <= PADDING_WORTH_A_RUN:
            runs[-1].append(job)
        else:
            runs.append([job])
    return runs


def run_all(runs: list[list[Job]]) -> Outcomes:
    """Every run with its logits or its error; called in a thread."""
    return [(run, run_jobs(run)) for run in runs]


def run_jobs(run: list[Job]) -> np.ndarray | Exception:
    """Logits (tickets, teams) of one run, and the times on its jobs; an error becomes the value."""
    began = perf_counter()
    try:
        outcome: np.ndarray | Exception = run[0].runtime.run(pad([job.ids for job in run]))
    except Exception as error:
        outcome = error
    ended = perf_counter()
    for job in run:
        job.began, job.ended = began, ended
    return outcome


def late() -> Problem:
    """504: the deadline passed."""
    return Problem(504, "The ticket was not answered within the deadline.")
