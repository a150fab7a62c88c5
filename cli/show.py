"""`gemmdb show`: what is in a table or in a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdb.cli.options import JsonFlag, WideFlag
from gemmdb.cli.output import count, microseconds, note, say, say_json
from gemmdb.cli.table import say_table

if TYPE_CHECKING:
    from gemmdb.report.listing import Listing
    from gemmdb.report.table import Row
    from gemmdb.workload.entries import Entry


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table, or a workload of `gemmdb record`.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Only what has all of these in its full text: `mm`, `m=16`, `int8`."),
    ] = None,
    sort: Annotated[str, typer.Option(help="Order of a table: gain, time or size.")] = "gain",
    limit: Annotated[int, typer.Option(min=0, help="The most lines; 0: all.")] = 20,
    wide: WideFlag = False,
    json: JsonFlag = False,
) -> None:
    """Show what is in a table or in a workload.

    Of a table it shows the verdicts: what a lookup of each problem answers with, and its gain over ATen. Of a workload
    it shows the products with their lines; `gemmdb explain WORKLOAD.jsonl:LINE` says more about one.

    \b
    Examples:
      gemmdb show mine.db
      gemmdb show mine.db mixed_mm m=16 --sort size --limit 0
      gemmdb show workload.jsonl --wide

    \b
    Exit codes: 0 done, even if nothing matches; 2 bad usage or bad input.
    """
    from gemmdb.report.listing import listing

    found = listing(file, words or (), sort, limit)
    if json:
        say_json("show", _document(found))
        return
    if found.rows:
        titles = ("problem", "time", "gain over ATen", "kernel")
        say_table(titles, (_verdict(row, wide) for row in found.rows), right=("time", "gain over ATen"))
    if found.products:
        titles = ("line", "in graphs", "calls", "problem")
        say_table(titles, (_product(*one, wide) for one in found.products), right=titles[:3])
    say(_summary(found))


def _verdict(row: Row, wide: bool) -> tuple[str, ...]:
    from gemmdb.kernels import names

    verdict, (low, high) = row.verdict, row.interval
    gain = f"{row.gain:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low != high else "")
    problem = verdict.problem.text if wide else names.short(verdict.problem)
    return problem, microseconds(verdict.expected_us), gain, verdict.pick.text if wide else names.kernel(verdict.pick)


def _product(line: int, entry: Entry, wide: bool) -> tuple[str, ...]:
    from gemmdb.kernels import names

    text = entry.problem.text if wide else names.short(entry.problem)
    return str(line), str(entry.count), f"{entry.calls:,}", text


def _summary(found: Listing) -> str:
    shown = len(found.rows) + len(found.products)
    noun = "line" if found.products else "problem"  # Several lines of a workload may hold the same problem.
    text = count(found.matching, noun) if shown == found.matching else f"{shown} of {found.matching:,} {noun}s"
    if found.rows:
        text += f"; {found.gain:.2f}x over ATen in the geometric mean of all {found.matching:,}"
    if shown < found.matching:
        note("--limit 0 shows all")
    return text


def _document(found: Listing) -> dict[str, Any]:
    verdicts = [
        {
            "problem": row.verdict.problem.text,
            "device": row.verdict.device.text,
            "l2": row.verdict.protocol.l2,
            "config": row.verdict.pick.text,
            "expected_us": row.verdict.expected_us,
            "speedup": row.gain,
            "interval": row.interval,
        }
        for row in found.rows
    ]
    products = [
        {
            "line": line,
            "problem": entry.problem.text,
            "count": entry.count,
            "calls": entry.calls,
            "device": entry.device,
        }
        for line, entry in found.products
    ]
    return {"matching": found.matching, "verdicts": verdicts, "products": products}
