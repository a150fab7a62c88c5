"""The jobs of the algorithm search: on which operands GEMMs are searched, and the rows of a trial."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gemmdb.cublaslt.shape import EXTRAS
from gemmdb.inductor.benchmark import algorithm_rules, algorithm_trial, at_rows, payoff, rules, subgraph
from gemmdb.inductor.benchmark.algorithm_rules import aten_us
from gemmdb.inductor.benchmark.algorithm_trial import Operands, Race
from gemmdb.inductor.benchmark.limits import Extent
from gemmdb.inductor.benchmark.trial import GPU, Untimed, noisy
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import calls, fx
from gemmdb.inductor.match.calls import Call
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.menus import cublaslt
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.toolchain import installed
from gemmdb.lookup import slow_calls
from gemmdb.lookup.acceptance import extern
from gemmdb.lookup.acceptance.extern import unfused
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.measurement import EMITTED, Measurement, Status
from gemmdb.table.stats import times
from gemmdb.table.verdict import decide

log = logging.getLogger("gemmdb")
NAME = "algorithm search"
_RUN = f"algorithms-{uuid.uuid4().hex[:16]}"
_aten = torch.ops.aten
_PLAIN = (_aten.mm.default, _aten.bmm.default, _aten._int_mm.default)
"""Operators whose arguments are A and B."""


@dataclass(frozen=True)
class Found:
    """The fastest algorithm for a GEMM without its epilogue, or ATen where none is certainly faster: its microseconds
    and ATen's. `ratio`: of the two, from the verdict. `protocol`: the text of how it was timed."""

    config: Config
    us: float
    aten_us: float
    ratio: float
    protocol: str = GPU.text

    @property
    def saved_us(self) -> float:
        """The microseconds that it saves per call."""
        return self.aten_us - self.us


class SearchJob:
    """GEMMs of one graph that differ only in their epilogues. `us`: the microseconds of all of them per call of the
    graph."""

    def __init__(self, operands: Operands) -> None:
        self.operands, self.decisions, self.us = operands, list[Decision](), 0.0

    @property
    def key(self) -> object:
        """Equal for the same GEMM in other graphs where the host's time counts as much."""
        policy = state.applied(self.policy)
        return self.operands.key, policy.captured, policy.training

    @property
    def policy(self) -> Policy:
        """The policy of the graph."""
        return self.decisions[0].session.policy

    def add(self, decision: Decision) -> None:
        """Add a GEMM."""
        self.decisions.append(decision)
        self.us += aten_us(decision)

    def search(self, rows: list[Measurement], extent: Extent) -> Found | Rejected:
        """Return the result, from the user's tables or from a trial of this extent, whose rows are added to `rows`."""
        decision = self.decisions[0]
        ask = payoff.ask_of(decision.session, decision.query)
        try:
            return self._result(ask, rows, extent)
        except Untimed as error:
            found = Rejected(str(error))
        except Exception as error:
            log.debug(NAME, exc_info=True)
            JOURNAL.error(f"{NAME}: {type(error).__name__}: {error}")
            found = Rejected(f"{type(error).__name__}: {error}".splitlines()[0][:200])
        log.debug("%s: no algorithm for %s: %s", NAME, self.operands.problem.text, found)
        return found

    def _result(self, ask: Ask, rows: list[Measurement], extent: Extent) -> Found:
        """Return the result. Raises Untimed without one."""
        if (found := _stored(ask)) is not None:
            # The process that timed it may have had a CUDA graph.
            return ATEN_SERVES if found.config != ATEN and self._is_slow_to_call(found) else found
        wrong, timed = self._raced(ask, extent)
        rows += wrong
        found = result(timed, self._is_slow_to_call)
        if found.saved_us >= self._hidden_us(ask, found):
            rows += timed
        return found

    def _hidden_us(self, ask: Ask, found: Found) -> float:
        """Return the microseconds per call that the best kernel of ours is expected to save, in a table's verdict or in
        a decision that is still to be confirmed: rows of algorithms that save less must not hide it. Negative infinity
        without one."""
        known = extern.pick(ask)
        ours = [saved_us(one.event) for one in self.decisions if _is_ours(one.config)]
        if known is not None and _is_ours(known.config):
            ours.append(found.aten_us * (1 - 1 / known.speedup))
        return max(ours, default=-math.inf)

    def _is_slow_to_call(self, found: Found) -> bool:
        """Return whether the calls of an algorithm take the host too long."""
        decision = self.decisions[0]
        policy = state.applied(self.policy)
        return slow_calls(found.config, decision.query, found.us, found.aten_us / found.us, policy) is not None

    def _raced(self, ask: Ask, extent: Extent) -> tuple[list[Measurement], list[Measurement]]:
        """Return the rows of a trial: (those of wrong algorithms, the others)."""
        problem, activation = self.operands.problem, self.operands.activation
        at = ask.at(problem)

        def allowed(config: Config) -> bool:
            return at.rejection(config) is None and legality.rejection(config, at.query) is None

        proposed = [one.config for one in self.decisions if is_guess(one) and one.config is not None]
        proposed = [activated(one, activation) for one in (*proposed, *cublaslt.configs(unfused(problem), at.device))]
        return measurements(at, algorithm_trial.race(self.operands, proposed, allowed, extent))


