"""Rung `exact`: the same problem, measured on the same device."""

from __future__ import annotations

from typing import Any

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.ask import Ask, Step
from gemmdb.lookup.claims import believed, least_of
from gemmdb.lookup.policy_filter import gain, objection, required_gain, verified
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict


def exact(ask: Ask) -> Step:
    """The verdict of the first table that has one under the running toolchain class, else under any class."""
    found = find(ask)
    if found is None:
        return Step("exact", None, f"no verdict for this problem on {ask.device.sku} in {len(ask.tables)} table(s)")
    table, verdict, verified = found
    hit = _serve(ask, table, verdict, verified)
    return Step("exact", hit, _reason(hit, verdict, verified), hit.evidence)


def find(ask: Ask) -> tuple[Table, Verdict, bool | None] | None:
    """The table and verdict that answer, and whether the verdict was measured under the running toolchain class (None
    if unknown). Modelled verdicts do not count, since nothing was measured, and impossible ones do not."""
    passes = (None,) if ask.klass is None else (ask.klass, None)
    for klass in passes:
        for table in ask.tables:
            l2 = ask.query.l2
            verdict = ask.read(Table.verdict, table, ask.problem, ask.device, l2, klass)
            if verdict is not None and verdict.protocol.clock != "model" and believed(ask, table, verdict):
                return table, verdict, verified(ask, verdict.pick, verdict.toolchain)
    return None


def barred(ask: Ask, but: Table | None = None) -> frozenset[Config]:
    """The configs that were wrong or crashed on the problem and device in any table except `but`."""
    known: frozenset[Config] | None = ask.memo.get("barred") if but is None else None
    if known is None:
        found = (ask.read(Table.barred, table, ask.problem, ask.device) for table in ask.tables if table is not but)
        known = frozenset().union(*(configs for configs in found if configs))
        if but is None:
            ask.memo["barred"] = known
    return known


def _objection(ask: Ask, table: Table, config: Config) -> str | None:
    reason = objection(ask, config)
    if reason is not None or config == ATEN:
        return reason
    # A verdict excludes the bad configs of its own table, unless rows were added since.
    settled = ask.read(Table.settled, table, ask.problem, ask.device)
    found = config in barred(ask, table if settled else None)
    return "wrong or crashed in another table, or since the verdict" if found else None


def _serve(ask: Ask, table: Table, verdict: Verdict, verified: bool | None) -> Hit:
    evidence = _evidence(table, verdict, verified)
    config, ratio, refused = _choose(ask, table, verdict)
    if refused:
        evidence["refused"] = refused
    needed = required_gain(ask.policy, verified)
    if config != ATEN and gain(ratio) < needed:
        evidence["held_back"] = {"config": config.text, "gain": gain(ratio), "needed": needed}
        config, ratio = ATEN, 1.0
    return Hit("exact", config, ratio * verdict.aten_us, 1 / ratio, str(table.path), evidence)


def _choose(ask: Ask, table: Table, verdict: Verdict) -> tuple[Config, float, list[dict[str, str]]]:
    """The config to serve, its time relative to ATen, and the configs that were refused. The config is the pick, else
    the next of its ties that may be served, else the fastest other config that may be served."""
    refused: list[dict[str, str]] = []
    if (reason := _objection(ask, table, verdict.pick)) is None:
        return verdict.pick, verdict.ratio, refused
    refused.append({"config": verdict.pick.text, "reason": reason})
    pooled = ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()
    least = least_of(ask) / verdict.aten_us
    ratios = {one.config: one.ratio for one in pooled if one.servable and one.ratio >= least}
    others = [config for config in verdict.ties[1:] if config in ratios]
    for config in dict.fromkeys((*others, *ratios)):
        if config == verdict.pick:
            continue
        if config == ATEN:
            break
        if (reason := _objection(ask, table, config)) is None:
            return config, ratios[config], refused
        refused.append({"config": config.text, "reason": reason})
    return ATEN, 1.0, refused


def _evidence(table: Table, verdict: Verdict, verified: bool | None) -> dict[str, Any]:
    return {
        "protocol": verdict.protocol.text,
        "runs": verdict.runs,
        "pick": verdict.pick.text,
        "ties": [config.text for config in verdict.ties],
        "spread": verdict.spread,
        "margin": gain(verdict.ratio),
        "aten_us": verdict.aten_us,
        "toolchain": verdict.toolchain.text,
        "class": verdict.klass,
        "verified": verified,
        "table": str(table.path),
    }


def _reason(hit: Hit, verdict: Verdict, verified: bool | None) -> str:
    measured = f"measured in {verdict.runs} run(s), {verdict.pick.name} is {verdict.speedup:.3f}x ATen"
    if verified is False:
        measured += f", under another toolchain class or kernel source ({verdict.klass})"
    if held := hit.evidence.get("held_back"):
        return f"{measured}; ATen is served: a gain of {held['needed']:.1%} is needed"
    if hit.evidence.get("refused"):
        return f"{measured}, but may not be served; {hit.config.name} is"
    return measured
