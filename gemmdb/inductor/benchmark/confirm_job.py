"""One answer to be confirmed: compiled beside ATen, timed, and stored."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemmdb.inductor.benchmark import confirm_rules as rules
from gemmdb.inductor.benchmark import on_cpu
from gemmdb.inductor.benchmark import samples as on_gpu
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.ahead import Steer
from gemmdb.inductor.benchmark.trial import Trial, noisy
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import ForcedSession, Session
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
STORE_S = 1.0
"""How long storing the rows of trials waits for other writers, while a compile waits for it."""
_RUN = f"confirm-{uuid.uuid4().hex[:16]}"


class Unconfirmed(Exception):
    """An answer that is not timed, with the reason."""


@dataclass(frozen=True)
class Result:
    """What a trial says: the verdict, the microseconds of the answer and of ATen, and the rows for the user's table.
    Without a verdict, the result of the answer is not ATen's, and nothing was timed."""

    verdict: Verdict | None
    us: float = 0.0
    aten_us: float = 0.0
    rows: Sequence[Measurement] = ()


@dataclass
class Job:
    """Products of one graph with the same code and the same answer. `key`: what such products have in common."""

    piece: cutting.Piece
    key: object
    decisions: list[Decision] = field(default_factory=list)
    begun: tuple[emission.Begun, ...] = ()

    def __post_init__(self) -> None:
        # While the graph is as it was.
        self._fakes, self._warm, self._outputs = self.piece.fakes, self.piece.warm, self.piece.outputs

    @property
    def decision(self) -> Decision:
        """One of the decisions, which stands for all."""
        return self.decisions[0]

    @property
    def saved_us(self) -> float:
        """The microseconds that the answer is expected to save in one call of the graph."""
        event = self.decision.event
        return (event.expected_us or 0.0) * ((event.speedup or 1.0) - 1) * len(self.decisions)

    @property
    def patience_s(self) -> float:
        """How many seconds the compile waits for the code."""
        return rules.patience_s(self.saved_us, self.decision.session.policy)

    @property
    def _zeroing_us(self) -> float:
        """The share of one product in the zeroing of the graph's counters. The trial does not include it."""
        config = self.decision.config
        return ZEROING_US / len(self.decisions) if config and counts_arrivals(config) else 0.0

    def begin(self, steer: Steer) -> None:
        """Generate the code of ATen and of the answer, and begin to compile it. Raises Unconfirmed where Inductor does
        not carry the answer out, and what it raises."""
        decision = self.decision
        assert decision.config is not None
        query, policy = decision.query, decision.session.policy
        if reason := rules.hindrance(query.device) or rules.too_slow(decision.config, query, policy):
            raise Unconfirmed(reason)
        codes = [self._code(config, steer) for config in (ATEN, decision.config)]
        self.begun = tuple(code.begin() for code in codes)

    def finish(self) -> Result:
        """The result of a trial, once the code is compiled. Raises Unconfirmed where the trial says nothing, and what
        compiling raised."""
        decision, device = self.decision, self.decision.query.device
        aten, ours = (begun.function() for begun in self.begun)
        fakes, warm = self._fakes, self._warm
        with emission.real_tensors():
            if device.kind == "cuda":
                if short := on_gpu.shortage(fakes, self._outputs, self.piece.device):
                    raise Unconfirmed(short)
                found = on_gpu.trial((aten, ours), fakes, warm, self.piece.device)
            else:
                found = on_cpu.trial((aten, ours), fakes, warm)
        rows = measurements(decision, found, self._zeroing_us)
        timed = rows[-1].times
        if timed is None:
            return Result(None, rows=rows)
        # A key does not say that the program computes the weight: what was timed with it in the cache is no evidence
        # for a weight that comes from memory.
        kept = () if self.piece.computes_weight else rows
        return Result(decide(rows), timed.median_us, timed.aten_us, kept)

    def _code(self, config: Config, steer: Steer) -> emission.Code:
        """The code of the piece with `config`."""
        graph, product = self.piece.copied()
        event = replace(self.decision.event, config=config.text, note="")
        decision = replace(
            self.decision, session=only(config, self.decision.session), config=config, event=event, branches=(),
            entry=object(),
        )  # fmt: skip
        with JOURNAL.aside(), emission.undisturbed():
            JOURNAL.enter(event, decision.entry)
            steer(product, decision)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            code = emission.generate(graph, self.piece.fakes)
            (seen,) = JOURNAL.pending()
        if config != ATEN and (seen.config != config.text or seen.problem != event.problem or seen.note):
            raise Unconfirmed(seen.note or "Inductor compiles it as another problem")
        return code


def only(config: Config, like: Session) -> Session:
    """A session that answers `config` to everything."""
    return ForcedSession(config).variant(identity=None, policy=like.policy)


def measurements(decision: Decision, found: Trial, more_us: float = 0.0) -> list[Measurement]:
    """The rows of a trial: ATen and the answer, or the answer alone where its result is wrong. `more_us`: what a call
    of the answer costs beside the time in the trial. Raises Unconfirmed where the times are too unsteady."""
    toolchain, device = installed(decision.query.device.kind), decision.query.device
    assert decision.config is not None
    if toolchain is None:
        raise Unconfirmed("the versions of torch and its libraries are unknown")

    def row(config: Config, status: Status, timed: Times | None, detail: str) -> Measurement:
        made_by = replace(toolchain, source=config.digest())
        return Measurement(
            decision.problem, config, device, found.protocol, made_by, _RUN, status, timed, detail=detail
        )

    if found.differs:
        return [row(decision.config, Status.WRONG, None, "its result in a program differs from ATen's")]
    us = [one + more_us for one in found.ours]
    if noisy(found.aten, us):
        raise Unconfirmed("its times vary too much")
    aten, ours = times(found.aten, found.aten), times(us, found.aten)
    return [row(ATEN, Status.OK, aten, EMITTED), row(decision.config, Status.OK, ours, EMITTED)]


@PHASES("store")
def store(table: Path | None, rows: Sequence[Measurement]) -> None:
    """Keep rows in the user's table, all at once. A table that cannot be written is an entry in `stats()["errors"]`."""
    if table is None or not rows:
        return
    try:
        from gemmdb.table.writer import record_live  # Needs sqlite_utils.

        record_live(table, rows, STORE_S)
    except Exception as error:
        JOURNAL.error(f"confirming: {type(error).__name__}: {error}")
        _not_kept(str(table), f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=16)
def _not_kept(path: str, why: str) -> None:
    """Say once that times cannot be kept: the answers are served all the same."""
    log.warning("the next process confirms the same answers again, since %s cannot keep their times: %s", path, why)
