"""Confirmation: times the unmeasured configs of one graph against ATen in Inductor's generated code, and decides again.
Each GEMM is compiled twice with the elementwise operators that follow it, and both versions run on random tensors in
this process. The rows are stored in the user table, so the next compile hits a measured row. A GEMM that cannot be
timed is decided as without confirmation. Nothing here fails a compile.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.hit import gain
from gemmdb.inductor.benchmark import at_rows, limits, rules
from gemmdb.inductor.benchmark.limits import BUDGET, TrialLimit
from gemmdb.inductor.benchmark.step import Ahead, CarryOut, Job, Step, fixed, generated
from gemmdb.inductor.benchmark.storing import store
from gemmdb.inductor.benchmark.subgraph import Piece, computes_weight
from gemmdb.inductor.benchmark.trial import Trial, Untimed, noisy
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals
from gemmdb.key.toolchain import installed
from gemmdb.lookup.acceptance import UNMEASURED_RUNGS
from gemmdb.outcome import NOT_CONFIRMED
from gemmdb.table.measurement import EMITTED, Measurement, Status, Times
from gemmdb.table.stats import times
from gemmdb.table.verdict import Verdict, decide

log = logging.getLogger("gemmdb")
FAILED = "it failed"
_RUN = f"confirm-{uuid.uuid4().hex[:16]}"


class Confirmation(Step):
    """Confirms the hits of one graph. Never raises, and keeps random states unchanged."""

    name = "confirming"

    def __init__(self, carry_out: CarryOut, ahead: Ahead | None = None) -> None:
        super().__init__(carry_out, ahead)
        self._seen: set[object] = set()
        self._divided: list[tuple[Decision, list[Decision]]] = []
        self._decided: dict[object, Decision] = {}
        self._weights: dict[object, float] = {}

    def begin(self, pairs: Sequence[tuple[Any, Decision]]) -> None:
        """Start compiling the unmeasured configs among these decisions. Each decision comes with its GEMM's node."""
        doubted: list[tuple[Any, Decision]] = []
        try:
            new = [(node, one) for node, one in pairs if one.entry not in self._seen]
            doubted = [(node, one) for node, one in new if rules.in_doubt(one, node)]
            self._seen.update(one.entry for _, one in doubted)
            if doubted:
                counts = Counter(one.problem.text for _, one in doubted)
                fixed = [(node, one, at_rows.parts(one, counts[one.problem.text])) for node, one in doubted]
                self._divided += [(one, found) for _, one, found in fixed if found != [one]]
                self._weights |= {part.entry: at_rows.weight(one, part) for _, one, found in fixed for part in found}
                doubted = [(node, part) for node, _, found in fixed for part in found]
                self._begin(doubted, len({part.problem.text for _, part in doubted} - set(counts)))
        except Exception as error:
            JOURNAL.failure(self.name, error)
            self._give_up([decision for _, decision in doubted], FAILED)

    def decide(self, pairs: Sequence[tuple[Any, Decision]]) -> list[Decision]:
        """Return the final decisions for the graph's GEMMs: by trial where one was started, else as without
        confirmation."""
        if self.jobs:
            try:
                with BUDGET.spending():
                    self._finish()
            except Exception as error:
                JOURNAL.failure(self.name, error)
            self._give_up([one for job in self.jobs for one in job.decisions], FAILED)
            self.jobs = []
        for whole, found in self._divided:
            self._decided[whole.entry] = self._joined(whole, found)
        self._divided = []
        self._give_up([one for _, one in pairs if one.instead is not None], FAILED)
        return [self._decided.get(decision.entry, decision) for _, decision in pairs]

    def _joined(self, whole: Decision, found: Sequence[Decision]) -> Decision:
        """Decide for a symbolic M by the decisions for its sizes."""
        try:
            return at_rows.joined(whole, [(part, self._decided.get(part.entry, part)) for part in found])
        except Exception as error:
            JOURNAL.failure(self.name, error)
            return replace(whole, config=ATEN, branches=(), event=whole.event.refused(FAILED), refused=True)

    def _begin(self, doubted: Sequence[tuple[Any, Decision]], further: int) -> None:
        """Begin the trials of decisions for fixed sizes. `further`: how many problems are other sizes of the graph's
        GEMMs."""
        policy = doubted[0][1].session.policy
        self._limit = self._limit or TrialLimit(policy)
        self._limit.reserve(further)
        if self._limit.limit_s <= 0:
            self._give_up([decision for _, decision in doubted], limits.exhausted(policy))
            return
        with BUDGET.spending():
            for job in sorted(self._jobs(doubted), key=lambda job: -job.share):
                rejected = self._begin_job(job)
                if rejected is None:
                    self.jobs.append(job)
                else:
                    self._give_up(job.decisions, rejected)

    def _jobs(self, doubted: Sequence[tuple[Any, Decision]]) -> list[ConfirmJob]:
        """Return the jobs. Gives up on GEMMs that cannot be extracted."""
        places = {node: place for place, node in enumerate(doubted[0][0].graph.nodes)}
        jobs: dict[object, ConfirmJob] = {}
        for node, decision in doubted:
            try:
                symbolic = bool(at_rows.symbolic_sizes(node))
                piece = at_rows.piece(node, decision.problem, places, symbolic)
            except Untimed as error:
                self._give_up([decision], error)
                continue
            key = (decision.problem.text, decision.query.device.text, decision.config, piece.text, tuple(piece.warm))
            if key not in jobs:
                jobs[key] = ConfirmJob(piece, key, decision)
            jobs[key].add(decision, self._weights.get(decision.entry, 1.0))
        return list(jobs.values())

    def _finish(self) -> None:
        assert self._limit is not None
        rows, start = list[Measurement](), limits.now()
        for job in _as_ready(self.jobs):
            found = self._wait(job, start) or self._attempt(job.finish)
            if isinstance(found, Result):
                self._decided |= {one.entry: _by_trial(one, found) for one in job.decisions}
                rows += found.rows
            else:
                self._give_up(job.decisions, found)
        store(self.jobs[0].decision.session.user_table, rows)
        decisions = [self._decided[one.entry] for job in self.jobs for one in job.decisions]
        confirmed = sum("confirmed" in decision.event.evidence for decision in decisions)
        log.info("confirmed %d of %d answers in %.2f s", confirmed, len(decisions), self._limit.spent_s())

    def _give_up(self, decisions: Sequence[Decision], why: object) -> None:
        """Decide everything that is still undecided as without confirmation."""
        for one in decisions:
            if one.entry not in self._decided:
                self._decided[one.entry] = _unconfirmed(one, why)


