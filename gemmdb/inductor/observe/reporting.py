"""`report()`: what gemmdb did for the model that this process compiled, and what it gained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gemmdb.errors import InputError
from gemmdb.inductor.decide.legality import ONLY_ATEN
from gemmdb.inductor.observe.journal import JOURNAL, stats
from gemmdb.inductor.observe.reports import Report, Served
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.saving import saving
from gemmdb.settings import Policy


def report(path: str | os.PathLike[str] | None = None, name: str = "this program") -> Report:
    """What gemmdb did in this process since its start or `reset_stats`, product by product, and what it gained; also
    for graphs that came from a warm cache. Print it, or give a `path` to write it as one HTML page too.

    Of each kind of product it says how often it is in the compiled graphs, its share of their time, its kernel, the
    rung that answered, the expected gain of a call over ATen, and why ATen runs where it does. Calls of graphs are not
    counted, so each graph counts once; `gemmdb report -- python program.py` counts them.

    `name`: what the report calls the program. Raises InputError if the page cannot be written, or without
    `gemmdb[report]`, which only the page needs.
    """
    found = of_stats(stats(), name, JOURNAL.graphs)
    if path is not None:
        found.save(path)
    return found


def of_stats(said: Mapping[str, Any], name: str, graphs: int = 0) -> Report:
    """The report of what `stats()` returned. Products that it names by no problem are left out."""
    found = [one for one in map(_served, said["products"]) if one is not None]
    found.sort(key=lambda one: (-one.total_us, one.problem.text))
    uncovered = tuple(sorted(said["uncovered"].items()))
    return Report(name, graphs, tuple(found), uncovered, tuple(said.get("errors", ())))


def _served(one: Mapping[str, Any]) -> Served | None:
    try:
        problem, device = Problem.parse(one["problem"]), Device.parse(one["device"])
    except InputError:
        return None
    evidence = one.get("evidence", {})
    spread = evidence.get("spread", 0.0)
    missed = one["rung"] == "aten"
    unanswered = missed and one["config"] == ATEN.text and ONLY_ATEN not in one["note"]
    ranges = {side: (ends[0], ends[1]) for side, ends in one.get("ranges", {}).items()}
    return Served(
        problem, device, one["count"], "miss" if missed else one["rung"], one["config"], _kernel(one["config"]),
        names.ranged(names.short(problem), ranges), one["expected_us"], one["speedup_vs_aten"] or 1.0,
        spread if isinstance(spread, float) else 0.0, one["table"], one["note"] or _why(one["config"], evidence),
        ranges, saving(Ask(Query(problem, device), (), Policy(), None)) if unanswered else None,
    )  # fmt: skip


def _why(config: str, evidence: Mapping[str, Any]) -> str:
    """Why a table's answer is ATen; empty if it is not."""
    if config != ATEN.text:
        return ""
    if "why" in evidence:
        return str(evidence["why"])
    if held := evidence.get("held_back"):
        return f"{_kernel(held['config'])} gains {held['gain']:.1%} only, and {held['needed']:.1%} is needed"
    if refused := evidence.get("refused"):
        return f"{_kernel(refused[0]['config'])} may not be served: {refused[0]['reason']}"
    return "nothing measured is faster"


def _kernel(text: str) -> str:
    try:
        return names.kernel(Config.parse(text))
    except InputError:  # A choice of Inductor's own search.
        return text
