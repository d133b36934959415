"""The queue and its batches: when the graph is free, all waiting tickets are run as batches at once.

No ticket waits for a batch to fill. A batch has a budget of tokens, padding included, and contains tickets of
similar length, so that there is little padding. A single ticket runs on the event loop's thread, because
handing it to another thread takes a large part of the time of a run. If several tickets wait and a core is
free, a second thread also takes batches from the queue. Between batches the event loop serves connections. A
long ticket always runs in a separate thread, so that short ones do not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from models.tokenizer import Encoding
from service.api.problems import Problem
from service.inference.admission import Permit
from service.inference.runtime import Runtime, pad
from service.observe.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")

# Padding of this many tokens costs as much as one more run of the graph.
PADDING_WORTH_A_RUN = 12
_SWEEP_SECONDS = 0.02


@dataclass(slots=True, eq=False)
class Job:
    """One ticket to be run through the graph; times are perf_counter seconds."""

    runtime: Runtime
    ids: list[int]
    done: asyncio.Future[np.ndarray]
    submitted: float
    deadline: float
    began: float = 0.0
    ended: float = 0.0


class BatchQueue:
    """Waiting jobs, and a thread that can run them."""

    def __init__(self, name: str) -> None:
        self.jobs: deque[Job] = deque()
        self.lock = threading.Lock()  # held to change the queue or `busy`, from either thread
        self.busy = False
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def take(self, most_tokens: int = 0) -> list[list[Job]]:
        """Batches of the oldest jobs that are not late, all of one runtime; the caller holds the lock.

        The padded tokens stay within the runtime's budget and `most_tokens`, if given, but at least one job
        is taken.
        """
        jobs: list[Job] = []
        longest = 0
        while self.jobs:
            job = self.jobs[0]
            if job.done.done():  # its deadline passed
                self.jobs.popleft()
                continue
            longest = max(longest, len(job.ids))
            runtime = jobs[0].runtime if jobs else job.runtime
            budget = min(most_tokens or runtime.batch_tokens, runtime.batch_tokens)
            full = len(jobs) >= runtime.batch_tickets or longest * (len(jobs) + 1) > budget
            if jobs and (full or job.runtime is not runtime):
                break
            jobs.append(self.jobs.popleft())
        return split(jobs)

    def forget_done(self) -> None:
        """Remove jobs whose deadline passed."""
        with self.lock:
            waiting = [job for job in self.jobs if not job.done.done()]
            self.jobs.clear()
            self.jobs.extend(waiting)


class DeadlineExecutor:
    """Runs work that would block the event loop in one thread; replaces the thread if it misses a deadline.

    Python cannot end a thread. A thread that is still busy at its deadline finishes its work, the result is
    discarded, and the thread ends. Meanwhile a new thread continues with the queue.
    """

    def __init__(self, kind: str, metrics: Metrics) -> None:
        self._kind = kind
        self._metrics = metrics
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._busy: Future[Any] | None = None
        self._thread: threading.Thread | None = None
        self._start()

    async def run(self, work: Callable[[], T], deadline: float, permit: Permit) -> T:
        """The result of `work()`; Problem 504 after the deadline. The permit is held until the work ends."""
        submitted: Future[T] = Future()
        self._queue.put((submitted, work))
        running = asyncio.wrap_future(submitted)
        permit.hold()
        running.add_done_callback(partial(_work_ended, permit))
        try:
            return await asyncio.wait_for(asyncio.shield(running), max(0.0, deadline - perf_counter()))
        except TimeoutError:
            if not submitted.cancel() and self._busy is submitted:
                self._metrics.threads_replaced.labels(self._kind).inc()
                self._start()
            self._metrics.refused.inc("deadline")
            raise late() from None

    def close(self) -> None:
        """End the thread after its present work."""
        self._thread = None
        self._queue.put(None)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"larkfield-{self._kind}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Take work until this is no longer the executor's thread."""
        while threading.current_thread() is self._thread:
            item = self._queue.get()
            if item is None:
                return
            submitted, work = item
            if not submitted.set_running_or_notify_cancel():
                continue
            self._busy = submitted
            try:
                submitted.set_result(work())
            except BaseException as error:
                submitted.set_exception(error)


def _work_ended(permit: Permit, running: asyncio.Future[Any]) -> None:
    permit.release()
    if not running.cancelled():
        running.exception()  # marks it as retrieved: after the deadline it is not awaited


