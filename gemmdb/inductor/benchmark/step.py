"""A compile step that runs trials: confirmation or horizontal fusion.

All trials of a step compile in parallel. They start in the joint pass, as soon as the GEMMs of a graph are known, since
Inductor's compile workers are idle while its own passes run before the post-grad pass. The post-grad pass reuses trials
that were started for the same code, and starts the rest.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmdb.inductor.benchmark import limits, trial
from gemmdb.inductor.benchmark.limits import TrialLimit
from gemmdb.inductor.benchmark.subgraph import Piece
from gemmdb.inductor.benchmark.trial import Trial, Untimed
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import Config
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

log = logging.getLogger("gemmdb")
CarryOut = Callable[[Any, Decision], None]
"""Applies a decision to its GEMM's node: stores what the lowering needs, or rewrites the graph."""
Ahead = dict[object, tuple[emission.Begun, ...]]
"""Code of one compile whose compilation was started and not awaited yet, by job key. Both passes of the compile share
it."""


class Job(ABC):
    """One trial: `piece` compiled without and with the candidate. `key`: equal for trials of the same code. `policy`:
    the policy of the trial. `saved_us`: the microseconds that the candidate is expected to save per call of the
    graph."""

    def __init__(self, piece: Piece, key: object, policy: Policy) -> None:
        self.piece, self.key, self.policy = piece, key, policy
        self.saved_us = 0.0
        self.begun: tuple[emission.Begun, ...] = ()
        # While the graph is unchanged.
        self.fakes, self.warm, self.output_bytes = piece.fakes, piece.warm, piece.outputs
        self.kinds = piece.kinds

    @abstractmethod
    def codes(self, carry_out: CarryOut) -> tuple[emission.Code, emission.Code]:
        """Return the code without and with the candidate. Raises Untimed if Inductor does not use the candidate, and
        whatever Inductor raises."""

    def begin(self, carry_out: CarryOut) -> None:
        """Generate both versions and start compiling them. Raises what `codes` raises."""
        self.begun = tuple(code.begin() for code in self.codes(carry_out))

    def ready(self, seconds: float) -> bool:
        """Wait at most `seconds` for the kernels and return whether they are compiled."""
        until = limits.now() + seconds
        return all(one.ready(until - limits.now()) for one in self.begun)

    def time(self) -> Trial:
        """Time both versions. Raises Untimed without enough memory, and whatever compiling raised."""
        plain, candidate = (begun.function() for begun in self.begun)
        with emission.real_tensors():
            trial.check_memory(self.fakes, self.output_bytes, self.piece.device)
            return trial.run((plain, candidate), self.fakes, self.warm, self.piece.device, self.kinds)

    @abstractmethod
    def finish(self) -> Any:
        """Return the trial's result once the code is compiled. Raises as `time`, and Untimed without a result."""


class Step:
    """The trials of one graph. `jobs`: started and not finished. `name`: for error messages."""

    name = ""

    def __init__(self, carry_out: CarryOut, ahead: Ahead | None = None) -> None:
        self._carry_out, self._ahead = carry_out, {} if ahead is None else ahead
        self._limit: TrialLimit | None = None
        self.jobs: list[Any] = []

    def keep(self) -> None:
        """Keep the code of the jobs for a later pass, which starts them again."""
        self._ahead.update((job.key, job.begun) for job in self.jobs if job.begun)

    def postpone(self, seconds: float) -> None:
        """Extend the limit by the seconds that another step took in the meantime."""
        if self._limit is not None:
            self._limit.postpone(seconds)

    def _begin_job(self, job: Job) -> Rejected | None:
        """Start a job unless its code was started before. Return why it was not started."""
        assert self._limit is not None
        if not self._limit.may_begin():
            return self._exceeded()
        if not limits.repays(job.saved_us, job.policy):
            return Rejected(f"it could save {job.saved_us:.1f} us per call, too little to pay for timing it")
        if job.key in self._ahead:
            job.begun = self._ahead.pop(job.key)
            return None
        rejected: Rejected | None = self._attempt(job.begin, self._carry_out)
        return rejected

    def _wait(self, job: Job, start: float) -> Rejected | None:
        """Wait for the kernels of a job. Return why the wait ended early. `start`: when the step began to wait for the
        first job."""
        assert self._limit is not None
        left_s, wait_s = self._limit.left_s(), self._limit.wait_s()
        patience_s = limits.patience_s(job.saved_us, job.policy) + start - limits.now()
        if left_s >= 0 and job.ready(min(wait_s, patience_s)):
            return None
        return Rejected("compile cost exceeds expected saving") if 0 <= wait_s > patience_s else self._exceeded()

    def _exceeded(self) -> Rejected:
        assert self._limit is not None
        return Rejected(f"{self._limit.limit_s:.3g} s limit reached")

    def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function and return its result, or a Rejected if it raises."""
        try:
            return function(*args)
        except Untimed as error:
            return Rejected(str(error))
        except Exception as error:
            log.debug("%s", self.name, exc_info=True)
            text = f"{type(error).__name__}: {error}"
            JOURNAL.error(f"{self.name}: {text}")
            return Rejected(text.splitlines()[0][:200])


def fixed(decision: Decision, config: Config) -> Decision:
    """Return a copy of a decision with one config and a session that has no other."""
    session = ForcedSession(config).variant(identity=None, policy=decision.session.policy)
    event = replace(decision.event, config=config.text, note="")
    return replace(decision, session=session, config=config, event=event, branches=(), entry=object())


def generated(graph: torch.fx.GraphModule, fakes: Sequence[torch.Tensor]) -> emission.Code:
    """Return the code of a rewritten graph."""
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return emission.generate(graph, fakes)
