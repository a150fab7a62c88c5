"""Formats gains: of one GEMM over ATen, and of a program timed without and with gemmdb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from gemmdb.cli import terminal
from gemmdb.cli.output import Cell, microseconds
from gemmdb.devices.detect import last_level_cache_bytes
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.stats import Gain

MIB = 2**20
BAR_WIDTH = 24
"""Width of the longest bar after a time."""


def gain_text(found: Gain) -> str:
    """Format a gain with its interval, if it has one."""
    if found.low == found.high:
        return f"{found.value:.2f}x"
    return f"{found.value:.2f}x, between {found.low:.2f}x and {found.high:.2f}x"


CHANCE = 1.1
"""A larger ratio of the times of two runs of the same kernels needs another explanation."""


def gain_cell(low: float | None, high: float | None = None, text: str = "") -> Cell:
    """Return a table cell with a gain, empty if unknown. A certain gain is green, a certain loss is red."""
    if low is None:
        return Cell("")
    style = "green" if low > 1 else "red" if (low if high is None else high) < 1 else ""
    return Cell(text or f"{low:.2f}x", style)


def timed_facts(us: Mapping[str, float], gain: Gain, verdict: str) -> list[tuple[str, ...]]:
    """Return the name, value and style of the lines about a program: its microseconds in each mode, and the gain."""
    longest = max(us.values())
    facts: list[tuple[str, ...]] = []
    for name, value in us.items():
        bar = f"  {terminal.bar(value / longest, BAR_WIDTH)}" if terminal.is_terminal() and longest else ""
        facts.append((name, f"{microseconds(value):>9}{bar}"))
    text = f"{gain.value:.3f}x, between {gain.low:.3f}x and {gain.high:.3f}x: {verdict}"
    if verdict == "same kernels":
        ratio = max(gain.value, 1 / gain.value) if gain.value > 0 else inf
        text = "none, both sides run the same kernels"
        if ratio > CHANCE:
            text += f", but one took {ratio:.3g} times as long: something else disturbed it; repeat it"
    return [*facts, ("gain", text, {"faster": "green", "slower": "red"}.get(verdict, ""))]


def cache_hint(gemms: Iterable[tuple[Problem, Device, int]], cache: int | None = None) -> str:
    """Explain why kernels that are faster in a table may be slower in a CPU program: its operands stay in the cache,
    but tables are measured with a cold cache. Empty if that is not the cause. `gemms`: problems, devices, and how often
    each occurs in the graphs; `cache`: bytes, by default this CPU's."""
    listed = list(gemms)
    if any(device.kind != "cpu" for _, device, _ in listed):
        return ""
    moved = sum(problem.bytes * number for problem, _, number in listed)
    cache = last_level_cache_bytes() if cache is None else cache
    if not 0 < moved <= cache:
        return ""
    return (
        f"its GEMMs move {moved / MIB:.1f} MiB in total, which fits in this CPU's cache of {cache / MIB:.0f} MiB, and"
        " the times of the tables are those of cold caches: `gemmdb build --effort full` measures both, and"
        " `gemmdb lookup --l2 hot` answers for the other"
    )
