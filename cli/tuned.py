"""What `gemmdb tune` prints on stdout: what it would build, or what was gained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gemmdb.cli import cached
from gemmdb.cli.footnotes import Footnotes
from gemmdb.cli.output import count, gain_style, microseconds, places, say, say_facts, say_prose, with_bar
from gemmdb.cli.progress import left
from gemmdb.cli.table import Cell, Column, say_table

if TYPE_CHECKING:
    from gemmdb.report.workload import Product
    from gemmdb.tune.gained import Gained
    from gemmdb.tune.plan import Plan, Wanted
    from gemmdb.tune.tuning import Tuned

KEPT = (
    "tables name faster kernels and no compiled graph has one: does the program keep compiled graphs itself?"
    " Delete them, or switch that off"
)
SAME = "none, the kernels are the same on both sides: the times differ by chance"
LISTED = 10
"""The most products that are listed."""
PRODUCTS = (
    Column("of the time", right=True, rigid=True), Column("calls", right=True, rigid=True, drop=2),
    Column("rung", rigid=True, drop=1), Column("gain", right=True, rigid=True), Column("kernel"), Column("product"),
    Column("where", cut=True, drop=3), Column("why ATen runs"),
)  # fmt: skip
WANTED = (
    Column("", rigid=True), Column("worth", right=True, rigid=True), Column("calls", right=True, rigid=True, drop=2),
    Column("one call", right=True, rigid=True, drop=1), Column("product"), Column("where", cut=True, drop=3),
)  # fmt: skip


def expected(plan: Plan) -> str:
    """How much of what is wanted fits into the budget, how long it takes and what it may save."""
    saving = "" if plan.saving_us is None else f", and may save {microseconds(plan.saving_us)} of what was recorded"
    time = left(plan.seconds).removesuffix(" left")
    return f"{plan.fitting} of {count(len(plan.wanted), 'problem')} should fit into the budget, takes {time}{saving}"


def say_tuned(done: Tuned, wide: bool) -> None:
    """What was gained, and the products that take the most time."""
    say_facts(_facts(done), hang=not wide)
    ran = [one for one in done.after.products if one.calls]
    if not ran:
        return
    say()
    shown = ran if wide else ran[:LISTED]
    notes = Footnotes(whole=wide)
    say_table(PRODUCTS, (_product(one, done.after.total_us or 1, wide, notes) for one in shown), whole=wide)
    notes.say()
    if len(ran) > len(shown):
        say_prose(f"and {count(len(ran) - len(shown), 'product')} of less time: gemmdb coverage {done.workload}")


def _product(one: Product, total_us: float, wide: bool, notes: Footnotes) -> tuple[str | Cell, ...]:
    from gemmdb.kernels import names

    hit, share = one.asked.hit, one.total_us / total_us
    kernel = "" if hit is None else hit.config.text if wide else names.kernel(hit.config)
    return (
        Cell(f"{share:.1%}", "cyan", share), str(one.calls), Cell(one.rung, "" if hit else "yellow"),
        Cell(f"{one.gain:.2f}x", gain_style(one.gain)) if hit else "", kernel,
        one.entry.problem.text if wide else names.short(one.entry.problem), places(one.entry.origins),
        notes.mark(_why(one)),
    )  # fmt: skip


def _why(one: Product) -> str:
    """Why ATen runs a product: the first reason; empty if another kernel does."""
    from gemmdb.inductor.observe.journal import ONLY_ATEN

    if one.asked.hit is None and not one.reason.startswith(ONLY_ATEN):
        return "no table answers"
    return one.reason.partition("; ")[0]


def say_plan(plan: Plan, wide: bool) -> None:
    """What would be built, in order."""
    if not plan.wanted:
        say("nothing to build")
        return
    rows = (_wanted(one, place < plan.fitting, wide) for place, one in enumerate(plan.wanted))
    say_table(WANTED, rows, whole=wide)
    say_prose(expected(plan))


def _wanted(one: Wanted, fits: bool, wide: bool) -> tuple[str | Cell, ...]:
    from gemmdb.kernels import names

    return (
        Cell("build", "green") if fits else Cell("later", "dim"), microseconds(one.worth_us) if one.saving else "?",
        str(one.calls), f"~{microseconds(one.us)}", one.problem.text if wide else names.short(one.problem),
        places(one.origins),
    )  # fmt: skip


def _facts(done: Tuned) -> Iterator[tuple[str, ...]]:
    """Name and value of each line of the closing table."""
    for name, report in (("tables before", done.before), ("tables now", done.after)):
        answered = sum(one.asked.hit is not None for one in report.products)
        kernels = sum(one.asked.hit is not None and one.gain > 1 for one in report.products)
        told = (
            f"{answered} of {count(len(report.products), 'product')} answered, {kernels} by a kernel faster than ATen"
        )
        yield name, f"{told}; {report.gain:.2f}x over ATen expected, weighted by time"
    if done.built is not None:
        yield "table", str(done.built.out)
    if done.gained is not None:
        yield from _measured(done.gained)
        if done.gained.verdict == "same kernels" and kernels:
            yield "why", KEPT
        if done.gained.verdict == "slower" and (why := _in_cache(done.after.products)):
            yield "why", why


def _in_cache(products: Sequence[Product]) -> str:
    """Whether kernels lose since the operands stay in a CPU's cache; empty if not."""
    ran = [one for one in products if one.calls]
    if any(one.asked.device.kind != "cpu" for one in ran):
        return ""
    return cached.hint((one.entry.problem, one.entry.count) for one in ran)


def _measured(found: Gained) -> Iterator[tuple[str, ...]]:
    if not found.graphs:
        yield "the program", "no compiled graph was called often enough to be timed (the first two calls are left out)"
        return
    most = max(found.without_us, found.with_us)
    yield "without gemmdb", with_bar(f"{microseconds(found.without_us):>9}", found.without_us, most)
    yield "with gemmdb", with_bar(f"{microseconds(found.with_us):>9}", found.with_us, most)
    yield "timed", f"all calls of compiled graphs of a run ({count(found.runs, 'run')})"
    low, high = found.interval
    style = {"faster": "green", "slower": "red"}.get(found.verdict, "")
    gain = f"{found.gain:.3f}x, between {low:.3f}x and {high:.3f}x: {found.verdict}"
    yield "gain", SAME if found.verdict == "same kernels" else gain, style
    from gemmdb.devices import detect
    from gemmdb.devices.load import Load

    busy = Load(found.load, threads=detect.cores())
    if busy.disturbs:
        yield "under load", f"{busy.text}: repeat it with --fresh when the machine is quiet"
    if found.unmatched:
        yield "left out", f"{count(found.unmatched, 'kind')} of graphs that were not called often enough on both sides"