def _as_ready(jobs: Iterable[ConfirmJob]) -> Iterator[ConfirmJob]:
    """Yield jobs while the kernels of others compile: the next is one whose kernels are ready, or else the one that a
    compile waits for longest."""
    left = sorted(jobs, key=lambda job: -job.saved_us)
    while left:
        found = next((job for job in left if job.ready(0)), left[0])
        left.remove(found)
        yield found


def _by_trial(decision: Decision, found: Result) -> Decision:
    """Decide for the faster of the config and ATen. The config must reach the gain that the policy requires. Where it
    loses, another decision may hold instead."""
    assert decision.config is not None
    verdict, old, name = found.verdict, decision.event, decision.config.name
    if verdict is None:
        wrong = f"{name} is wrong: its result differs from ATen's"
        lost = replace(decision, config=ATEN, event=old.refused(wrong))
        return lost if decision.instead is None else _unconfirmed(decision, wrong)
    ours = verdict.pick == decision.config and gain(verdict.ratio) >= decision.session.policy.min_gain
    note = "" if ours else f"{name} takes {found.us:.1f} us here, {decision.engine_op or 'ATen'} {found.aten_us:.1f}"
    if not ours and decision.instead is not None:
        return _unconfirmed(decision, note)
    speedup = found.aten_us / found.us if ours else 1.0
    timed = {"config": decision.config.text, "us": found.us, "aten_us": found.aten_us}
    event = replace(
        old,
        config=old.config if ours else ATEN.text,
        expected_us=found.aten_us / speedup,
        speedup=speedup,
        disturbed=False,
        evidence={**old.evidence, "confirmed": {**timed, "protocol": verdict.protocol.text}},
        note=note,
    )
    return replace(decision, config=decision.config if ours else ATEN, event=event, instead=None)


def _unconfirmed(decision: Decision, why: object) -> Decision:
    """Decide as without confirmation; the event's note contains the reason."""
    if decision.instead is not None:
        return _kept(decision.instead, why)
    event, note = decision.event, f"{NOT_CONFIRMED}{why}"
    if decision.only_timed:
        return replace(decision, config=ATEN, event=event.refused(note))
    if event.rung in UNMEASURED_RUNGS:
        return deciding.decide_again(decision, Mode.CERTAIN, note)
    if rules.unmeasured(decision):  # It was measured, but not as it is served.
        return _noted(decision, note)
    # It was measured with a cold weight, but the program computes the weight.
    return replace(decision, config=ATEN, event=event.refused(note))


