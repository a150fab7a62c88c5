"""Candidates from a cost model of the kernels: from a modelled table, or from the model's ranking."""

from __future__ import annotations

from typing import Any

from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.ask import Ask, Candidate
from gemmdb.lookup.evidence import least_of, modelled_verdict
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.prediction import remembered
from gemmdb.lookup.ranking import LIVE_CANDIDATES, rank_misaligned
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict


def modelled(ask: Ask) -> list[Candidate]:
    """Return the servable candidates in a modelled table, fastest first, then ATen; empty without such a table."""
    found = modelled_verdict(ask)
    if found is None:
        return []
    table, verdict = found
    ratios = _ratios(ask, table, verdict)
    order = sorted((config for config in ratios if config != ATEN), key=lambda config: ratios[config])
    evidence = {
        "modelled": True,
        "protocol": verdict.protocol.text,
        "aten_us": verdict.aten_us,
        "proposals": [
            {"config": config.text, "expected_us": ratios[config] * verdict.aten_us}
            for config in order[:LIVE_CANDIDATES]
        ],
        "table": str(table.path),
    }
    return [
        _candidate(config, ratio * verdict.aten_us, ratio, verdict.aten_us, str(table.path), evidence)
        for config, ratio in [*((config, ratios[config]) for config in order), (ATEN, ratios.get(ATEN, 1.0))]
    ]


def ranked(ask: Ask) -> Candidate | Rejected:
    """Return the top candidate of the model's ranking."""
    return remembered(ask, "ranked", _ranked, shared=True)


def _ranked(ask: Ask) -> Candidate | Rejected:
    found = rank_misaligned(ask)
    if isinstance(found, Rejected):
        return found
    evidence = {
        "modelled": True,
        "corrected": found.corrected,
        "aten_us": found.aten_us,
        "proposals": [{"config": one.config.text, "expected_us": one.us} for one in found.best],
    }
    best = found.best[0]
    return _candidate(best.config, best.us, best.us / found.aten_us, found.aten_us, "model", evidence)


def _candidate(
    config: Config, us: float, ratio: float, aten_us: float, table: str, evidence: dict[str, Any]
) -> Candidate:
    reason = f"modelled, not measured: {config.name} is expected at {1 / ratio:.2f}x ATen"
    return Candidate(config, us, 1 / ratio, aten_us, table, evidence, reason)


def _ratios(ask: Ask, table: Table, verdict: Verdict) -> dict[Config, float]:
    """Return the expected times of ATen and of the servable configs, relative to ATen."""
    pooled = ask.read(Table.pooled, table, ask.problem, ask.device, ask.query.l2, verdict.klass) or ()
    banned, least = unfit(ask), least_of(ask) / verdict.aten_us
    return {
        one.config: one.ratio
        for one in pooled
        if one.servable
        and one.ratio >= least
        and one.config not in banned
        and (one.config == ATEN or ask.rejection(one.config) is None)
    }
