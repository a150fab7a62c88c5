"""Human-readable results: `summary()`, and one log line per graph."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from gemmdb.advice import Act, Advice
from gemmdb.inductor.observe.journal import JOURNAL, SEARCH, Event
from gemmdb.inductor.observe.stats import (
    aligned,
    counted,
    failures,
    not_handled,
    nothing,
    respelled,
    shortened,
    tune_line,
)
from gemmdb.inductor.observe.steps import is_built, saved_us, steps, unbuilt
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, symbolic
from gemmdb.outcome import NO_TABLE, Kind, Outcome

log = logging.getLogger("gemmdb")
MAX_LISTED = 8
"""Maximum number of listed GEMMs per kind; the rest are only counted."""
MIN_SAVING_US = 0.05
"""Smaller savings print as 0.0."""
NOT_TUNED = "not tuned: "


@dataclass(frozen=True)
class Answers:
    """The GEMMs with one outcome (a value of `gemmdb.outcome.Kind`, or `all`): the total, those that run a kernel other
    than ATen's, and those with an expected time. `aten_us`, `expected_us`: microseconds per call of those with a time,
    with ATen and as compiled, of symbolic sizes at those of the compile; `ranged`: how many of them have such sizes."""

    outcome: str
    count: int = 0
    kernels: int = 0
    timed: int = 0
    aten_us: float = 0.0
    expected_us: float = 0.0
    ranged: int = 0

    @property
    def gain_us(self) -> float:
        """Expected microseconds saved per call."""
        return self.aten_us - self.expected_us

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            self.outcome, self.count + other.count, self.kernels + other.kernels, self.timed + other.timed,
            self.aten_us + other.aten_us, self.expected_us + other.expected_us, self.ranged + other.ranged,
        )  # fmt: skip


@dataclass(frozen=True)
class Product:
    """One kind of GEMM. `count`: occurrences. `us`: microseconds per call of all of them, None if unknown: the kernel's
    gain, or the estimated saving from a build if no table answers. `why`: the reason for a miss, or for rejecting the
    table's config."""

    problem: str
    count: int
    config: str
    us: float | None
    why: str = ""


@dataclass(frozen=True)
class Summary:
    """A summary of the compiles, to print or to read: answers by outcome; GEMMs that gain, largest gain first; GEMMs
    of which nothing is known, largest estimated saving first; GEMMs whose kernel was refused; names of GEMMs that
    gemmdb does not handle; failures inside gemmdb; GEMMs that only ATen can run; GEMMs that Inductor autotunes; a
    sentence on those that run ATen's kernel in place of the program's spelling; what to do about those without a
    kernel. A call counts every graph once."""

    graphs: int = 0
    answers: Sequence[Answers] = ()
    gains: Sequence[Product] = ()
    missed: Sequence[Product] = ()
    refused: Sequence[Product] = ()
    uncovered: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[str] = ()
    alone: Sequence[Product] = ()
    searched: Sequence[Product] = ()
    respelled: str = ""
    steps: Sequence[Advice] = ()

    @property
    def total(self) -> Answers:
        """Total over all answers."""
        return sum(self.answers, Answers("all"))

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """Notebook representation."""
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def line(self) -> str:
        """Format a graph as one line."""
        total, searched = self.total, sum(one.count for one in self.searched)
        parts = [f"{counted(total.count, 'GEMM')}: {_outcomes(self)}" if total.count else "no GEMM"]
        if searched:
            parts.append(f"Inductor autotunes {searched}")
        if total.timed:
            parts.append(_expected(total))
        if built := _to_build(self):
            parts.append(f"a build (`{tune_line()}`) may save {_saving(built)}")
        if self.uncovered:
            parts.append(f"not handled: {not_handled(self.uncovered)}")
        return f"graph with {'; '.join(parts)}"


