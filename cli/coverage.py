"""`gemmdb coverage`: which GEMMs of a workload hit, and on which rung."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from gemmdb import advice
from gemmdb.advice import OTHER_DEVICE, Act, Advice, Situation, advise
from gemmdb.cli import terminal
from gemmdb.cli.evidence import problem_name
from gemmdb.cli.gain import NO_GAIN
from gemmdb.cli.options import ConfirmFlag, JsonFlag, WideFlag, device_name
from gemmdb.cli.output import (
    Cell,
    Column,
    Footnotes,
    Row,
    count,
    microseconds,
    one_line,
    places,
    say,
    say_facts,
    say_json,
    say_prose,
    say_table,
)
from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.lookup.environment import current_catalog
from gemmdb.outcome import Kind, Outcome
from gemmdb.settings import Policy
from gemmdb.workload import entries as workloads

if TYPE_CHECKING:
    from gemmdb.generators.coverage import Coverage, Miss

BAR_WIDTH = 48
"""Width of the bar for the total time."""
MAX_MISSES = 20
"""Maximum number of misses shown on a terminal without --wide."""
RUNGS = (
    Column("rung", rigid=True), Column("outcome", rigid=True), Column("problems", right=True, rigid=True),
    Column("in graphs", right=True, rigid=True, drop=2), Column("calls", right=True, rigid=True, drop=1),
    Column("of the time", right=True, rigid=True), Column("why"),
)  # fmt: skip
MISSES = (
    Column("of the time", right=True, rigid=True), Column("calls", right=True, rigid=True, drop=2),
    Column("one call", right=True, rigid=True, drop=1), Column("outcome", rigid=True), Column("GEMM"), Column("where"),
    Column("why"),
)  # fmt: skip


def coverage(
    workload: Path = Argument(metavar="WORKLOAD", help="A workload from `gemmdb record`."),
    device: str | None = Option(
        None, help="Look up for this device, such as 'NVIDIA H200' [default: the one that each GEMM was recorded on]."
    ),
    arch: str | None = Option(None, help="The arch of a device, instead of --device: cpu, sm80, sm90, ..."),
    confirm: ConfirmFlag = False,
    wide: WideFlag = False,
    json: JsonFlag = False,
) -> None:
    """Show how much of a recorded workload hits in the tables.

    Hits are counted per rung and outcome, refusals by their reason. Misses are ranked by their share of the estimated
    time: for `ATen (nothing known)` a build may find a faster kernel, for `ATen (refused)` it cannot. The last line is
    the expected gain, weighted by calls and time. GEMMs that gemmdb does not support (a baddbmm that adds, fp8 with MX
    scales, 1x1 convolutions that stay convolutions) are listed with counts. Convolutions with larger kernels are not
    recorded. Without a gain, or if the bound of a batch is too large for one kernel, the last lines say what to do.

    \b
    Examples:
      gemmdb coverage workload.jsonl
      gemmdb coverage workload.jsonl --confirm
      gemmdb coverage workload.jsonl --arch sm80
      gemmdb coverage workload.jsonl --wide
      gemmdb coverage workload.jsonl --json

    \b
    Exit codes: 0 done, even if there are misses; 2 bad usage or bad input.
    """
    from gemmdb.generators.coverage import coverage as coverage_of

    recorded = workloads.read(workload)
    if not recorded.entries and not recorded.uncovered:
        raise InputError(f"{workload} contains no problems: gemmdb record --out {workload} -- COMMAND... records some")
    name, catalog = device_name(device, arch), current_catalog()
    asked = None if name is None else catalog.resolve(name)
    found = coverage_of(recorded, catalog, Policy(confirm=confirm), asked)
    if json:
        say_json("coverage", _document(found))
    else:
        _say(found, wide, workload, asked is not None and asked.sku != detect.native().sku)


def _say(found: Coverage, wide: bool, workload: Path, elsewhere: bool) -> None:
    """`elsewhere`: all of it is about a device that this machine does not have."""
    served = sum(tally.problems - tally.aten for tally in found.hits.values())
    known = f"{found.known} of {count(found.problems, 'problem')} answered, {found.known_share:.1%} of the time"
    say_prose(f"{known}: {_serving(found.problems, served, found.kernel_share)}" if found.problems else known)
    if terminal.is_terminal() and found.problems:
        aten, missed = found.known_share - found.kernel_share, 1 - found.known_share
        parts = [("kernels", found.kernel_share, "green"), ("ATen", aten, "dim"), ("misses", missed, "yellow")]
        say(terminal.stacked(parts, BAR_WIDTH))
    if found.hits:
        say()
        notes = Footnotes(whole=wide)
        say_table(RUNGS, _hits(found, notes), whole=wide)
        notes.say()
    if found.misses:
        say()
        _say_misses(found.misses, wide)
    if found.uncovered:
        names = ", ".join(f"{name} ({times} in graphs)" for name, (times, _) in found.uncovered.items())
        say()
        say_prose(f"{Kind.NOT_HANDLED} by gemmdb: {one_line(names)}")
    if found.problems:
        say()
        expected = str(found.gain) if served else NO_GAIN
        say_prose(f"expected over ATen, weighted by calls and time: {expected}")
        say_facts(advice.facts(advised(found, workload, elsewhere)), hang=not wide)


def advised(found: Coverage, workload: Path, elsewhere: bool) -> list[Advice]:
    """Return what to do where there is no gain, and where a bound of a batch hides one. `elsewhere`: as for `_say`."""
    gained = found.gain.verdict == "faster" and any(hits.problems > hits.aten for hits in found.hits.values())
    return [one for one in steps(found, workload, elsewhere) if not gained or one.act is Act.TIGHTEN]


def steps(found: Coverage, workload: Path, elsewhere: bool) -> tuple[Advice, ...]:
    """Return what to do where there is no gain. `elsewhere`: as for `_say`."""
    here, reasons = detect.native().sku, Counter[str]()
    for miss in found.misses:
        reasons[miss.reason if miss.reason or miss.device == here else OTHER_DEVICE] += 1
    kinds, disturbed = Counter[Kind](), 0
    build = shlex.join(["gemmdb", "build", "--arch", "native", "--shapes", str(workload)])
    for hits in found.hits.values():
        for serves, of in hits.outcomes.items():
            if serves.disturbed:
                disturbed += of.problems
                continue
            kinds[serves.kind] += of.problems
            if serves.kind is Kind.ATEN_REFUSED:
                reasons[advice.refusal(serves)] += of.problems
    reasons.update(found.unbuilt)
    reasons[OTHER_DEVICE if elsewhere else ""] += kinds[Kind.ATEN_UNKNOWN] - sum(found.unbuilt.values())
    unknown = reasons.pop("", 0)
    return advise(Situation(
        reasons, unknown, kinds[Kind.ATEN_BEST], kinds[Kind.ATEN_PREDICTED],
        disturbed=disturbed, command=build, build=build,
        largest=found.most_rows,
        outdated=sum(hits.outdated for hits in found.hits.values()),
        tighter=found.tighter,
        unbounded=sum(advice.needs_bound(miss.outcome, miss.ranges.values()) for miss in found.misses),
    ))  # fmt: skip


def _hits(found: Coverage, notes: Footnotes) -> Iterator[Row]:
    """Yield a row for each outcome on each rung."""
    for rung, hits in found.hits.items():
        for serves, of in hits.outcomes.items():
            yield (
                rung, serves.kind.value, str(of.problems), str(of.count), str(of.calls),
                Cell(f"{of.share:.1%}", "" if serves.kind.aten else "green", of.share), notes.mark(serves.reason),
            )  # fmt: skip


def _serving(problems: int, served: int, share: float) -> str:
    """Describe how many problems do not run ATen, and their share of the time."""
    if not served:
        return "ATen runs the only problem" if problems == 1 else f"ATen runs all {problems:,} problems"
    return f"{served} by another kernel than ATen's, {share:.1%} of the time"


def _kernels(rung: str) -> Outcome:
    """The outcome of the problems that a rung serves with another kernel than ATen's."""
    return Outcome(Kind.TABLE if rung == "exact" else Kind.NEAR)


