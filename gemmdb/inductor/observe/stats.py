"""`stats()`: compile results as data, shown as a table in notebooks; and text helpers shared by summary and report."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.hit import RUNGS
from gemmdb.inductor.observe import invariance
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels import names
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.outcome import RESPELLED, Kind, Outcome
from gemmdb.phases import PHASES
from gemmdb.settings import DISABLED, Settings

MAX_SHOWN = 50
"""Maximum number of GEMMs listed in a notebook; the rest are only counted."""
MAX_REASON = 150
"""Maximum length of a reason, in characters."""
MAX_WORDS = 12
"""Most words of this program's command that a line to paste repeats."""
HEADINGS = ("count", "outcome", "kernel", "one call", "over ATen", "GEMM", "why")


class Benchmarks:
    """Number of Inductor benchmarks since `clear`. Inductor's own counter can be reset at any time (for example by
    torch._dynamo.reset), so increases are accumulated at every compile."""

    def __init__(self) -> None:
        self.reader: Callable[[], int] = int
        self._seen = 0
        self._total = 0

    def tick(self) -> int:
        """Read the counter and return the total."""
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
    """The result of `stats()`: a dict that notebooks show as a table of GEMMs."""

    def _repr_html_(self) -> str:
        """Notebook representation. All table text is escaped."""
        return "".join(_html(self))


def reset_stats() -> None:
    """Clear all events and reset the counts of benchmarks and seconds."""
    JOURNAL.clear()
    BENCHMARKS.clear()
    PHASES.clear()


def stats() -> Stats:
    """Return the compile results since the start or `reset_stats` as a JSON-ready dict, including graphs from a warm
    cache.

    `products`: one entry per distinct result with `problem`, `rung`, `backend`, `kernel`, `config`, `expected_us`,
    `speedup_vs_aten`, `table`, `evidence`, `ranges`, `note`, `count`, `outcome` (what serves it, a value of
    `gemmdb.outcome.Kind`) and `why` (the reason, if the outcome needs one); `rungs`: GEMMs per rung; `hits`, `misses`;
    `uncovered`: GEMMs that gemmdb does not handle, by name; `benchmarked`: how often Inductor benchmarked a choice list
    or a padding; `frozen`: None, or for a latest compile that was frozen its `tables` (`path`, and the `digest` of the
    content), the `pins` file, and the `identity` that replicas with the same tables, policy and version share;
    `batch_invariant`: None without compiles with that policy, else the number of `covered` GEMMs in them, and
    `not_covered`: the other GEMMs, with their numbers; `errors`: failures inside gemmdb, which never fail a compile;
    `seconds`: gemmdb's overhead in the compiles, by phase (gemmdb.phases).
    """
    rungs: Counter[str] = Counter()
    uncovered: Counter[str] = Counter()
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for event in list(JOURNAL.events):
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
            continue
        rungs[event.rung] += 1
        entry = merged.setdefault(event.identity, _entry(event))
        entry["count"] += 1
    hits = sum(rungs[rung] for rung in (*RUNGS, "forced"))
    return Stats(
        products=list(merged.values()), rungs=dict(rungs), hits=hits, misses=sum(rungs.values()) - hits,
        uncovered=dict(uncovered), benchmarked=BENCHMARKS.tick(), errors=list(JOURNAL.errors),
        seconds=PHASES.seconds(), frozen=JOURNAL.frozen and dict(JOURNAL.frozen),
        batch_invariant=invariance.covered(list(JOURNAL.events)),
    )  # fmt: skip


def _entry(event: Event) -> dict[str, Any]:
    backend, _, rest = event.config.partition(":")
    expected_us, speedup = event.shown
    return {
        "problem": event.problem, "rung": event.rung, "backend": backend, "kernel": rest.partition(" ")[0],
        "config": event.config, "expected_us": expected_us, "speedup_vs_aten": speedup,
        "table": event.table, "evidence": dict(event.evidence), "ranges": dict(event.ranges), "device": event.device,
        "note": event.note, "count": 0, **_outcome(event).document(),
    }  # fmt: skip


def _outcome(event: Event) -> Outcome:
    """Return the outcome of a GEMM. Of a range of which nothing is known because no build measures it, it says so, as
    the commands do."""
    found = event.outcome
    if found.kind is not Kind.ATEN_UNKNOWN or not event.ranges:
        return found
    from gemmdb.inductor.observe.steps import unbuilt

    why = unbuilt(event)
    return replace(found, reason=why) if why else found


def _html(stats: Mapping[str, Any]) -> Iterator[str]:
    products = stats["products"]
    counts: Counter[str] = Counter()
    for one in products:
        counts[one["outcome"]] += one["count"]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no GEMM"
    yield f"<p>gemmdb: {escape(outcomes)}</p>"
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
    from gemmdb.lookup import over_sizes  # Lazy: it imports parts of the cost model, which a compile may not need.

    us, gain = one["expected_us"], over_sizes.gain_of(one)
    try:
        product = names.ranged(names.short(Problem.parse(one["problem"])), one["ranges"])
    except InputError:
        product = str(one["problem"])
    return (
        str(one["count"]), str(one["outcome"]), kernel_name(one["config"]), "" if us is None else f"{us:,.2f} us",
        "" if gain is None else gain.short, product, str(one["why"]),
    )  # fmt: skip


def kernel_name(config: str) -> str:
    """Short name of a config's kernel; unchanged for a choice of Inductor's autotuning."""
    try:
        return names.kernel(Config.parse(config))
    except InputError:
        return config


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Format one line per row with aligned columns. `right`: right-aligned columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if place in right else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def counted(number: int, noun: str) -> str:
    """Format a count: `1 graph`, `2 graphs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(words: str) -> str:
    """Shorten text to at most MAX_REASON characters."""
    return words if len(words) <= MAX_REASON else f"{words[: MAX_REASON - 3]}..."


def not_handled(uncovered: Mapping[str, int]) -> str:
    """Format the GEMMs that gemmdb does not handle: `2 x baddbmm, 1 x bmm`."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(uncovered.items()))


def failures(errors: Iterable[str]) -> Iterator[str]:
    """Format one line per failure inside gemmdb."""
    for error in errors:
        yield f"failure inside gemmdb (the compile continued without it): {shortened(error)}"


def nothing(words: str) -> str:
    """Return why there is nothing to show: `words`, or that gemmdb is disabled."""
    return f"nothing was compiled with gemmdb: {DISABLED}; unset it" if Settings.read().disabled else words


def respelled(events: Iterable[tuple[str, int]]) -> str:
    """Format how many GEMMs run what ATen stands for in the tables, and not as the program spells them; empty if none
    does. `events`: pairs of a note and the number of GEMMs with it."""
    number = sum(count for note, count in events if RESPELLED in note)
    verb = "runs" if number == 1 else "run"
    return f"{counted(number, 'GEMM')} {verb} ATen's weight-only kernel; {RESPELLED}" if number else ""


def tune_line() -> str:
    """Return the command that builds what this program misses; without the program if it is no file."""
    known = sys.argv and Path(sys.argv[0]).is_file() and len(sys.argv) <= MAX_WORDS
    return f"gemmdb tune -- python {shlex.join(sys.argv) if known else 'PROGRAM'}"
