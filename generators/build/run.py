"""The run of a build: starts the workers, stores what they report, and ends in good order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Thread, Timer
from time import monotonic, sleep
from typing import Any

from gemmdb.generators import effort
from gemmdb.generators.backend import Backend, Job, Measurer, Outcome, row
from gemmdb.generators.build import queue
from gemmdb.generators.build.scheduler import Prepare, Scheduler
from gemmdb.generators.build.worker import Confirmed, Ended, Finished, Message, Phase, Worker
from gemmdb.generators.measure.quiet import PATIENCE_S, WAITING_TEXT
from gemmdb.generators.progress import SECONDS, Progress, Tracker
from gemmdb.generators.request import BuildReport, BuildRequest, brief, command
from gemmdb.table.writer import Store

ASK_S = 1.0
"""How often it is asked again whether others use the devices, in seconds."""


class Run:
    """The mutable state of one build."""

    def __init__(self, request: BuildRequest, backend: Backend, store: Store, jobs: Sequence[Job], progress: Progress):
        self.request, self.backend, self.store, self.jobs = request, backend, store, jobs
        self.effort = effort.named(request.effort, backend.device.kind)
        self.started = monotonic()
        self.pending = queue.left(jobs, store.path, backend, self.effort)
        self.before = len(jobs) - len(self.pending)
        workers = max(min(backend.workers, request.gpus or backend.workers), 1) if self.pending else 1
        expected_s = SECONDS[backend.device.kind] / workers if backend.device.kind in SECONDS else None
        self.tracker = Tracker(progress, len(jobs), self.before, expected_s)
        self.statuses: Counter[str] = Counter()
        self.rows = self.measured = self.elsewhere = self.workers = self.disturbed = 0
        self.busy = ""
        self.worker_seconds = 0.0
        self.busy_seconds: float | None = None
        self.run_id = ""
        self.interrupted = False
        self.unsaved: list[Finished | Confirmed] = []

    def execute(self) -> None:
        """Run the workers to the end, then update the verdicts, also after an interrupt."""
        try:
            if self.pending:
                self._work()
        finally:
            self.store.refresh()
            self.tracker.say("finished")

    def report(self, out: Path, problems: int) -> BuildReport:
        """The report of the run."""
        return BuildReport(
            out=out, device=self.backend.device, problems=problems, jobs=len(self.jobs), before=self.before,
            measured=self.measured, elsewhere=self.elsewhere, rows=self.rows,
            statuses=dict(sorted(self.statuses.items())), seconds=monotonic() - self.started,
            interrupted=self.interrupted, warnings=self._warnings(), disturbed=self.disturbed, workers=self.workers,
            worker_seconds=self.worker_seconds, busy_seconds=self.busy_seconds,
        )  # fmt: skip

    def _work(self) -> None:
        with ExitStack() as stack:
            claims = stack.enter_context(queue.Claims(self.store.path))
            work = queue.Work(self.pending, self.store.path, self.backend, self.effort, claims)
            claiming: list[Scheduler] = []
            stack.callback(_join, claiming)  # Before the claims are closed.
            stack.callback(work.stop.set)
            messages: SimpleQueue[Message] = SimpleQueue()
            stack.callback(self.backend.close)
            count = min(self.backend.workers, self.request.gpus or self.backend.workers)
            self._wait_for_quiet()
            self.backend.begin(self.pending)
            measurers = [self.backend.measurer(worker, self.effort) for worker in range(count)]
            for measurer in measurers:
                stack.callback(measurer.close)
            self.backend.say = lambda text: messages.put(Phase(text))
            scheduler = Scheduler(work, _telling(measurers[0], messages), self.effort, count)
            workers = [Worker(scheduler, measurer, self.effort, messages) for measurer in measurers]
            self.workers = len(workers)
            stack.callback(self._deadline(work).cancel)
            for thread in (scheduler, *workers):
                thread.start()
            claiming.append(scheduler)
            try:
                self._listen(messages, work, len(workers))
            except KeyboardInterrupt:
                self.interrupted = True
                scheduler.abort()
                self._stop(messages, measurers, workers)

    def _wait_for_quiet(self) -> None:
        """Wait a little while others use the devices."""
        until = monotonic() + PATIENCE_S
        while (busy := self.backend.busy()) and monotonic() < until:
            self.tracker.say(f"{WAITING_TEXT}: {busy}")
            sleep(ASK_S)
        self.busy = busy

    def _deadline(self, work: queue.Work) -> Timer:
        """A running timer that stops the work when the time limit of the request is reached."""
        limit_s = TIMEOUT_MAX if self.request.minutes is None else 60 * self.request.minutes
        timer = Timer(min(max(limit_s - (monotonic() - self.started), 0.0), TIMEOUT_MAX), work.stop.set)
        timer.daemon = True
        timer.start()
        return timer

    def _ended(self, message: Ended) -> None:
        self.worker_seconds += message.seconds
        if message.busy_s is not None:
            self.busy_seconds = (self.busy_seconds or 0.0) + message.busy_s

    def _listen(self, messages: SimpleQueue[Message], work: queue.Work, workers: int) -> None:
        while workers:
            # Messages that arrived together are stored in one transaction, since each transaction waits for the disk.
            came = [messages.get(), *(messages.get() for _ in range(messages.qsize()))]
            results = [message for message in came if isinstance(message, Finished | Confirmed)]
            self._keep(results)
            for result in results:
                self._count(result, work)
            for message in came:
                if isinstance(message, Phase):
                    self.tracker.say(message.name, message.problem)
                elif isinstance(message, Ended):
                    workers -= 1
                    self._ended(message)
            for job in work.elsewhere[self.elsewhere :]:
                self.elsewhere += 1
                self.tracker.finished(job.problem)
            for message in came:
                if isinstance(message, Ended) and message.error is not None:
                    raise message.error

    def _count(self, message: Finished | Confirmed, work: queue.Work) -> None:
        if isinstance(message, Confirmed) or not message.more:
            work.release(message.job)  # Not before its confirmations: another build would claim it to do these.
            self.tracker.finished(message.job.problem)

    def _stop(self, messages: SimpleQueue[Message], measurers: Sequence[Measurer], workers: Sequence[Worker]) -> None:
        for measurer in measurers:
            measurer.close()
        for worker in workers:
            worker.join()
        late, self.unsaved = [*self.unsaved], []
        while not messages.empty():
            message = messages.get()
            if isinstance(message, Finished | Confirmed):
                late.append(message)
            elif isinstance(message, Ended):
                self._ended(message)
        self._keep(late)

    def _keep(self, messages: Sequence[Finished | Confirmed]) -> None:
        # If an interrupt comes here, `_stop` stores the messages again; adding the same rows twice changes nothing.
        self.unsaved += messages
        if messages and not self.run_id:
            self.run_id = self.store.begin_run(self._provenance())
        rows = [row(m.job, self._marked(one), self.backend, self.run_id) for m in messages for one in m.outcomes]
        self.disturbed += sum(row.disturbed for row in rows)
        self.rows += self.store.add(rows) if rows else 0
        self.statuses.update(row.status.value for row in rows)
        self.measured += sum(message.done for message in messages)
        self.unsaved.clear()

    def _marked(self, outcome: Outcome) -> Outcome:
        return replace(outcome, disturbed=True) if self.busy and outcome.times else outcome

    def _warnings(self) -> tuple[str, ...]:
        if not self.disturbed:
            return ()
        why = f" ({self.busy})" if self.busy else ""
        return (
            f"other programs used the machine{why}: {self.disturbed:,} of {self.rows:,} new rows are marked as"
            " disturbed and decide nothing against ATen; the same command times them again when it is quiet",
        )

    def _provenance(self) -> dict[str, Any]:
        asked = {name: value for name, value in asdict(self.request).items() if value not in (None, (), False)}
        return {
            "command": command(),
            "request": {name: brief(value) for name, value in asked.items()},
            "effort": asdict(self.effort),
            "toolchain": self.backend.toolchain.text,
            "device": self.backend.device.text,
            "readings": self.backend.provenance(),
        }


def _join(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()


def _telling(measurer: Measurer, messages: SimpleQueue[Message]) -> Prepare:
    """`measurer.prepare`, which also reports what is compiled."""

    def prepare(jobs: Sequence[Job], ready: Callable[[Job], None]) -> None:
        messages.put(Phase("compiling", jobs[0].problem))
        measurer.prepare(jobs, ready)

    return prepare
