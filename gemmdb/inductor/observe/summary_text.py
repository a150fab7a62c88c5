"""A summary of what gemmdb did, and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

MOST = 8
"""The most products that are listed of a kind; the others are counted."""
LONGEST = 150
"""The most characters of a reason."""
LEAST_US = 0.05
"""Savings below this print as 0.0."""
NO_ANSWER = "no answer"
ALONE = "only ATen"
"""The place of a rung for products that no other kernel can serve."""
OTHERS = {"aten": "without an answer", "live": "tuned now", "forced": "forced", ALONE: "that only ATen can serve"}
"""The rungs that are no table's, in words."""
TUNE = "gemmdb tune -- python PROGRAM"
BUILD = "gemmdb record -- python PROGRAM; gemmdb build --arch native --shapes workload.jsonl"


@dataclass(frozen=True)
class Answers:
    """The products that one rung answered: how many, how many of them run another kernel than ATen's, and how many have
    an expected time. `aten_us`, `expected_us`: microseconds per call of those with a time, with ATen and as compiled.
    """

    rung: str
    count: int = 0
    kernels: int = 0
    timed: int = 0
    aten_us: float = 0.0
    expected_us: float = 0.0

    @property
    def gain_us(self) -> float:
        """The expected microseconds that a call becomes shorter by."""
        return self.aten_us - self.expected_us

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            self.rung, self.count + other.count, self.kernels + other.kernels, self.timed + other.timed,
            self.aten_us + other.aten_us, self.expected_us + other.expected_us,
        )  # fmt: skip


@dataclass(frozen=True)
class Product:
    """One kind of product. `count`: how many there are. `us`: microseconds per call of all of them, None if unknown:
    what the kernel gains, or what a build may save where no table answers. `why`: the reason of a miss, or of not
    using what the table names."""

    problem: str
    count: int
    config: str
    us: float | None
    why: str = ""


@dataclass(frozen=True)
class Summary:
    """What was compiled. Print it, or read it: the answers by rung; the products that gain, the most first; those that
    no table answers, those that a build may save most on first; those whose answer could not be used; the names of
    products that gemmdb does not steer; failures inside gemmdb; those that only ATen can serve; those that Inductor
    searches. A call counts every graph once."""

    graphs: int = 0
    answers: Sequence[Answers] = ()
    gains: Sequence[Product] = ()
    missed: Sequence[Product] = ()
    refused: Sequence[Product] = ()
    uncovered: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[str] = ()
    alone: Sequence[Product] = ()
    searched: Sequence[Product] = ()

    @property
    def total(self) -> Answers:
        """All answers together."""
        return sum(self.answers, Answers("all"))

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def line(self) -> str:
        """One line about a graph."""
        return _line(self)


def _line(of: Summary) -> str:
    total = of.total
    searched = sum(one.count for one in of.searched)
    aten = total.count - total.kernels - searched
    parts = [f"{_count(total.count, 'product')}: {_sources(of)}" if total.count else "no product"]
    if aten and total.kernels:
        parts.append(f"ATen runs {aten}")
    if searched:
        parts.append(f"Inductor searches {searched}")
    if total.timed:
        parts.append(_expected(total))
    if of.missed:
        parts.append(f"a build (`{TUNE}`) may save {_saving(of.missed)}")
    if of.refused:
        parts.append(f"{_count(sum(one.count for one in of.refused), 'answer')} not used")
    if of.uncovered:
        parts.append(f"not steered: {_names(of)}")
    return f"graph with {'; '.join(parts)}"


def _sources(of: Summary) -> str:
    """How many products have their answers from where: `2 from tables (1 exact, 1 near), 3 without an answer`."""
    tables = [one for one in of.answers if one.rung not in OTHERS]
    found = [f"{sum(one.count for one in tables)} from tables ({_rungs(tables)})"] if tables else []
    others = [f"{one.count} {OTHERS[one.rung]}" for one in of.answers if one.rung in OTHERS]
    return ", ".join((*found, *others))


def _rungs(answers: Sequence[Answers]) -> str:
    return ", ".join(f"{one.count} {one.rung}" for one in answers)


def _kernel(one: Product) -> str:
    return ", ".join(filter(None, (one.config.split()[0], one.why)))


