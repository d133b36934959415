"""The queue before the graph: what waits is batched at once, nothing waits for company.

A ticket is put into a bounded queue; as soon as the engine is free it takes what is there, up to a token
budget, sorts it by length so that little is padding, and runs it. A ticket alone runs where it is: a hand-off
to a thread costs a good part of the run. Where more than one waits and there is a core for it, a thread takes
from the queue too, and both go on until it is empty; in between, the event loop looks at its connections. A
long ticket always goes to a thread of its own and blocks nobody.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from models.tokenizer import Encoding
from service.api.problems import Problem, unavailable
from service.inference.runtime import Runtime, pad
from service.observe.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")

# A shorter ticket joins a longer one's run while the padding costs less than a run of its own would.
PADDING_WORTH_A_RUN = 12
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


class Lane:
    """A queue and a thread that runs the graph for it while there is something in it."""

    def __init__(self, name: str) -> None:
        self.queue: deque[Job] = deque()
        self.lock = threading.Lock()  # held to change the queue or `busy`, from either thread
        self.busy = False
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def take(self, most_tokens: int = 0) -> list[list[Job]]:
        """Runs of the oldest jobs that still matter, all of one runtime; lock held.

        Within the runtime's budget and `most_tokens`, if any (padding included, but one job at least).
        """
        jobs: list[Job] = []
        longest = 0
        while self.queue:
            job = self.queue[0]
            if job.done.done():  # its deadline passed
                self.queue.popleft()
                continue
            longest = max(longest, len(job.ids))
            runtime = jobs[0].runtime if jobs else job.runtime
            budget = min(most_tokens or runtime.batch_tokens, runtime.batch_tokens)
            full = len(jobs) >= runtime.batch_tickets or longest * (len(jobs) + 1) > budget
            if jobs and (full or job.runtime is not runtime):
                break
            jobs.append(self.queue.popleft())
        return split(jobs)

    def forget_done(self) -> None:
        """Free the places of jobs whose deadline passed."""
        with self.lock:
            waiting = [job for job in self.queue if not job.done.done()]
            self.queue.clear()
            self.queue.extend(waiting)


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
        self._waiting: list[Job] = []  # all that are not known to be done, for the sweeper
        self._scheduled = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._batches = Lane("larkfield-batch")
        self._long = Lane("larkfield-long")
        self._explanations = Aside("explanations", settings.max_explanations, settings, metrics)
        self._long_texts = Aside("long_texts", settings.max_queue, settings, metrics)
        spare_cores = (os.cpu_count() or 1) > settings.workers
        self._hand_off = settings.handoff == "always" or (settings.handoff == "auto" and spare_cores)
        self._inline = settings.handoff != "always"  # whether runs on a CPU may be in this thread, too

    @property
    def depth(self) -> int:
        """Tickets that wait."""
        return len(self._batches.queue) + len(self._long.queue)

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
        lane = self._long if long else self._batches
        with lane.lock:
            lane.queue.append(job)
        self._waiting.append(job)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._drain)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return job

    def run_now(self, runtime: Runtime, encoding: Encoding) -> Job | None:
        """Run a ticket here and now, if nothing else waits and it is short; the way of a quiet hour.

        It spares the queue and two turns of the event loop, a tenth of the whole answer.
        """
        if self._batches.queue or self._batches.busy or len(encoding.ids) > self._settings.inline_tokens:
            return None
        now = perf_counter()
        job = Job(runtime, encoding.ids, asyncio.get_running_loop().create_future(), now, now)
        self._finish([job], run_jobs([job]))
        return job

    async def explain(self, work: Callable[[], T], deadline: float) -> T:
        """Run an explanation in its own thread, a bounded number at a time."""
        return await self._explanations.run(work, deadline)

    async def read_long_text(self, work: Callable[[], T], deadline: float) -> T:
        """Clean and tokenize a long text in a thread, so that the event loop goes on meanwhile."""
        return await self._long_texts.run(work, deadline)

    def close(self) -> None:
        """Stop the threads; what runs is finished."""
        for pool in (self._batches, self._long, self._explanations, self._long_texts):
            pool.pool.shutdown(wait=False, cancel_futures=True)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _drain(self) -> None:
        """Start what can be started now."""
        self._scheduled = False
        self._start(self._long)
        lane = self._batches
        if not lane.queue:
            return
        here = self._inline and (not self._hand_off or lane.queue[0].runtime.provider == "CPU")
        if self._hand_off and (len(lane.queue) > 1 or not here):
            self._start(lane)
        if not here:
            return
        with lane.lock:
            runs = lane.take(self._settings.inline_tokens)
        for run in runs:
            self._finish(run, run_jobs(run))
        if lane.queue:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _start(self, lane: Lane) -> None:
        """Let the lane's thread take what waits, unless it is at work already."""
        with lane.lock:
            if lane.busy or not lane.queue:
                return
            lane.busy = True
            runs = lane.take()
        lane.pool.submit(self._work, lane, runs, asyncio.get_running_loop())

    def _work(self, lane: Lane, runs: list[list[Job]], loop: asyncio.AbstractEventLoop) -> None:
        """Run, and take what has queued up meanwhile without asking the event loop; in the lane's thread."""
        while runs:
            for run in runs:
                loop.call_soon_threadsafe(self._finish, run, run_jobs(run))
            with lane.lock:
                runs = lane.take()
                lane.busy = bool(runs)

    def _finish(self, run: list[Job], outcome: object) -> None:
        """Hand logits, or the error that took their place, to those who wait."""
        self._metrics.batch_tickets.observe(len(run))
        self._metrics.batch_tokens.observe(padded_tokens([run]))
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
            self._batches.forget_done()
            self._long.forget_done()
        self._waiting = [job for job in self._waiting if not job.done.done()]
        self._metrics.queue_depth.set(self.depth)
        self._sweeper = None
        if self._waiting:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)


def split(jobs: list[Job]) -> list[list[Job]]:
    """Jobs, longest first, in runs within which padding costs less than one more run."""
    if len(jobs) < 2:
        return [jobs] if jobs else []
    runs: list[list[Job]] = []
    for job in sorted(jobs, key=lambda job: -len(job.ids)):
        if runs and len(runs[-1][0].ids) - len(job.ids) <= PADDING_WORTH_A_RUN:
            runs[-1].append(job)
        else:
            runs.append([job])
    return runs


def padded_tokens(runs: list[list[Job]]) -> int:
    """Tokens that the graph reads for these runs, padding included."""
    return sum(len(run) * max(1, len(run[0].ids)) for run in runs)


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
