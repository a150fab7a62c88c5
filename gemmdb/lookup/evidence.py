"""Evidence: a problem's measured verdicts, and plausibility checks on the tables' times.

A table can contain any number. A time that the device cannot reach would beat every honest time, so it is ignored.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any, NoReturn

from gemmdb.cost.possible import least_us, possible
from gemmdb.errors import TableError
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cublaslt import ACTIVATIONS, activation_of
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ask import Ask, Candidate
from gemmdb.outcome import DISTURBED
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table
from gemmdb.table.record import STEP, Group, Time
from gemmdb.table.verdict import Verdict

BESIDE_PADDING = "beside_padding"
"""Evidence of a GEMM that default mode may pad: whether that was measured too. If not, the config won against ATen
without padding only."""


def verdict_of(ask: Ask) -> tuple[Table, Verdict, bool | None] | None:
    """Return the first table with a verdict under the running toolchain class, else under any class; the verdict; and
    whether it was measured under the running class (None if unknown). Modelled and impossible verdicts are ignored, and
    those on activations alone."""
    passes = (None,) if ask.klass is None else (ask.klass, None)
    for klass in passes:
        for table in ask.tables:
            l2 = ask.query.l2
            verdict = ask.read(Table.verdict, table, ask.problem, ask.device, l2, klass)
            if verdict is None or verdict.protocol.clock == "model" or not believed(ask, table, verdict):
                continue
            if not _only_activations(ask, table, verdict):
                return table, verdict, verified(ask, verdict.pick, verdict.toolchain)
    return None


def modelled_verdict(ask: Ask) -> tuple[Table, Verdict] | None:
    """Return the first table with a modelled verdict, and the verdict. Its toolchain class does not matter, since
    nothing was measured."""
    for table in ask.tables:
        for verdict in ask.read(Table.verdicts, table, ask.problem, ask.device) or ():
            fits = verdict.protocol.clock == "model" and verdict.protocol.l2 == ask.query.l2
            if fits and believed(ask, table, verdict):
                return table, verdict
    return None


def exact(ask: Ask) -> Candidate | Rejected:
    """Return the candidate from the problem's own verdict: its pick, else its next servable tie, else the fastest other
    servable config."""
    found = verdict_of(ask)
    if found is None:
        number = len(ask.tables)
        return Rejected(f"no verdict for this problem on {ask.device.sku} in {number} table{'s' * (number != 1)}")
    table, verdict, holds = found
    evidence: dict[str, Any] = {
        "protocol": verdict.protocol.text,
        "runs": verdict.runs,
        "pick": verdict.pick.text,
        "ties": [config.text for config in verdict.ties],
        "spread": verdict.spread,
        "margin": 1 / verdict.ratio - 1,
        "aten_us": verdict.aten_us,
        "toolchain": verdict.toolchain.text,
        "class": verdict.klass,
        "verified": holds,
        "table": str(table.path),
    }
    config, ratio, refused = _choose(ask, table, verdict)
    if refused:
        evidence["refused"] = refused
    if default_mode.may_pad(ask.problem):
        evidence[BESIDE_PADDING] = _beside_padding(ask, table)
    runs = f"{verdict.runs} run{'s' * (verdict.runs != 1)}"
    reason = f"measured in {runs}, {verdict.pick.name} is {verdict.speedup:.3f}x ATen"
    if verdict.pick == ATEN and not table.packed and ask.read(Table.disturbed, table, ask.problem, ask.device, ATEN):
        reason = f"measured in {runs}, but {DISTURBED.removeprefix('it was ')}"
    if holds is False:
        reason += f", under another toolchain class or kernel source ({verdict.klass})"
    us = verdict.aten_us
    return Candidate(config, ratio * us, 1 / ratio, us, str(table.path), evidence, reason, holds)


def _beside_padding(ask: Ask, table: Table) -> bool:
    """Return whether the table has a time of the form in which default mode pads."""
    form, record = default_mode.padded_form(ask.problem), ask.read(Table.record, table, ask.problem, ask.device)
    return record is not None and any(time.config == form for time in record.measured)


def _choose(ask: Ask, table: Table, verdict: Verdict) -> tuple[Config, float, list[dict[str, str]]]:
    """Return the config to serve, its time relative to ATen, and the configs rejected before it."""
    refused: list[dict[str, str]] = []
    if (rejected := _rejection(ask, table, verdict.pick)) is None:
        return verdict.pick, verdict.ratio, refused
    refused.append({"config": verdict.pick.text, "reason": rejected.reason})
    pooled = ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()
    least = least_of(ask) / verdict.aten_us
    ratios = {one.config: one.ratio for one in pooled if one.servable and one.ratio >= least}
    others = [config for config in verdict.ties[1:] if config in ratios]
    for config in dict.fromkeys((*others, *ratios)):
        if config == verdict.pick:
            continue
        if config == ATEN:
            break
        if (rejected := _rejection(ask, table, config)) is None:
            return config, ratios[config], refused
        refused.append({"config": config.text, "reason": rejected.reason})
    return ATEN, 1.0, refused


def _only_activations(ask: Ask, table: Table, verdict: Verdict) -> bool:
    """Return whether a verdict for ATen is on nothing but kernels that compute an activation. A compile stores such
    rows, and they say nothing about kernels that fuse any epilogue of the class."""
    pick = verdict.pick
    if ask.problem.fusion not in ACTIVATIONS.values() or not (pick == ATEN or activation_of(pick)):
        return False
    if not ask.read(Table.few_kernels, table, ask.problem, ask.device):  # The usual case, and the quickest check.
        return False
    pooled = ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()
    alone = all(one.entry.aten or activation_of(one.config) for one in pooled)
    return alone and _choose(ask, table, verdict)[0] == ATEN


def _rejection(ask: Ask, table: Table, config: Config) -> Rejected | None:
    rejected = ask.rejection(config)
    if rejected is not None or config == ATEN:
        return rejected
    # A verdict excludes its own table's bad configs, unless rows were added since.
    settled = ask.read(Table.settled, table, ask.problem, ask.device)
    found = config in barred(ask, table if settled else None)
    return Rejected("wrong or crashed in another table, or since the verdict") if found else None


def barred(ask: Ask, but: Table | None = None) -> frozenset[Config]:
    """Return the configs that were wrong or crashed on the problem and device in any table except `but`."""
    known: frozenset[Config] | None = ask.memo.get("barred") if but is None else None
    if known is None:
        found = (ask.read(Table.barred, table, ask.problem, ask.device) for table in ask.tables if table is not but)
        known = frozenset().union(*(configs for configs in found if configs))
        if but is None:
            ask.memo["barred"] = known
    return known


def verified(ask: Ask, config: Config, toolchain: Toolchain) -> bool | None:
    """Return whether a row of `config` under `toolchain` is valid for the running toolchain: the same toolchain class
    and, for a kernel with a source, the current source and a compiler with the same output. None if the running
    toolchain is unknown."""
    running = ask.toolchain
    if running is None:
        return None
    same = toolchain.klass == running.klass and toolchain.compiles_as(running, config.backend)
    return same and (not toolchain.source or config.is_current(toolchain.source))


def believed(ask: Ask, table: Table, verdict: Verdict) -> bool:
    """Return whether a verdict's times are possible. If not, the table counts as broken for this lookup: it warns once,
    or raises TableError in strict mode."""
    if verdict_is_possible(verdict):
        return True
    ask.read(_raise_impossible, table, ask.device)
    return False


def verdict_is_possible(verdict: Verdict) -> bool:
    """Return whether the times of the pick and of ATen are possible."""
    problem, device, protocol, _, _, ratio, _, aten_us, _ = verdict
    return possible(aten_us * ratio if ratio < 1 else aten_us, problem, device, protocol.l2)


def possible_times(group: Group, problem: Problem, device: Device) -> tuple[Time, ...]:
    """Return the possible times of a group that includes ATen; empty if ATen's time is impossible."""
    fastest = min(map(itemgetter(1), group.times), default=0)  # A hostile record may be unsorted.
    if possible(group.aten_us * min(math.exp(fastest * STEP), 1.0), problem, device, group.l2):
        return group.times
    code = math.log(least_us(problem, device, group.l2) / group.aten_us) / STEP
    return tuple(time for time in group.times if time.code >= code) if code <= 0 else ()


def least_of(ask: Ask) -> float:
    """Return the minimum possible time of the problem in microseconds, for the query's cache state."""
    return least_us(ask.problem, ask.device, ask.query.l2)


def _raise_impossible(table: Table, device: Device) -> NoReturn:
    raise TableError(
        f"{table.path} has times that no {device.sku} can reach, and these do not count; `gemmdb verify` names one"
    )
