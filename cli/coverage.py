"""`gemmdb coverage`: which GEMMs of a workload hit, and on which rung."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdb.api import current_catalog
from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import count, gain_text, microseconds, one_line, places, say, say_json, say_table
from gemmdb.cli.question import ranged
from gemmdb.errors import InputError
from gemmdb.settings import Policy
from gemmdb.workload import entries as workloads

if TYPE_CHECKING:
    from gemmdb.generators.coverage import Coverage


def coverage(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="What `gemmdb record` wrote.")],
    wide: Annotated[bool, typer.Option("--wide", help="Full texts, as `gemmdb explain` takes them.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show how much of a recorded workload the tables answer.

    Hits are counted per rung, and how many of them are ATen. Misses are ranked by their share of the time, which is
    estimated for a miss. The last line weighs the expected gains by calls and time. GEMMs that gemmdb does not steer
    (baddbmm, fp8 with block scales, 1x1 convolutions) are named and counted. Convolutions with larger kernels are not
    recorded.

    \b
    Examples:
      gemmdb coverage workload.jsonl
      gemmdb coverage workload.jsonl --wide
      gemmdb coverage workload.jsonl --json

    \b
    Exit codes: 0 done, even if there are misses; 2 bad usage or bad input.
    """
    from gemmdb.generators.coverage import coverage as coverage_of

    recorded = workloads.read(workload)
    if not recorded.entries and not recorded.uncovered:
        raise InputError(f"{workload} holds no problems: gemmdb record --out {workload} -- COMMAND... records some")
    found = coverage_of(recorded, current_catalog(), Policy())
    if json:
        say_json("coverage", found.as_dict())
    else:
        _say(found, wide)


def _say(found: Coverage, wide: bool) -> None:
    from gemmdb.key.problem import Problem
    from gemmdb.report.names import short

    def named(text: str) -> str:
        return text if wide else short(Problem.parse(text))

    answered = sum(tally.problems for tally in found.hits.values())
    served = answered - sum(tally.aten for tally in found.hits.values())
    say(
        f"{answered} of {count(found.problems, 'problem')} answered, {found.hit_share:.1%} of the time:"
        f" {served} by another kernel than ATen's, {found.kernel_share:.1%} of the time"
    )
    numbers = ("problems", "of them ATen", "in graphs", "calls", "of the time", "of that ATen")
    if found.hits:
        say()
        rows = (
            (rung, str(t.problems), str(t.aten), str(t.count), str(t.calls), f"{t.share:.1%}", f"{t.aten_share:.1%}")
            for rung, t in found.hits.items()
        )
        say_table(("rung", *numbers), rows, right=numbers)
    if found.misses:
        say()
        say_table(
            ("of the time", "calls", "one call", "miss", "where", "why"),
            (
                (
                    f"{miss.share:.1%}",
                    str(miss.calls),
                    f"~{microseconds(miss.time_us)}",
                    ranged(named(miss.problem), miss.ranges),
                    places(miss.origins),
                    miss.reason,
                )
                for miss in found.misses
            ),
            right=("of the time", "calls", "one call"),
        )
    if found.uncovered:
        say()
        names = ", ".join(f"{name} ({times} in graphs)" for name, (times, _) in found.uncovered.items())
        say(f"not steered by gemmdb: {one_line(names)}")
    if found.problems:
        say()
        say(f"expected over ATen, weighted by calls and time: {gain_text(found.gain)}")
