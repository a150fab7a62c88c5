"""`stats()`: what was compiled, as data, which a notebook shows as a table; and what summary and report print alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from gemmdb.errors import InputError
from gemmdb.hit import RUNGS
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels import names
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.phases import PHASES

MAX_SHOWN = 50
"""The most GEMMs that a notebook lists; the others are counted."""
MAX_REASON = 150
"""The most characters of a reason."""
HEADINGS = ("count", "rung", "kernel", "one call", "over ATen", "product", "note")


class Benchmarks:
    """How often Inductor has benchmarked since `clear`. Inductor's own counter can be reset by anyone at any time
    (torch._dynamo.reset does), so its rises are added up at every compile."""

    def __init__(self) -> None:
        self.reader: Callable[[], int] = int
        self._seen = 0
        self._total = 0

    def tick(self) -> int:
        """Read the counter; returns the total."""
        now = self.reader()
        self._total += now - self._seen if now >= self._seen else now
        self._seen = now
        return self._total

    def clear(self) -> None:
        """Start over."""
        self.tick()
        self._total = 0


BENCHMARKS = Benchmarks()


class Stats(dict[str, Any]):
    """What `stats()` returns: a dict, which a notebook shows as a table of its GEMMs."""

    def _repr_html_(self) -> str:
        """What a notebook shows. Nothing of a table becomes markup."""
        return "".join(_html(self))


def reset_stats() -> None:
    """Forget every event, and start counting benchmarks and seconds anew."""
    JOURNAL.clear()
    BENCHMARKS.clear()
    PHASES.clear()


def stats() -> Stats:
    """What was compiled since the start or `reset_stats`, as a dict, JSON-ready, also of graphs from a warm cache.

    `products`: one entry per distinct outcome with `problem`, `rung`, `backend`, `kernel`, `config`, `expected_us`,
    `speedup_vs_aten`, `table`, `evidence`, `ranges`, `note` and `count`; `rungs`: GEMMs per rung; `hits`, `misses`;
    `uncovered`: GEMMs by name that gemmdb does not handle; `benchmarked`: times that Inductor benchmarked a choice list
    or a padding; `errors`: failures inside gemmdb, which never fail a compile; `seconds`: of gemmdb's share in the
    compiles, by phase (gemmdb.phases).
    """
    rungs: Counter[str] = Counter()
    uncovered: Counter[str] = Counter()
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for event in list(JOURNAL.events):
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
            continue
        rungs[event.rung] += 1
        entry = merged.setdefault(event.outcome, _entry(event))
        entry["count"] += 1
    hits = sum(rungs[rung] for rung in (*RUNGS, "forced"))
    return Stats(
        products=list(merged.values()), rungs=dict(rungs), hits=hits, misses=sum(rungs.values()) - hits,
        uncovered=dict(uncovered), benchmarked=BENCHMARKS.tick(), errors=list(JOURNAL.errors),
        seconds=PHASES.seconds(),
    )  # fmt: skip


def _entry(event: Event) -> dict[str, Any]:
    backend, _, rest = event.config.partition(":")
    return {
        "problem": event.problem, "rung": event.rung, "backend": backend, "kernel": rest.partition(" ")[0],
        "config": event.config, "expected_us": event.expected_us, "speedup_vs_aten": event.speedup,
        "table": event.table, "evidence": dict(event.evidence), "ranges": dict(event.ranges), "device": event.device,
        "note": event.note, "count": 0,
    }  # fmt: skip


def _html(stats: Mapping[str, Any]) -> Iterator[str]:
    products = stats["products"]
    rungs = ", ".join(f"{count} {rung}" for rung, count in stats["rungs"].items()) or "no GEMM"
    yield f"<p>gemmdb: {escape(rungs)}</p>"
    if products:
        rows = (_row("td", _cells(one)) for one in products[:MAX_SHOWN])
        yield f"<table>{_row('th', HEADINGS)}{''.join(rows)}</table>"
    if len(products) > MAX_SHOWN:
        yield f"<p>and {len(products) - MAX_SHOWN} more</p>"
    if stats["uncovered"]:
        yield f"<p>not handled by gemmdb: {escape(not_handled(stats['uncovered']))}</p>"
    yield from (f"<p>{escape(line)}</p>" for line in failures(stats["errors"]))


def _row(kind: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    us, gain = one["expected_us"], one["speedup_vs_aten"]
    try:
        product = names.ranged(names.short(Problem.parse(one["problem"])), one["ranges"])
    except InputError:
        product = str(one["problem"])
    return (
        str(one["count"]), str(one["rung"]), kernel_name(one["config"]), "" if us is None else f"{us:,.2f} us",
        "" if gain is None else f"{gain:.2f}x", product, str(one["note"]).partition("; ")[0],
    )  # fmt: skip


def kernel_name(config: str) -> str:
    """The short name of a config's kernel; the text itself for a choice of Inductor's own search."""
    try:
        return names.kernel(Config.parse(config))
    except InputError:
        return config


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """A line per row, with aligned columns. `right`: the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if place in right else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def counted(number: int, noun: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(words: str) -> str:
    """At most MAX_REASON characters."""
    return words if len(words) <= MAX_REASON else f"{words[: MAX_REASON - 3]}..."


def not_handled(uncovered: Mapping[str, int]) -> str:
    """`2 x baddbmm, 1 x bmm`: the GEMMs that gemmdb does not handle."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(uncovered.items()))


def failures(errors: Iterable[str]) -> Iterator[str]:
    """A line per failure inside gemmdb."""
    for error in errors:
        yield f"a failure inside gemmdb, which the compile went on without: {shortened(error)}"