def _kept(decision: Decision, why: object) -> Decision:
    """Return an earlier decision for a GEMM, whose own config was not confirmed either."""
    return _unconfirmed(decision, why) if rules.in_doubt(decision) else _noted(decision, f"{NOT_CONFIRMED}{why}")


def _noted(decision: Decision, note: str) -> Decision:
    event = decision.event
    return replace(decision, event=replace(event, note=f"{event.note}; {note}" if event.note else note))


@dataclass(frozen=True)
class Result:
    """The result of a trial: the verdict, the microseconds of the config and of ATen, and the rows for the user table.
    Without a verdict, the config's output did not match ATen's, and nothing was timed."""

    verdict: Verdict | None
    us: float = 0.0
    aten_us: float = 0.0
    rows: Sequence[Measurement] = ()


class ConfirmJob(Job):
    """GEMMs of one graph with the same code and the same config."""

    def __init__(self, piece: Piece, key: object, decision: Decision) -> None:
        super().__init__(piece, key, decision.session.policy)
        self.decision, self.decisions = decision, list[Decision]()
        self.share = 0.0

    def add(self, decision: Decision, weight: float = 1.0) -> None:
        """Add a GEMM that shares this trial. `weight`: of its saving, relative to savings at other sizes."""
        event = decision.event
        self.decisions.append(decision)
        saved_us = (event.expected_us or 0.0) * ((event.speedup or 1.0) - 1)
        self.saved_us += saved_us
        self.share += weight * saved_us

    def codes(self, carry_out: CarryOut) -> tuple[emission.Code, emission.Code]:
        """Return the code with ATen and with the config."""
        config, query = self.decision.config, self.decision.query
        assert config is not None
        rejected = rules.device_rejection(query.device) or rules.compile_rejection(config, query, self.policy)
        if rejected:
            raise Untimed(rejected.reason)
        return self._code(ATEN, carry_out), self._code(config, carry_out)

    def _code(self, config: Config, carry_out: CarryOut) -> emission.Code:
        """Return the code of the piece with `config`."""
        graph, new = self.piece.copies()
        decision = fixed(self.decision, config)
        with JOURNAL.aside(), emission.undisturbed():
            JOURNAL.enter(decision.event, decision.entry)
            carry_out(new[self.piece.gemm], decision)
            code = generated(graph, self.piece.fakes)
            (seen,) = JOURNAL.pending()
        if config != ATEN and (seen.config != config.text or seen.problem != decision.event.problem or seen.note):
            raise Untimed(seen.note or "Inductor compiles it as another problem")
        return code

    def finish(self) -> Result:
        """Return the result of the trial once the code is compiled."""
        # One GEMM's share of zeroing the graph's counters, which the trial does not include.
        counts = self.decision.config and counts_arrivals(self.decision.config)
        rows = measurements(self.decision, self.time(), ZEROING_US / len(self.decisions) if counts else 0.0)
        timed, unlike = rows[-1].times, self.decision.only_timed  # Not what the rows say.
        if timed is None:
            return Result(None, rows=() if unlike else rows)
        # The key does not say if the program computes the weight: with a hot weight, a time says nothing of a cold one.
        kept = () if unlike or computes_weight(self.piece.gemm) else rows
        return Result(decide(rows), timed.median_us, timed.aten_us, kept)


def measurements(decision: Decision, found: Trial, more_us: float = 0.0) -> list[Measurement]:
    """Return the rows of a trial: ATen and the config, or only the config if its result is wrong. `more_us`: overhead
    per call of the config that the trial does not include. Raises Untimed if the times are too noisy."""
    toolchain, device = installed(decision.query.device.kind), decision.query.device
    assert decision.config is not None
    if toolchain is None:
        raise Untimed("the versions of torch and its libraries are unknown")

    def row(config: Config, status: Status, timed: Times | None, detail: str) -> Measurement:
        made_by = replace(toolchain, source=config.digest())
        return Measurement(
            decision.problem, config, device, found.protocol, made_by, _RUN, status, timed, detail=detail
        )

    if found.differs:
        return [row(decision.config, Status.WRONG, None, "its result in a program differs from ATen's")]
    us = [one + more_us for one in found.ours]
    if noisy(found.aten, us):
        raise Untimed("its times vary too much")
    aten, ours = times(found.aten, found.aten), times(us, found.aten)
    return [row(ATEN, Status.OK, aten, EMITTED), row(decision.config, Status.OK, ours, EMITTED)]
