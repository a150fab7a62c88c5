"""One answer to be confirmed: compiled beside ATen, timed, and stored."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmdb.inductor.benchmark import limits, rules
from gemmdb.inductor.benchmark.step import CarryOut, Job, fixed, generated
from gemmdb.inductor.benchmark.subgraph import Piece, computes_weight
from gemmdb.inductor.benchmark.trial import Trial, Untimed, noisy
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals
from gemmdb.key.toolchain import installed
from gemmdb.phases import PHASES
from gemmdb.table.measurement import EMITTED, Measurement, Status, Times
from gemmdb.table.stats import times
from gemmdb.table.verdict import Verdict, decide

log = logging.getLogger("gemmdb")
_RUN = f"confirm-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True)
class Result:
    """What a trial says: the verdict, the microseconds of the answer and of ATen, and the rows for the user's table.
    Without a verdict, the result of the answer is not ATen's, and nothing was timed."""

    verdict: Verdict | None
    us: float = 0.0
    aten_us: float = 0.0
    rows: Sequence[Measurement] = ()


class ConfirmJob(Job):
    """GEMMs of one graph with the same code and the same answer."""

    def __init__(self, piece: Piece, key: object, decision: Decision) -> None:
        super().__init__(piece, key, decision.session.policy)
        self.decision, self.decisions = decision, list[Decision]()

    def add(self, decision: Decision) -> None:
        """Let the trial decide for one more GEMM."""
        event = decision.event
        self.decisions.append(decision)
        self.saved_us += (event.expected_us or 0.0) * ((event.speedup or 1.0) - 1)

    def codes(self, carry_out: CarryOut) -> tuple[emission.Code, emission.Code]:
        """The code of ATen and of the answer."""
        config, query = self.decision.config, self.decision.query
        assert config is not None
        rejected = rules.device_rejection(query.device) or rules.compile_rejection(config, query, self.policy)
        if rejected:
            raise Untimed(rejected.reason)
        return self._code(ATEN, carry_out), self._code(config, carry_out)

    def _code(self, config: Config, carry_out: CarryOut) -> emission.Code:
        """The code of the piece with `config`."""
        graph, new = self.piece.copies()
        decision = fixed(self.decision, config)
        with JOURNAL.aside(), emission.undisturbed():
            JOURNAL.enter(decision.event, decision.entry)
            carry_out(new[self.piece.product], decision)
            code = generated(graph, self.piece.fakes)
            (seen,) = JOURNAL.pending()
        if config != ATEN and (seen.config != config.text or seen.problem != decision.event.problem or seen.note):
            raise Untimed(seen.note or "Inductor compiles it as another problem")
        return code

    def finish(self) -> Result:
        """The result of the trial, once the code is compiled."""
        # The share of one GEMM in the zeroing of the graph's counters, which the trial does not include.
        counts = self.decision.config and counts_arrivals(self.decision.config)
        rows = measurements(self.decision, self.time(), ZEROING_US / len(self.decisions) if counts else 0.0)
        timed = rows[-1].times
        if timed is None:
            return Result(None, rows=rows)
        # A key does not say that the program computes the weight: what was timed with it in the cache is no evidence
        # for a weight that comes from memory.
        kept = () if computes_weight(self.piece.product) else rows
        return Result(decide(rows), timed.median_us, timed.aten_us, kept)


def measurements(decision: Decision, found: Trial, more_us: float = 0.0) -> list[Measurement]:
    """The rows of a trial: ATen and the answer, or the answer alone where its result is wrong. `more_us`: what a call
    of the answer costs beside the time in the trial. Raises Untimed where the times are too unsteady."""
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


@PHASES("store")
def store(table: Path | None, rows: Sequence[Measurement]) -> None:
    """Keep rows in the user's table, all at once. A table that cannot be written is an entry in `stats()["errors"]`."""
    if table is None or not rows:
        return
    try:
        from gemmdb.table.writer import record_live  # Needs sqlite_utils.

        record_live(table, rows, limits.STORE_S)
    except Exception as error:
        JOURNAL.error(f"confirming: {type(error).__name__}: {error}")
        _not_kept(str(table), f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=16)
def _not_kept(path: str, why: str) -> None:
    """Say once that times cannot be kept: the answers are served all the same."""
    log.warning("the next process confirms the same answers again, since %s cannot keep their times: %s", path, why)