def summary() -> Summary:
    """Return a summary since the start or `reset_stats`, including graphs from a warm cache."""
    return of_events(list(JOURNAL.events), JOURNAL.graphs, list(JOURNAL.errors))


def of_events(events: Iterable[Event], graphs: int, errors: Sequence[str] = ()) -> Summary:
    """Summarize the events of `graphs` graphs."""
    answers = {kind: Answers(kind.value) for kind in Kind}
    alike: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    uncovered: Counter[str] = Counter()
    for event in events:
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
        else:
            answers[event.outcome.kind] += _answer(event)
            alike[event.identity].append(event)
    gains, missed, refused, alone, searched = [], [], [], [], []
    for same in alike.values():
        one, gained = same[0], sum(_answer(event).gain_us for event in same)
        product, found = Product(_named(one), len(same), one.config, None), one.outcome
        if one.only_aten:
            alone.append(replace(product, why=found.reason))
        elif one.config == SEARCH:
            searched.append(product)
        elif found.kind is Kind.ATEN_UNKNOWN:
            saved = saved_us(one.problem, one.device)
            us = None if saved is None else len(same) * saved
            # A miss has the reason of each rung, which says no more than this.
            said = one.rung != "aten" or found.reason.startswith(NOT_TUNED)
            why = unbuilt(one) or (found.reason if said else NO_TABLE)
            missed.append(replace(product, config="", us=us, why=why))
        elif found.kind is Kind.ATEN_REFUSED:
            refused.append(replace(product, why=found.reason))
        elif gained > 0:
            gains.append(replace(product, us=gained, why=one.note if "horizontal" in one.evidence else ""))
    return Summary(
        graphs,
        tuple(one for one in answers.values() if one.count),
        tuple(sorted(gains, key=lambda one: -(one.us or 0.0))),
        tuple(sorted(missed, key=lambda one: (-(one.us or 0.0), one.problem))),
        tuple(refused), dict(uncovered), tuple(errors), tuple(alone), tuple(searched),
        respelled((one.note, len(same)) for same in alike.values() for one in same[:1]),
        steps(alike.values()),
    )  # fmt: skip


def log_graph(events: Sequence[Event], _artefact: Any = None) -> None:
    """Log one line about a graph that is ready. Never fails the compile."""
    if not log.isEnabledFor(logging.INFO):
        return
    try:
        log.info("%s", of_events(events, 1).line)
    except Exception as error:
        log.debug("no summary of a graph: %s", error)


def _answer(event: Event) -> Answers:
    """One GEMM's answer."""
    kernels, (us, speedup) = int(event.config not in (ATEN.text, SEARCH)), event.shown
    if not us or not speedup:
        return Answers("", 1, kernels)
    ranged = bool(symbolic(event.ranges))
    return Answers("", 1, kernels, 1, us * speedup, us, int(ranged))


def _named(one: Event) -> str:
    """Short name of a problem: op, sizes, dtypes, fusion, ranges."""
    try:
        problem = Problem.parse(one.problem)
    except Exception:
        return one.problem
    fused = "" if problem.fusion == "none" else f" +{problem.fusion}"
    return names.ranged(f"{problem.head} {names.dtypes(problem)}{fused}", one.ranges)


def _outcomes(of: Summary) -> str:
    """Format the number of GEMMs by outcome: `2 table, 3 ATen (nothing known)`."""
    return ", ".join(f"{one.count} {one.outcome}" for one in of.answers)


