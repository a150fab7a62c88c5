"""Confirming the configs of a symbolic M: each is timed at fixed sizes of the part of the range that it serves.

`gemmdb.lookup.acceptance.by_rows` says which configs were not measured at which sizes. Each is timed at the hint, and
at the largest of its sizes where a trial can pay off: up to there it is served if it is confirmed at both. What needs
no confirming takes the place of the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg

from gemmdb.hit import ATEN_BETWEEN, Branches
from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.subgraph import Piece, computes_weight
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.match import fx
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import lowering
from gemmdb.outcome import NOT_CONFIRMED


def unmeasured(decision: Decision) -> bool:
    """Return whether a decision for a symbolic M has a config that must be confirmed."""
    evidence = decision.event.evidence
    return bool(evidence.get("unmeasured")) and "confirmed_at" not in evidence


def parts(decision: Decision, times: int = 1) -> list[Decision]:
    """Return the decisions at fixed sizes that have to be confirmed; only the decision itself for fixed sizes. `times`:
    how often the graph has the GEMM."""
    if not unmeasured(decision):
        return [decision]
    return [
        at_size(decision, one["m"], Config.parse(one["config"]), expected_us=one["us"], speedup=one["speedup"])
        for one in _decisive(decision, times)
    ]


def at_size(decision: Decision, rows: int, config: Config, **facts: Any) -> Decision:
    """Return the decision for a config at a fixed size. `facts`: of its event, such as its time there."""
    problem = decision.problem.resized(rows, decision.problem.n, decision.problem.k)
    event = replace(decision.event, problem=problem.text, config=config.text, evidence={}, ranges={}, **facts)
    query = replace(decision.query, problem=problem, ranges={})
    return replace(decision, query=query, config=config, event=event, branches=(), entry=object())


def weight(decision: Decision, part: Decision) -> float:
    """Return the time of a GEMM with ATen at the hint, relative to that at the size of one of its `parts`: a saving
    counts as a share of what the graph takes at that size. 1 if a time is unknown."""
    us = [one.event.expected_us and one.event.expected_us * (one.event.speedup or 1.0) for one in (decision, part)]
    return us[0] / us[1] if us[0] and us[1] else 1.0


def _decisive(decision: Decision, times: int) -> Iterator[Mapping[str, Any]]:
    """Yield what is timed of the unmeasured configs: each at the largest size where that can pay off, or at its largest
    size, and at the hint below. `times`: as for `parts`."""
    for inside in _unmeasured_by_run(decision).values():
        paying = [one for one in inside if limits.repays(times * _saved_us(one), decision.session.policy)]
        last = (paying or inside)[-1]
        yield from (one for one in inside if one["m"] == decision.problem.m < last["m"])
        yield last


def _saved_us(one: Mapping[str, Any]) -> float:
    return float(one["us"]) * (float(one["speedup"]) - 1)


def _unmeasured_by_run(decision: Decision) -> dict[int | None, list[Mapping[str, Any]]]:
    """Return the sizes with an unmeasured config, smallest first, by the limit of the run with them."""
    own, runs, found = _own(decision), _runs(decision), dict[int | None, list[Mapping[str, Any]]]()
    for one in sorted(decision.event.evidence["unmeasured"], key=lambda one: int(one["m"])):
        found.setdefault(runs[_limit(own, one["m"])], []).append(one)
    return found


def _runs(decision: Decision) -> dict[int | None, int | None]:
    """Return the limit of each part's run: parts of one config, with nothing between them but what ATen gets between
    two sizes. Those parts of ATen's are left out."""
    between = {tuple(one) for one in decision.event.evidence.get(ATEN_BETWEEN, ())}
    found: dict[int | None, int | None] = {}
    run, last, low = list[int | None](), ATEN, 0
    for limit, config in _own(decision):
        part, low = (low + 1, limit), limit or low
        if config == ATEN and part in between:
            continue
        run = [*run, limit] if config == last else [limit]
        last = config
        found |= dict.fromkeys(run, limit)
    return found