class ActivationJob(SearchJob):
    """GEMMs of one graph with the same activation, which cuBLASLt computes, too. They are compared with ATen's GEMM and
    torch's kernel for the activation. That is not what Inductor emits, so the result is confirmed, and no rows are
    stored here."""

    def _result(self, ask: Ask, rows: list[Measurement], extent: Extent) -> Found:
        return result(self._raced(ask, extent)[1], self._is_slow_to_call)


def jobs_of(pairs: Sequence[tuple[Any, Decision]], of_activations: bool = False) -> list[SearchJob]:
    """Return the jobs of a graph, those with the longest time first: for its GEMMs without their epilogues, or
    `of_activations`, for those with an activation."""
    jobs: dict[object, SearchJob] = {}
    for decision, operands in _eligible(pairs, of_activations):
        jobs.setdefault(operands.key, (ActivationJob if of_activations else SearchJob)(operands)).add(decision)
    return sorted(jobs.values(), key=lambda job: -job.us)


def _eligible(
    pairs: Sequence[tuple[Any, Decision]], of_activations: bool
) -> Iterator[tuple[Decision, Operands]]:  # fmt: skip
    rejection = algorithm_rules.activation_rejection if of_activations else algorithm_rules.rejection
    for node, decision in pairs:
        try:
            found = rejection(decision, node)
            if found is None:
                yield decision, operands_of(node, decision, of_activations)
        except (Untimed, fx.Unsupported) as error:
            found = Rejected(str(error))
        if found is not None:
            log.debug("%s: not for %s: %s", NAME, decision.problem.head, found)


def operands_of(node: Any, decision: Decision, with_activation: bool = False) -> Operands:
    """Return the operands of a GEMM's node, without its epilogue, or `with_activation`; at the decision's M if that of
    the node is symbolic. Raises Untimed if its call is not ATen's."""
    call = _call(node)
    given = dict(zip(("scale_a", "scale_b"), call.scales, strict=False))
    given |= {} if call.bias is None else {"bias": call.bias}
    nodes = [call.a, call.b, *(given[name] for name in EXTRAS if name in given)]
    fakes = tuple(fx.value(one) for one in nodes)
    if at_rows.symbolic_sizes(node) and not decision.query.symbolic:
        fakes = _at_rows(node, fakes, decision.problem.m)
    if any(type(step) is not int for one in fakes for step in (*one.shape, *one.stride(), one.storage_offset())):
        raise Untimed("its sizes are symbolic")
    problem = decision.problem if with_activation else unfused(decision.problem)
    batched = problem.spec.batched  # Its second operand is no weight.
    warm = (True, batched and not subgraph.given(nodes[1]), *(False for _ in given))
    operands = Operands(problem, fakes, warm, decision.query.activation if with_activation else "")
    for fake, (name, extra) in zip(fakes[2:], operands.shape.extras.items(), strict=True):
        if not extra.fits(fake.shape, fake.stride()):
            raise Untimed(f"its {name} does not lie as cuBLASLt reads it")
        if fake.storage_offset() * fake.itemsize % VECTOR_BYTES:
            raise Untimed(f"its {name} does not start at a multiple of 16 bytes")
    return operands


