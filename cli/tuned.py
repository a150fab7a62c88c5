"""The output of `gemmdb tune` on stdout: the plan of a build, or the speedup."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from gemmdb.advice import Act, Advice, Situation, advise, facts, needs_bound, refusal, tighter
from gemmdb.cli.gain import NO_GAIN, cache_hint, gain_cell, timed_facts
from gemmdb.cli.output import (
    Cell,
    Column,
    Footnotes,
    Row,
    count,
    microseconds,
    places,
    say,
    say_facts,
    say_prose,
    say_table,
)
from gemmdb.cli.progress import beside, left
from gemmdb.devices import detect
from gemmdb.devices.load import Load
from gemmdb.kernels import names
from gemmdb.outcome import NO_KERNEL, ONLY_ATEN, Kind, counted

if TYPE_CHECKING:
    from gemmdb.report.workload import Product, WorkloadReport
    from gemmdb.tune.gained import Gained
    from gemmdb.tune.plan import Plan, Wanted
    from gemmdb.tune.tuning import Tuned
    from gemmdb.workload.entries import Entry

CACHED_GRAPHS = (
    "the tables have faster kernels but no compiled graph uses one: does the program cache compiled graphs?"
    " Delete or disable that cache"
)
MAX_GEMMS = 10
"""Maximum number of GEMMs listed."""
GEMMS = (
    Column("of the time", right=True, rigid=True), Column("calls", right=True, rigid=True, drop=2),
    Column("outcome", rigid=True, drop=1), Column("gain", right=True, rigid=True), Column("kernel"), Column("GEMM"),
    Column("where", cut=True, drop=3), Column("why ATen runs"),
)  # fmt: skip
WANTED = (
    Column("", rigid=True), Column("worth", right=True, rigid=True), Column("calls", right=True, rigid=True, drop=2),
    Column("one call", right=True, rigid=True, drop=1), Column("GEMM"), Column("where", cut=True, drop=3),
)  # fmt: skip


def expected(plan: Plan) -> str:
    """Describe how much of a plan fits into the budget, how long it takes and what it may save."""
    saving = "" if plan.saving_us is None else f", and may save {microseconds(plan.saving_us)} of what was recorded"
    if plan.wanted and not plan.fitting:
        takes = ", ".join(filter(None, (left(plan.first_s).removesuffix(" left"), beside(plan.slower or 1.0))))
        short = f"the budget is too short for the first of {count(len(plan.wanted), 'GEMM')}, which takes {takes}"
        return f"{short}: give --budget {enough(plan)}, or run the command again, which keeps what it has compiled"
    least, time = (left(seconds).removesuffix(" left") for seconds in (plan.least_s, plan.seconds))
    time = time if least == time else f"{least} to {time.removeprefix('about ')}"
    takes = ", ".join(filter(None, (f"takes {time}", beside(plan.slower or 1.0))))
    return f"{plan.fitting} of {count(len(plan.wanted), 'GEMM')} should fit into the budget, {takes}{saving}"


def enough(plan: Plan) -> str:
    """Return a --budget in which the first problem of a plan should be built."""
    return f"{ceil(plan.first_s / 60)}m"


def say_plan(plan: Plan, wide: bool) -> None:
    """Print what would be built, in order."""
    if not plan.wanted:
        say("nothing to build")
        return
    rows = (_wanted(one, place < plan.fitting, wide) for place, one in enumerate(plan.wanted))
    say_table(WANTED, rows, whole=wide)
    say_prose(expected(plan))


def _wanted(one: Wanted, fits: bool, wide: bool) -> Row:
    return (
        Cell("build", "green") if fits else Cell("later", "dim"), microseconds(one.worth_us) if one.saving else "?",
        str(one.calls), f"~{microseconds(one.us)}", _name(one.entry, wide),
        places(one.origins),
    )  # fmt: skip


def _name(entry: Entry, wide: bool) -> str:
    return names.ranged(entry.problem.text if wide else names.short(entry.problem), entry.ends)


@dataclass(frozen=True)
class Commands:
    """Lines to paste. `same`: continues; `patient`: the same when the machine is quiet; `more`: times the program more
    often."""

    same: str
    patient: str = ""
    more: str = ""


def steps(done: Tuned, commands: Commands) -> tuple[Advice, ...]:
    """Return what to do next."""
    from gemmdb.tune.plan import STILL_BUSY  # Lazy: it imports what builds.

    built, plan, products = done.built, done.plan, done.after.products
    left = built.left if built else len(plan.wanted)
    busy = done.stopped or (done.gained.disturbed if done.gained else "")
    kinds = Counter(one.outcome.kind for one in products if not one.outcome.disturbed)
    left_out = Counter(plan.left_out)
    left_out.update(built.left_out if built else {})
    del left_out[STILL_BUSY.reason]
    disturbed = built.disturbed if built else sum(one.outcome.disturbed for one in products)
    known = (ONLY_ATEN, NO_KERNEL)  # The outcomes tell of these.
    skipped = {reason: number for reason, number in left_out.items() if not reason.startswith(known)}
    refused = Counter(refusal(one.outcome) for one in products if one.outcome.kind is Kind.ATEN_REFUSED)
    narrower = (tighter(one.outcome, one.hit.evidence) for one in products if one.hit)
    return advise(Situation(
        {**skipped, **refused}, max(kinds[Kind.ATEN_UNKNOWN] - sum(skipped.values()) - left, 0), kinds[Kind.ATEN_BEST],
        kinds[Kind.ATEN_PREDICTED],
        disturbed, built.rows if built else 0, 0 if done.stopped else left, commands.same,
        f"gemmdb build --arch native --shapes {shlex.quote(str(done.workload))}",
        max((one.entry.most_rows for one in products if one.entry.ranges), default=0),
        sum(one.outdated and one.outcome.kind.aten for one in products),
        sum(needs_bound(one.outcome, one.entry.ends.values()) for one in products),
        tuple(filter(None, narrower)), busy, commands.patient,
        commands.more if done.gained and done.gained.verdict == "no difference" and not done.gained.is_certain else "",
    ))  # fmt: skip


def say_tuned(done: Tuned, wide: bool, commands: Commands) -> None:
    """Print the speedup, the GEMMs that take the most time, and what to do."""
    say_facts(_facts(done), hang=not wide)
    _say_gemms(done, wide)
    next_steps, gain = steps(done, commands), done.gained or done.after.expected
    if gain.verdict != "faster" or next_steps[0].act is not Act.NOTHING:
        say()
        say_facts(facts(next_steps), hang=not wide)


def _say_gemms(done: Tuned, wide: bool) -> None:
    ran = [one for one in done.after.products if one.calls]
    if not ran:
        return
    say()
    shown = ran if wide else ran[:MAX_GEMMS]
    notes = Footnotes(whole=wide)
    say_table(GEMMS, (_gemm(one, done.after.total_us or 1, wide, notes) for one in shown), whole=wide)
    notes.say()
    if len(ran) > len(shown):
        say_prose(f"and {count(len(ran) - len(shown), 'GEMM')} of less time: gemmdb coverage {done.workload}")


def _gemm(one: Product, total_us: float, wide: bool, notes: Footnotes) -> Row:
    hit, serves, share = one.hit, one.outcome, one.total_us / total_us
    kernel = "" if hit is None else hit.config.text if wide else names.kernel(hit.config)
    return (
        Cell(f"{share:.1%}", "cyan", share), str(one.calls), Cell(serves.kind.value, "" if hit else "yellow"),
        gain_cell(one.expected if one.served else None), kernel,
        _name(one.entry, wide), places(one.entry.origins),
        notes.mark(serves.reason if serves.kind.aten else ""),
    )  # fmt: skip


def _facts(done: Tuned) -> Iterator[tuple[str, ...]]:
    """Yield the name and value of each line of the final table."""
    for name, report in (("tables before", done.before), ("tables now", done.after)):
        kernels = sum(one.runs_kernel for one in report.products)
        gain = f"expected over ATen, weighted by time: {report.expected}" if kernels else NO_GAIN
        yield name, f"{counted(one.outcome.kind for one in report.products)}; {gain}"
    if done.built is not None:
        yield "table", str(done.built.out)
    yield "workload", f"{done.workload}; a page about it: gemmdb report {shlex.quote(str(done.workload))}"
    if done.gained is not None:
        yield from _measured(done.gained)
        if done.gained.verdict == "same kernels" and kernels:
            yield "why", CACHED_GRAPHS
        ran = ((one.entry.problem, one.device, one.entry.count) for one in done.after.products if one.calls)
        if done.gained.verdict == "slower" and (why := cache_hint(ran)):
            yield "why", why


def answered(report: WorkloadReport) -> str:
    """Describe how many GEMMs of a workload hit."""
    return f"{answers(report)} of {count(len(report.products), 'GEMM')}"


def answers(report: WorkloadReport) -> int:
    """Return the number of GEMMs of which a table knows the fastest kernel: only disturbed times do not count."""
    return sum(one.hit is not None and one.outcome.kind is not Kind.ATEN_UNKNOWN for one in report.products)


def _measured(found: Gained) -> Iterator[tuple[str, ...]]:
    if not found.graphs:
        yield "the program", "no compiled graph was called often enough to be timed (the first two calls are left out)"
        return
    us = {"without gemmdb": found.without_us, "with gemmdb": found.with_us}
    *times, gain = timed_facts(us, found.gain, found.verdict)
    yield from times
    yield "timed", f"all calls of compiled graphs of a run ({count(found.runs, 'run')})"
    yield gain
    busy = Load(found.load, threads=detect.cores())
    if busy.disturbs and not found.disturbed:
        yield "under load", f"{busy.text}: repeat it with --fresh when the machine is quiet"
    if found.unmatched:
        yield "left out", f"{count(found.unmatched, 'kind')} of graphs that were not called often enough in each run"


def document(done: Tuned) -> dict[str, Any]:
    """Return everything as JSON."""
    plan, built = done.plan, done.built
    return {
        "workload": str(done.workload),
        "plan": {
            "budget_s": plan.budget_s, "fitting": plan.fitting, "seconds": plan.seconds, "saving_us": plan.saving_us,
            "left_out": plan.left_out,
            "problems": [
                {
                    "problem": one.problem.text, "device": one.device.sku, "calls": one.calls, "us": one.us,
                    "may_save_us": one.worth_us if one.saving else None, "seconds": one.seconds,
                    "origins": list(map(str, one.origins)),
                }
                for one in plan.wanted
            ],
        },
        "before": _coverage(done.before),
        "after": _coverage(done.after),
        "built": built and {
            "table": str(built.out), "measured": built.measured, "left": built.left, "seconds": built.seconds,
            "interrupted": built.interrupted,
        },
        "stopped": done.stopped,
        "gained": done.gained and done.gained.as_dict(),
    }  # fmt: skip


def _coverage(report: WorkloadReport) -> dict[str, Any]:
    gain = report.expected
    return {
        "products": len(report.products), "answered": answers(report), "gain": gain.value,
        "interval": [gain.low, gain.high], "ranged": gain.ranged,
    }  # fmt: skip