def _own(decision: Decision) -> Branches:
    return decision.branches or ((None, decision.config or ATEN),)


def joined(decision: Decision, timed: Sequence[tuple[Decision, Decision]]) -> Decision:
    """Return the decision for a symbolic M. `timed`: each of its `parts`, with what was decided after the trial."""
    why = {(part.event.config, part.problem.m): _lost(part, decided) for part, decided in timed}
    told = {f"{text} at m={rows}": reason or "confirmed" for (text, rows), reason in why.items()}
    event = replace(decision.event, evidence={**decision.event.evidence, "confirmed_at": told})
    own, lost = _parted(decision, {rows: reason for (_, rows), reason in why.items()})
    if not lost:
        return replace(decision, event=event)
    branches = _without(decision, own, lost)
    notes = [f"{Config.parse(text).name} at m={rows}: {reason}" for (text, rows), reason in why.items() if reason]
    here = _at(branches, decision.problem.m)
    evidence = _with_kernels(event.evidence, branches)
    note = NOT_CONFIRMED + "; ".join(notes) if notes else event.note
    event = replace(event, note=note, config=here.text, evidence=evidence)
    if here != decision.config:
        event = replace(event, expected_us=None, speedup=None)
    return replace(decision, config=here, branches=branches if len(branches) > 1 else (), event=event)


def _parted(decision: Decision, why: Mapping[int, str]) -> tuple[Branches, set[int | None]]:
    """Return the parts of the range, and the limits of those whose configs are not served. A run ends at the size up
    to which its config was confirmed, where a part may end, too. `why`: the sizes of the trials, with the reasons of
    those that confirmed nothing."""
    guessed, runs = _unmeasured_by_run(decision), _runs(decision)
    parted, lost, low = list[tuple[int | None, Config]](), set[int | None](), 0
    for limit, config in _own(decision):
        sizes = [int(one["m"]) for one in guessed.get(runs.get(limit, -1), ())]
        timed = [rows for rows in sizes if rows in why]
        if any(why[rows] for rows in timed):
            lost.add(limit)
        elif timed and timed[-1] < sizes[-1] and (limit is None or timed[-1] < limit):
            if low < timed[-1]:
                parted.append((timed[-1], config))
            lost.add(limit)
        parted.append((limit, config))
        low = limit or low
    return tuple(parted), lost


def _lost(part: Decision, decided: Decision) -> str:
    """Return why a config was not confirmed at a size; empty if it was."""
    if "confirmed" in decided.event.evidence and decided.config == part.config:
        return ""
    return decided.event.note.removeprefix(NOT_CONFIRMED) or "it was not timed"


def _without(decision: Decision, own: Branches, lost: Collection[int | None]) -> Branches:
    """Return `own` with what needs no confirming in place of the parts with a lost limit, if it can share a node with
    the kernels that are left, else with ATen. If none is left, return what needs no confirming."""
    hit = deciding.ask(decision.session, decision.query, Mode.CERTAIN)
    certain: Branches = ((None, ATEN),)
    if hit is not None and deciding.allowed(decision, hit):
        certain = hit.branches or ((None, hit.config),)
    if all(limit in lost or config == ATEN for limit, config in own):
        return certain
    shares = all(lowering.joins(config, decision.problem) for _, config in certain)
    return _merged(own, certain if shares else ((None, ATEN),), lost)


def _with_kernels(evidence: Mapping[str, Any], branches: Branches) -> dict[str, Any]:
    """Return evidence whose `kernels` are those of `branches`; without these if all are ATen's."""
    before = evidence.get("kernels", ())
    sizes = sorted({rows for part in before for rows in part["m"]})
    found = []
    for limit, config in branches:
        served = [rows for rows in sizes if _limit(branches, rows) == limit]
        part = {"m": served, "config": config.text}
        if served:  # Not a part between two sizes.
            found.append(next((one for one in before if {**one, **part} == one), part))
    kernels = {} if all(config == ATEN for _, config in branches) else {"kernels": found}
    return {name: fact for name, fact in evidence.items() if name != "kernels"} | kernels