def _is_ours(config: Config | None) -> bool:
    return config not in (None, ATEN) and not config.spec.extern


def _at_rows(node: Any, fakes: Sequence[torch.Tensor], rows: int) -> tuple[torch.Tensor, ...]:
    """Return the operands of a node with so many rows; those without a symbolic size as they are."""
    name, mode, found = at_rows.symbol(node), FakeTensorMode(), list[torch.Tensor]()
    for one in fakes:
        if all(type(size) is int for size in (*one.shape, *one.stride(), one.storage_offset())):
            found.append(one)
        elif type(one.storage_offset()) is not int or one.storage_offset():
            raise Untimed("an operand with a symbolic size does not start where its memory does")
        else:
            found.append(at_rows.fixed(one, name, rows, mode))
    return tuple(found)


def _call(node: Any) -> Call:
    """Return the arguments of a GEMM's node. Raises Untimed if its call is not ATen's."""
    if node.target in calls.scaled_targets():
        return calls.read(node.target, node.args, node.kwargs)
    if node.target in _PLAIN:
        return Call(*node.args[:2])
    if node.target is _aten.addmm.default:
        bias, a, b = node.args
        return Call(a, b, bias=bias)
    raise Untimed(f"{node.target} is no call of ATen's")


def measurements(ask: Ask, raced: Race) -> tuple[list[Measurement], list[Measurement]]:
    """Return the rows of a trial: (those of wrong algorithms, those of ATen and the algorithms timed against it).
    Raises Untimed if the times are too noisy."""
    toolchain = installed(ask.device.kind)
    if toolchain is None:
        raise Untimed("the versions of torch and its libraries are unknown")

    def row(config: Config, status: Status, us: Sequence[float], detail: str) -> Measurement:
        made_by = replace(toolchain, source=config.digest())
        timed = times(us, raced.aten) if us else None
        return Measurement(ask.problem, config, ask.device, GPU, made_by, _RUN, status, timed, detail=detail)

    steady = {config: us for config, us in raced.finalists.items() if not noisy(raced.aten, us)}
    if raced.finalists and not steady:
        raise Untimed("its times vary too much")
    wrong = [row(config, Status.WRONG, (), "its result differs from ATen's") for config in raced.wrong]
    # Inductor emits the same call, so nothing else needs to be timed.
    timed = {ATEN: raced.aten, **steady} if steady else {}
    return wrong, [row(config, Status.OK, us, EMITTED) for config, us in timed.items()]


def result(rows: Sequence[Measurement], refused: Callable[[Found], bool] = lambda found: False) -> Found:
    """Return the result of a trial from its rows: the fastest algorithm that is not `refused`. Raises Untimed without
    any times."""
    verdict = decide(rows)
    if verdict is None:
        raise Untimed("the results of all algorithms differ from ATen's")
    us = {row.config: row.times.median_us for row in rows if row.times}
    found = Found(verdict.pick, us[verdict.pick], us[ATEN], verdict.ratio)
    if found.config == ATEN or not refused(found):
        return found
    return result([row for row in rows if row.config != found.config], refused)


ATEN_SERVES = Found(ATEN, 1.0, 1.0, 1.0)


def _stored(ask: Ask) -> Found | None:
    """Return the result of an earlier process, None without one."""
    if not extern.tried(ask):
        return None
    hit = extern.pick(ask)
    if hit is None or not hit.config.spec.extern:
        return ATEN_SERVES
    protocol = str(hit.evidence["protocol"])
    return Found(hit.config, hit.expected_us, hit.expected_us * hit.speedup, 1 / hit.speedup, protocol)


def is_guess(decision: Decision) -> bool:
    """Return whether the config is an algorithm that was not measured for this GEMM."""
    config = decision.config
    return config is not None and config.spec.extern and rules.unmeasured(decision)


def saved_us(event: Event) -> float:
    """Return the microseconds that a GEMM's config is expected to save per call; 0 if that is unknown."""
    return (event.expected_us or 0.0) * ((event.speedup or 1.0) - 1)