def _lines(of: Summary) -> Iterator[str]:
    if not of.graphs:
        yield f"gemmdb: {nothing('no graph with a GEMM was compiled')}"
    else:
        yield f"gemmdb: {counted(of.graphs, 'graph')} with {counted(of.total.count, 'GEMM')}"
    if of.total.timed:
        yield f"per call of {'the graph' if of.graphs == 1 else 'all graphs'}: {_expected(of.total)}"
    if of.answers:
        rows = [("outcome", "GEMMs", "kernels", "ATen us", "expected us", "gain us", "gain"), *map(_row, of.answers)]
        yield ""
        yield from aligned([*rows, _row(of.total)] if len(of.answers) > 1 else rows, right=range(1, 7))
    gains = [replace(one, why=", ".join(filter(None, (one.config.split()[0], one.why)))) for one in of.gains]
    yield from _listed("largest gains", gains)
    if of.missed:
        built = _to_build(of)
        title = Kind.ATEN_UNKNOWN + (f"; a build may save {_saving(built)}" if built else "")
        yield from _listed(title, of.missed, unknown="unknown")
        if built:
            yield f"  to build: {tune_line()}"
    yield from _listed(f"{Kind.TUNED} by Inductor, as max_autotune requests", of.searched)
    yield from _listed(Kind.ATEN_REFUSED.value, of.refused)
    for why in dict.fromkeys(one.why for one in of.alone):
        title = str(Outcome(Kind.ATEN_REFUSED, shortened(why)))
        yield from _listed(title, [replace(one, why="") for one in of.alone if one.why == why])
    if of.respelled:
        yield ""
        yield of.respelled
    if of.uncovered:
        yield ""
        yield f"not handled by gemmdb: {not_handled(of.uncovered)}"
    if said := [one for one in of.steps if one.act in (Act.IDLE, Act.BOUND, Act.TIGHTEN)]:
        yield ""
        yield from (f"to do: {one}" for one in said)
    yield from failures(of.errors)


def _to_build(of: Summary) -> list[Product]:
    """Return what a build may measure among the GEMMs of which nothing is known."""
    return [one for one in of.missed if is_built(one.why)]


def _row(one: Answers) -> tuple[str, ...]:
    head = one.outcome, str(one.count), str(one.kernels)
    if not one.timed:
        return (*head, "-", "-", "-", "-")
    return (*head, _us(one.aten_us), _us(one.expected_us), _us(one.gain_us), f"{one.gain_us / one.aten_us:.1%}")


def _listed(title: str, products: Sequence[Product], unknown: str = "") -> Iterator[str]:
    """Format a title and one line per GEMM with aligned columns; nothing without GEMMs. `unknown`: text for an unknown
    time."""
    if not products:
        return
    yield ""
    yield title
    shown = products[:MAX_LISTED]
    rows = [
        (unknown if one.us is None else f"{_us(one.us)} us", f"{one.count} x", one.problem, shortened(one.why))
        for one in shown
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for amount, count, problem, words in rows:
        cells = (f"{amount:>{widths[0]}}", f"{count:>{widths[1]}} {problem:<{widths[2]}}", words)
        yield f"  {'  '.join(cell for cell in cells if cell)}".rstrip()
    if rest := sum(one.count for one in products[MAX_LISTED:]):
        yield f"  and {counted(rest, 'GEMM')} more"


def _expected(total: Answers) -> str:
    gain = total.gain_us
    less = f"{_us(abs(gain))} us {'less' if gain >= 0 else 'more'} ({abs(gain) / total.aten_us:.1%})"
    some = "" if total.timed == total.count else f", for the {total.timed} with a known time"
    at = f", at the compiled sizes of {total.ranged} with ranges" if total.ranged else ""
    return f"expected {_us(total.expected_us)} us instead of {_us(total.aten_us)} with ATen: {less}{some}{at}"


def _saving(missed: Sequence[Product]) -> str:
    """Format the estimated saving from a build for all GEMMs without an answer."""
    known = sum(one.us for one in missed if one.us is not None)
    unknown = sum(one.count for one in missed if one.us is None)
    if not unknown:
        return f"about {_us(known)} us per call" if known >= MIN_SAVING_US else "nothing"
    if not known:
        return "an unknown time"
    return f"about {_us(known)} us per call, plus an unknown time for {counted(unknown, 'GEMM')}"


def _us(value: float | None) -> str:
    return f"{value or 0.0:,.1f}"