def _merged(own: Branches, instead: Branches, lost: Collection[int | None]) -> Branches:
    """Return the configs of `own`, with those of `instead` in place of the parts with a lost limit."""
    found: list[tuple[int | None, Config]] = []
    for limit in (*sorted({limit for limit, _ in (*own, *instead) if limit is not None}), None):
        config = _at(instead if _limit(own, limit) in lost else own, limit)
        if found and found[-1][1] == config:
            found.pop()
        found.append((limit, config))
    return tuple(found)


def served(decision: Decision, rows: int) -> Config:
    """Return the config that serves so many rows."""
    return _at(_own(decision), rows)


def _at(branches: Branches, rows: int | None) -> Config:
    """Return the config that serves so many rows, or those beyond all limits (None)."""
    limit = _limit(branches, rows)
    return next(config for one, config in branches if one == limit)


def _limit(branches: Branches, rows: int | None) -> int | None:
    return next(limit for limit, _ in branches if limit is None or (rows is not None and rows <= limit))


def piece(node: Any, problem: Problem, places: Mapping[Any, int], symbolic: bool) -> Piece:
    """Return the piece of a GEMM, at the rows of `problem` if those of `node` are symbolic. Raises Untimed."""
    if not symbolic:
        return cutting.cut(node, problem, places)
    if computes_weight(node):
        raise Untimed("the program computes its weight")
    found = cutting.cut(node, problem, places, symbolic=True)
    return _fixed(found, symbol(node), problem.m)


def symbolic_sizes(node: Any) -> list[Any]:
    """Return the symbolic sizes of a GEMM's output."""
    return [size for size in fx.value(node).shape if isinstance(size, torch.SymInt)]


def symbol(node: Any) -> Any:
    """Return the symbol that is M of a GEMM. Raises Untimed if it is another expression."""
    m = fx.value(node).shape[-2]
    symbols = list(m.node.expr.free_symbols) if isinstance(m, torch.SymInt) else []
    if len(symbols) != 1 or m.node.expr != symbols[0]:
        raise Untimed("its M is not a size of an input")
    return symbols[0]


def fixed(value: torch.Tensor, name: Any, rows: int, mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake tensor with a number in place of the symbol `name`, at the start of its memory. Raises Untimed if
    another size is symbolic."""
    sizes, strides = ([_number(one, name, rows) for one in part] for part in (value.shape, value.stride()))
    with mode:
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def _number(size: Any, name: Any, rows: int) -> int:
    expression = size.node.expr.xreplace({name: rows}) if isinstance(size, torch.SymInt) else size
    try:
        return int(expression)
    except TypeError as error:
        raise Untimed("another of its sizes is symbolic") from error


def _fixed(found: Piece, name: Any, rows: int) -> Piece:
    """Return a copy of a piece with a number in place of the symbol `name`."""
    graph, new, mode = torch.fx.Graph(), dict[Any, Any](), FakeTensorMode()

    def argument(arg: Any) -> Any:
        value = arg.meta.get("val")
        return _number(value, name, rows) if isinstance(value, torch.SymInt) else new[arg]

    for node in found.inputs:
        new[node] = graph.node_copy(node) if node.op == "get_attr" else graph.placeholder(node.name)
        new[node].meta["val"] = fixed(fx.value(node), name, rows, mode)
    for node in found.nodes:
        new[node] = graph.create_node(
            node.op, node.target, map_arg(node.args, argument), map_arg(node.kwargs, argument), node.name
        )
        new[node].meta.update({key: one for key, one in node.meta.items() if key not in ("val", "tensor_meta")})
        args, kwargs = (map_arg(part, lambda arg: arg.meta["val"]) for part in (new[node].args, new[node].kwargs))
        with mode:
            new[node].meta["val"] = node.target(*args, **kwargs)
    graph.output(tuple(new[node] for node in found.results))
    nodes, given, settled = (tuple(new[one] for one in part) for part in (found.nodes, found.inputs, found.settled))
    return Piece(new[found.gemm], nodes, given, settled, tuple(found.warm))