class Engine:
    """Runs tickets in batches; all methods are called on the event loop's thread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._waiting: list[Job] = []  # jobs whose deadline the sweeper checks
        self._scheduled = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._batches = BatchQueue("larkfield-batch")
        self._long = BatchQueue("larkfield-long")
        self._explanations = DeadlineExecutor("explanations", metrics)
        self._long_texts = DeadlineExecutor("long_texts", metrics)
        self._spare_core = usable_cores() > settings.workers

    @property
    def depth(self) -> int:
        """Number of waiting tickets."""
        return len(self._batches.jobs) + len(self._long.jobs)

    def submit(self, runtime: Runtime, encoding: Encoding, deadline: float) -> Job:
        """Queue a ticket; `job.done` gives its logits (teams,), or Problem 504 after the deadline."""
        loop = asyncio.get_running_loop()
        job = Job(runtime, encoding.ids, loop.create_future(), perf_counter(), deadline)
        long = len(job.ids) > self._settings.inline_tokens and runtime.provider == "CPU"
        queue = self._long if long else self._batches
        with queue.lock:
            queue.jobs.append(job)
        self._waiting.append(job)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._drain)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return job

    def run_now(self, runtime: Runtime, encoding: Encoding) -> Job | None:
        """Run a short ticket on this thread if no other waits; otherwise None, and the caller submits it.

        This saves the queue and two iterations of the event loop.
        """
        if self._batches.jobs or self._batches.busy or len(encoding.ids) > self._settings.inline_tokens:
            return None
        now = perf_counter()
        job = Job(runtime, encoding.ids, asyncio.get_running_loop().create_future(), now, now)
        self._finish([job], run_jobs([job]))
        return job

    async def explain(self, work: Callable[[], T], deadline: float, permit: Permit) -> T:
        """Run an explanation in the thread for explanations."""
        return await self._explanations.run(work, deadline, permit)

    async def read_long_text(self, work: Callable[[], T], deadline: float, permit: Permit) -> T:
        """Clean and tokenize a long text in the thread for long texts."""
        return await self._long_texts.run(work, deadline, permit)

    def close(self) -> None:
        """Stop the threads after their present work."""
        for queue in (self._batches, self._long):
            queue.pool.shutdown(wait=False, cancel_futures=True)
        self._explanations.close()
        self._long_texts.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _drain(self) -> None:
        """Run one batch here, and let the threads start theirs."""
        self._scheduled = False
        self._start(self._long)
        queue = self._batches
        if not queue.jobs:
            return
        on_gpu = queue.jobs[0].runtime.provider != "CPU"
        if on_gpu or (self._spare_core and len(queue.jobs) > 1):
            self._start(queue)
        if on_gpu:
            return
        with queue.lock:
            runs = queue.take(self._settings.inline_tokens)
        for run in runs:
            self._finish(run, run_jobs(run))
        if queue.jobs:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _start(self, queue: BatchQueue) -> None:
        """Give the waiting jobs to the queue's thread, unless it is busy."""
        with queue.lock:
            if queue.busy or not queue.jobs:
                return
            queue.busy = True
            runs = queue.take()
        queue.pool.submit(self._work, queue, runs, asyncio.get_running_loop())

    def _work(self, queue: BatchQueue, runs: list[list[Job]], loop: asyncio.AbstractEventLoop) -> None:
        """In the queue's thread: run batches until the queue is empty, without the event loop."""
        while runs:
            for run in runs:
                loop.call_soon_threadsafe(self._finish, run, run_jobs(run))
            with queue.lock:
                runs = queue.take()
                queue.busy = bool(runs)

    def _finish(self, run: list[Job], outcome: object) -> None:
        """Set the logits or the error of each job."""
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
        """Answer 504 to tickets whose deadline has passed, and remove them from their queue."""
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
    """Jobs in batches, longest first; within a batch, padding costs less than one more run."""
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
    """Tokens of these batches, padding included."""
    return sum(len(run) * max(1, len(run[0].ids)) for run in runs)


def run_jobs(run: list[Job]) -> np.ndarray | Exception:
    """Run a batch and set the times of its jobs: logits (tickets, teams), or the exception."""
    began = perf_counter()
    try:
        outcome: np.ndarray | Exception = run[0].runtime.run(pad([job.ids for job in run]))
    except Exception as error:
        outcome = error
    ended = perf_counter()
    for job in run:
        job.began, job.ended = began, ended
    return outcome


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def late() -> Problem:
    """504: the deadline passed."""
    return Problem(504, "The ticket was not answered within the deadline.")
