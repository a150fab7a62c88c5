"""Formats gains: of one GEMM over ATen, and of a program timed without and with gemmdb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemmdb.cli import terminal
from gemmdb.cli.output import Cell, microseconds
from gemmdb.devices.detect import last_level_cache_bytes
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.stats import Gain

MIB = 2**20
BAR_WIDTH = 24
"""Width of the longest bar after a time."""
CHANCE = 1.1
"""A larger ratio of the times of two runs of the same kernels needs another explanation."""
NO_GAIN = "no gain, ATen runs every GEMM"
STYLES = {"faster": "green", "slower": "red"}
"""Style of a gain by its verdict."""


def gain_cell(found: Gain | None, text: str = "") -> Cell:
    """Return a table cell with a gain, empty if unknown. A certain gain is green, a certain loss is red; any other may
    be chance. `text`: for the cell, instead of the number."""
    if found is None:
        return Cell("")
    return Cell(text or found.short, STYLES.get(found.verdict, ""))


def timed_facts(us: Mapping[str, float], gain: Gain, verdict: str) -> list[tuple[str, ...]]:
    """Return the name, value and style of the lines about a program: its microseconds in each mode, and the gain.
    Disturbed times are left out."""
    if verdict == "cannot tell":
        return [("gain", "cannot tell, the times were disturbed")]
    longest = max(us.values())
    facts: list[tuple[str, ...]] = []
    for name, value in us.items():
        bar = f"  {terminal.bar(value / longest, BAR_WIDTH)}" if terminal.is_terminal() and longest else ""
        facts.append((name, f"{microseconds(value):>9}{bar}"))
    text = f"{gain.value:.3f}x, between {gain.low:.3f}x and {gain.high:.3f}x: {verdict}"
    if verdict == "same kernels":
        text = f"none, both sides run the same kernels{_disturbance(gain)}"
    return [*facts, ("gain", text, STYLES.get(verdict, ""))]


def _disturbance(found: Gain) -> str:
    """Return what else explains the times of two runs of the same kernels; empty if chance does."""
    if found.value <= 0 or not max(found.value, 1 / found.value) > CHANCE:
        return ""
    if found.verdict in STYLES:
        least = found.low if found.verdict == "faster" else 1 / found.high
        what = f"one took at least {least:.3g} times as long"
    else:
        what = f"their times vary too much to compare, between {found.low:.3g}x and {found.high:.3g}x"
    return f", but {what}: something else disturbed it; repeat it"


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
