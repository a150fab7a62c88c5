"""`gemmdb show`: what is in a table or in a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmdb.cli.options import JsonFlag, WideFlag
from gemmdb.cli.output import count, gain_style, microseconds, note, places, say, say_json
from gemmdb.cli.table import Cell, Column, say_table
from gemmdb.kernels import names

if TYPE_CHECKING:
    from gemmdb.report.listing import Listing
    from gemmdb.report.rows import Row
    from gemmdb.workload.entries import Entry

VERDICTS = (
    Column("problem"), Column("time", right=True, rigid=True), Column("gain over ATen", right=True, rigid=True),
    Column("kernel"), Column("under load", right=True, rigid=True),
)  # fmt: skip
PRODUCTS = (
    Column("line", right=True, rigid=True), Column("in graphs", right=True, rigid=True, drop=2),
    Column("calls", right=True, rigid=True), Column("problem"), Column("where", cut=True, drop=1),
)  # fmt: skip


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

    Of a table it shows the verdicts: what a lookup of each problem answers with, its gain over ATen, and how many of
    its kernels were timed under load only, while other programs kept the machine busy; they cannot win against ATen. Of
    a workload it shows the products, each with its first line; `gemmdb explain WORKLOAD.jsonl:LINE` says more about
    one.

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
        marked = any(load for load, _ in found.loads)
        rows = zip(found.rows, found.loads, strict=True)
        columns = VERDICTS if marked else VERDICTS[:-1]
        say_table(columns, (_verdict(row, load, wide)[: len(columns)] for row, load in rows), whole=wide)
    if found.products:
        say_table(PRODUCTS, (_product(*one, wide) for one in found.products), whole=wide)
    say(_summary(found))


def _verdict(row: Row, load: tuple[int, int], wide: bool) -> tuple[str | Cell, ...]:
    verdict, (low, high) = row.verdict, row.interval
    gain = f"{row.gain:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low != high else "")
    return (
        verdict.problem.text if wide else names.short(verdict.problem), microseconds(verdict.expected_us),
        Cell(gain, gain_style(low, high)), verdict.pick.text if wide else names.kernel(verdict.pick),
        Cell(f"{load[0]} of {load[1]}" if load[0] else "", "yellow"),
    )  # fmt: skip


def _product(line: int, entry: Entry, wide: bool) -> tuple[str, ...]:
    text = entry.problem.text if wide else names.short(entry.problem)
    ranges = {name: (low, high) for name, low, high in entry.ranges}
    return str(line), str(entry.count), f"{entry.calls:,}", names.ranged(text, ranges), places(entry.origins)


def _summary(found: Listing) -> str:
    shown = len(found.rows) + len(found.products)
    noun = "product" if found.products else "problem"
    text = count(found.matching, noun) if shown == found.matching else f"{shown} of {found.matching:,} {noun}s"
    if found.rows:
        text += f"; {found.gain:.2f}x over ATen in the geometric mean of all {found.matching:,}"
    if found.loaded:
        some = "1 problem has" if found.loaded == 1 else f"{found.loaded:,} problems have"
        note(f"{some} kernels timed under load only: they cannot win; the same build times them again")
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
            "under_load": {"marked": marked, "timed": timed},
        }
        for row, (marked, timed) in zip(found.rows, found.loads, strict=True)
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