def _document(found: Coverage) -> dict[str, Any]:
    """Return the JSON output, with the outcomes. A rung's `outcome` is that of problems that do not run ATen."""
    known = found.as_dict()
    hits = {rung: {**tally, "outcome": _kernels(rung).kind.value} for rung, tally in known["hits"].items()}
    misses = [{**miss, **one.outcome.document()} for miss, one in zip(known["misses"], found.misses, strict=True)]
    return {**known, "hits": hits, "misses": misses}


def _say_misses(misses: Sequence[Miss], wide: bool) -> None:
    shown = misses[:MAX_MISSES] if terminal.is_terminal() and not wide else misses
    notes = Footnotes(whole=wide)
    say_table(MISSES, (_miss(one, wide, notes) for one in shown), whole=wide)
    notes.say()
    if rest := misses[len(shown) :]:
        share = sum(one.share for one in rest)
        say_prose(f"and {count(len(rest), 'miss', 'misses')} of less time, {share:.1%} together: --wide lists all")


def _miss(miss: Miss, wide: bool, notes: Footnotes) -> Row:
    serves = miss.outcome
    return (
        Cell(f"{miss.share:.1%}", "yellow", miss.share), str(miss.calls), f"~{microseconds(miss.time_us)}",
        serves.kind.value, names.ranged(problem_name(miss.problem, wide), miss.ranges), places(miss.origins),
        notes.mark(serves.reason if miss.reason else ""),
    )  # fmt: skip
