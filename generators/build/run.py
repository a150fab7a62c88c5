"""Run of a build: start the workers, store their results, and shut down cleanly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Event, Thread, Timer
from time import monotonic
from typing import Any

from gemmdb.generators import effort, estimate
from gemmdb.generators.backend import Backend, Job, Measurer, row
from gemmdb.generators.build import queue
from gemmdb.generators.build.expected import expected_of
from gemmdb.generators.build.scheduler import Scheduler
from gemmdb.generators.build.worker import Ended, Message, Phase, Result, Settle, TimeIsUp, Worker
from gemmdb.generators.measure import quiet
from gemmdb.generators.progress import Progress, Tracker
from gemmdb.generators.request import BuildReport, BuildRequest, command
from gemmdb.key.problem import Problem
from gemmdb.table.writer import Store

SETTLE_S = 0.2
"""Seconds between checks whether the build stops while it waits for its results to count."""


class Run:
    def __init__(
        self, request: BuildRequest, backend: Backend, store: Store, jobs: Sequence[Job], progress: Progress | None,
        more: Sequence[Problem] = (),
    ):  # fmt: skip
        """`more`: problems of further rounds that may follow."""
        self.request, self.backend, self.store, self.jobs = request, backend, store, jobs
        self.effort = effort.named(request.effort, backend.device.kind)
        self.started = monotonic()
        self.waited_s = 0.0
        self.idle = None if request.wait_s is None else queue.will_be_idle
        self.pending = queue.left(jobs, store.path, backend, self.effort, self.idle)
        self.before = len(jobs) - len(self.pending)
        self.count = min(backend.workers, request.gpus or backend.workers)
        self.pace = request.pace or 1.0
        slowdown = (request.slower or backend.slowdown()) if request.wait_s is None and self.pending else 1.0
        self.slower = self.pace * slowdown
        self.expected = expected_of(self.pending, more, backend, self.effort, self.count, (self.pace, slowdown))
        limit_s = inf if request.minutes is None else 60 * request.minutes
        self.tracker = Tracker(progress, len(jobs), self.before, self.expected, limit_s)
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.statuses: Counter[str] = Counter()
        self.rows = self.measured = self.elsewhere = self.workers = self.disturbed = 0
        self.busy = self.stopped = ""
        self.disturbances = quiet.Disturbances()
        self.unconfirmed: dict[int, float] = {}
        self.worker_seconds = 0.0
        self.busy_seconds: float | None = None
        self.run_id = ""
        self.interrupted = False
        self.unsaved: list[Result] = []

    def execute(self) -> None:
        """Run the workers to completion, then update the verdicts, even after an interrupt."""
        try:
            if self.pending:
                self._work()
        finally:
            self.store.refresh()
            self.tracker.say("finished")

    @property
    def spent_s(self) -> float:
        """Seconds since the start, without the waiting for a quiet machine, which is no work and has its own limit."""
        return monotonic() - self.started - self.waited_s

    def report(self, out: Path, problems: int) -> BuildReport:
        return BuildReport(
            out=out, device=self.backend.device, problems=problems, jobs=len(self.jobs), before=self.before,
            measured=self.measured, elsewhere=self.elsewhere, rows=self.rows,
            statuses=dict(sorted(self.statuses.items())), seconds=self.spent_s,
            interrupted=self.interrupted, busy=self.busy, disturbed=self.disturbed, workers=self.workers,
            stopped=self.stopped, expected_s=self.expected.spent_s(self.tracker.done_s, self.spent_s) / self.pace,
            worker_seconds=self.worker_seconds, busy_seconds=self.busy_seconds,
        )  # fmt: skip

    def _work(self) -> None:
        with ExitStack() as stack:
            claims = stack.enter_context(queue.Claims(self.store.path))
            work = queue.Work(self.pending, self.store.path, self.backend, self.effort, claims)
            work.idle = self.idle
            started: list[Thread] = []
            stack.callback(_join, started)  # Before the claims are closed.
            stack.callback(work.stop.set)
            stack.callback(self.backend.close)
            if self.request.wait_s is not None and self._occupied(self.request.wait_s):
                return
            self.tracker.started = monotonic()  # Waiting says nothing about the pace.
            self.busy = quiet.wait(self.backend, self.tracker.say)
            self.backend.begin(self.pending)
            measurers = [self.backend.measurer(worker, self.effort) for worker in range(self.count)]
            for measurer in measurers:
                stack.callback(measurer.close)
            self.backend.say = lambda text: self.messages.put(Phase(text))

            def prepare(jobs: Sequence[Job], ready: Callable[[Job], None]) -> None:
                self.messages.put(Phase("compiling", jobs[0].problem))
                measurers[0].prepare(jobs, ready)

            self._keep_to_the_limit(work)
            if self.request.minutes is not None and not self.backend.overlap:
                work.settle = lambda: self._settle(work)
            scheduler = Scheduler(work, prepare, self.effort, self.count)
            if self.request.minutes is not None:
                scheduler.grace_s = estimate.MAX_OVERRUN * 60 * self.request.minutes
                scheduler.ends = monotonic() + 60 * self.request.minutes - self.spent_s
            workers = [Worker(scheduler, measurer, self.effort, self.messages) for measurer in measurers]
            self.workers = len(workers)
            for timer in self._timers(work):
                stack.callback(timer.cancel)
            for thread in (scheduler, *workers):
                thread.start()
            started.append(scheduler)
            try:
                finished = self._listen(work)
            except KeyboardInterrupt:
                self.interrupted, finished = True, False
            if not finished:
                scheduler.abort()
                self._stop(measurers, workers)

    def _occupied(self, wait_s: float) -> bool:
        """Wait for a quiet machine, and return whether it is still in use, or Ctrl-C ended the waiting."""
        begun = monotonic()

        def waiting(text: str) -> None:
            self.tracker.started = monotonic()  # Waiting brings the end no nearer.
            self.tracker.say(text)

        try:
            self.stopped = quiet.idle(self.backend, wait_s, waiting)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.waited_s = monotonic() - begun
        return self.interrupted or bool(self.stopped)

    def _give_up_on_a_busy_machine(self, results: Sequence[Result], work: queue.Work) -> None:
        """Stop the work if nothing of the last problems can be used, unless it is to be measured anyway."""
        if self.request.wait_s is None:
            return
        for result in results:
            self.disturbances.add(result.outcomes)
        if why := self.disturbances.why(self.backend):
            self.stopped = self.stopped or why
            work.stop.set()

    def _fitting(self, limit_s: float, spent_s: float) -> int:
        """Return how many more jobs a worker can probably measure and confirm without exceeding the time limit by more
        than MAX_OVERRUN, after confirming the winners so far."""
        pace, start_s = self.tracker.least_pace, 0.0 if self.measured else self.expected.start_s
        due_s = pace * sum(self.unconfirmed.values()) / max(self.workers, 1)
        left_s = (1 + estimate.MAX_OVERRUN) * limit_s - max(spent_s, start_s) - due_s
        return max(int(left_s / max(pace * self.expected.mean_s * self.expected.workers, 1e-9)), 0)

    def _keep_to_the_limit(self, work: queue.Work) -> None:
        """Prepare no more jobs together than fit into the time limit, and stop if none fits. The first job is begun in
        any case: what it compiles, the next build finds."""
        if self.request.minutes is None:
            return
        fitting = self._fitting(60 * self.request.minutes, self.spent_s)
        work.chunk = min(self.backend.chunk, max(fitting, 1))
        if self.measured and not fitting:
            work.stop.set()

    def _settle(self, work: queue.Work) -> None:
        """Wait until all results so far count, so that no job is taken that the time limit no longer allows."""
        done = Event()
        self.messages.put(Settle(done))
        while not (done.wait(SETTLE_S) or work.stop.is_set()):
            pass

    def _note_confirmations(self, result: Result) -> None:
        self.unconfirmed.pop(id(result.job), None)
        if not result.last:
            due_s = self.slower * estimate.confirm_s(result.job, self.backend, self.effort)
            self.unconfirmed[id(result.job)] = due_s
            self.tracker.raced(result.job.problem, due_s)

    def _timers(self, work: queue.Work) -> Iterator[Timer]:
        """Yield running timers: one stops the work at the request's time limit, one ends it soon after."""
        if self.request.minutes is None:
            return
        for part, then in ((1.0, work.stop.set), (estimate.ENDED, lambda: self.messages.put(TimeIsUp()))):
            timer = Timer(min(max(part * 60 * self.request.minutes - self.spent_s, 0.0), TIMEOUT_MAX), then)
            timer.daemon = True
            timer.start()
            yield timer

    def _listen(self, work: queue.Work) -> bool:
        """Store the results until all workers have ended. Returns False if the time limit ends before."""
        running = self.workers
        while running:
            # Messages that arrived together are stored in one transaction, since each one waits for the disk.
            arrived = [self.messages.get(), *(self.messages.get() for _ in range(self.messages.qsize()))]
            results = [message for message in arrived if isinstance(message, Result)]
            self._keep(results)
            self._give_up_on_a_busy_machine(results, work)
            for result in results:
                self._note_confirmations(result)
                if result.last:
                    work.release(result.job)  # Not before: another build would claim it to confirm its winner.
                    self.tracker.finished(result.job.problem)
            self._keep_to_the_limit(work)
            for message in arrived:
                if isinstance(message, Settle):
                    message.done.set()
                # A worker waits while its first jobs compile.
                if isinstance(message, Phase) and (message.name, self.tracker.phase) != ("waiting", "compiling"):
                    self.tracker.say(message.name, message.problem)
            ended = [message for message in arrived if isinstance(message, Ended)]
            running -= len(ended)
            self._count_seconds(ended)
            for job in work.elsewhere[self.elsewhere :]:
                self.elsewhere += 1
                self.tracker.finished(job.problem)
            for message in ended:
                if message.error is not None:
                    raise message.error
            if running and any(isinstance(message, TimeIsUp) for message in arrived):
                return False
        return True

    def _stop(self, measurers: Sequence[Measurer], workers: Sequence[Worker]) -> None:
        for measurer in measurers:
            measurer.close()
        for worker in workers:
            worker.join()
        late = [self.messages.get() for _ in range(self.messages.qsize())]
        self._count_seconds([message for message in late if isinstance(message, Ended)])
        unsaved, self.unsaved = self.unsaved, []
        self._keep([*unsaved, *(message for message in late if isinstance(message, Result))])

    def _count_seconds(self, ended: Sequence[Ended]) -> None:
        for message in ended:
            self.worker_seconds += message.seconds
            if message.busy_s is not None:
                self.busy_seconds = (self.busy_seconds or 0.0) + message.busy_s

    def _keep(self, results: Sequence[Result]) -> None:
        # If an interrupt comes here, `_stop` stores the results again; adding the same rows twice changes nothing.
        self.unsaved += results
        if results and not self.run_id:
            self.run_id = self.store.begin_run(self._provenance())
        rows = []
        for result in results:
            for one in result.outcomes:
                marked = replace(one, disturbed=True) if self.busy and one.times else one
                rows.append(row(result.job, marked, self.backend, self.run_id))
        self.disturbed += sum(one.disturbed for one in rows)
        self.rows += self.store.add(rows) if rows else 0
        self.statuses.update(one.status.value for one in rows)
        self.measured += sum(result.measured for result in results)
        self.unsaved.clear()

    def _provenance(self) -> dict[str, Any]:
        return {
            "command": command(),
            "request": self.request.recorded(),
            "effort": asdict(self.effort),
            "toolchain": self.backend.toolchain.text,
            "device": self.backend.device.text,
            "readings": self.backend.provenance(),
        }


def _join(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()