def _lines(of: Summary) -> Iterator[str]:
    if not of.graphs:
        yield "gemmdb: no graph with a matrix product was compiled"
    else:
        yield f"gemmdb: {_count(of.graphs, 'graph')} with {_count(of.total.count, 'product')}"
    if of.total.timed:
        yield f"per call of {'the graph' if of.graphs == 1 else 'all graphs'}: {_expected(of.total)}"
    yield from _answers(of)
    yield from _listed("largest gains", of.gains, lambda one: f"{_us(one.us)} us", _kernel)
    if of.missed:
        title = f"{NO_ANSWER}, so ATen runs; a build may save {_saving(of.missed)}"
        yield from _listed(title, of.missed, _estimate, lambda one: one.why)
        yield f"  to build: {BUILD}"
    title = f"{NO_ANSWER}, so Inductor searches, as max_autotune asks"
    yield from _listed(title, of.searched, lambda one: "", lambda one: "")
    yield from _listed("answers that are not used, so ATen runs", of.refused, lambda one: "", lambda one: one.why)
    for why in dict.fromkeys(one.why for one in of.alone):
        title = f"no kernel but ATen{f': {_short(why)}' if why else ''}"
        yield from _listed(title, [one for one in of.alone if one.why == why], lambda one: "", lambda one: "")
    if of.uncovered:
        yield ""
        yield f"not steered by gemmdb: {_names(of)}"
    for error in of.errors:
        yield f"a failure inside gemmdb, which the compile went on without: {_short(error)}"


def _answers(of: Summary) -> Iterator[str]:
    if not of.answers:
        return
    yield ""
    rows: list[tuple[str, ...]] = [("answer", "products", "kernels", "ATen us", "expected us", "gain us", "gain")]
    rows += [_row(one) for one in of.answers]
    if len(of.answers) > 1:
        rows.append(_row(of.total))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join((f"{first:<{widths[0]}}", *cells)).rstrip()


def _row(one: Answers) -> tuple[str, ...]:
    head = _name(one), str(one.count), str(one.kernels)
    if not one.timed:
        return (*head, "-", "-", "-", "-")
    return (*head, _us(one.aten_us), _us(one.expected_us), _us(one.gain_us), f"{one.gain_us / one.aten_us:.1%}")


def _listed(
    title: str, products: Sequence[Product], value: Callable[[Product], str], remark: Callable[[Product], str]
) -> Iterator[str]:
    """A title and a line per product, the columns aligned; nothing without products."""
    if not products:
        return
    yield ""
    yield title
    shown = products[:MOST]
    rows = [(value(one), f"{one.count} x", one.problem, _short(remark(one))) for one in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for amount, count, problem, words in rows:
        cells = (f"{amount:>{widths[0]}}", f"{count:>{widths[1]}} {problem:<{widths[2]}}", words)
        yield f"  {'  '.join(cell for cell in cells if cell)}".rstrip()
    rest = sum(one.count for one in products[MOST:])
    if rest:
        yield f"  and {_count(rest, 'product')} more"


def _expected(total: Answers) -> str:
    gain = total.gain_us
    less = f"{_us(abs(gain))} us {'less' if gain >= 0 else 'more'} ({abs(gain) / total.aten_us:.1%})"
    some = "" if total.timed == total.count else f", for the {total.timed} with a known time"
    return f"expected {_us(total.expected_us)} us instead of {_us(total.aten_us)} with ATen: {less}{some}"


def _saving(missed: Sequence[Product]) -> str:
    """What a build may save of all products without an answer."""
    known = sum(one.us for one in missed if one.us is not None)
    unknown = sum(one.count for one in missed if one.us is None)
    if not unknown:
        return f"about {_us(known)} us per call" if known >= LEAST_US else "nothing"
    if not known:
        return "an unknown time"
    return f"about {_us(known)} us per call, and an unknown time of {_count(unknown, 'product')}"


def _estimate(one: Product) -> str:
    return "unknown" if one.us is None else f"{_us(one.us)} us"


def _names(of: Summary) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(of.uncovered.items()))


def _name(one: Answers) -> str:
    return NO_ANSWER if one.rung == "aten" else one.rung


def _us(value: float | None) -> str:
    return f"{value or 0.0:,.1f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."
