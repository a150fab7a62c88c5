"""`gemmdb tables` and `gemmdb show`: the tables in use and what is in them; `pull` and `push`: tables at a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gemmdb import settings
from gemmdb.cli.gain import gain_cell
from gemmdb.cli.options import JsonFlag, WideFlag
from gemmdb.cli.output import Cell, Column, Row, count, microseconds, note, places, say, say_json, say_table
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.table.catalog import Catalog
from gemmdb.table.stats import Gain

if TYPE_CHECKING:
    from gemmdb.exchange.share.transfer import Transferred
    from gemmdb.report.listing import Listing

TABLES = (
    Column("device", rigid=True), Column("arch", rigid=True), Column("origin", rigid=True, drop=1),
    Column("problems", right=True, rigid=True), Column("ops", drop=4),
    Column("measurements", right=True, rigid=True, drop=2), Column("digest", rigid=True, drop=3),
    Column("file", cut=True, floor=30),
)  # fmt: skip
VERDICTS = (
    Column("problem"), Column("time", right=True, rigid=True), Column("gain over ATen", right=True, rigid=True),
    Column("kernel"), Column("under load", right=True, rigid=True),
)  # fmt: skip
GEMMS = (
    Column("line", right=True, rigid=True), Column("in graphs", right=True, rigid=True, drop=2),
    Column("calls", right=True, rigid=True), Column("problem"), Column("where", cut=True, drop=1),
)  # fmt: skip
Url = Annotated[str, Argument(metavar="URL", help="A folder: a path, or a URL of https, http, s3, gs, hf or file.")]


def tables(context: typer.Context, wide: WideFlag = False, json: JsonFlag = False) -> None:
    """List the tables in use and their contents, or pull, push and pack tables.

    Tables are listed in lookup order: first those in GEMMDB_TABLES, then your own (GEMMDB_USER_TABLE and the output of
    `gemmdb build`), then those of installed packages, then the shipped ones.

    \b
    Examples:
      gemmdb tables
      gemmdb tables --json
      gemmdb tables pull --help
      gemmdb tables pack --help

    \b
    Exit codes: 0 done, even if there is no table; 2 bad usage or bad input.
    """
    if context.invoked_subcommand is not None:
        return
    entries = [entry for table in Catalog.load().tables for entry in table.summary()]
    if json:
        say_json("tables", {"tables": entries})
    elif entries:
        say_table(TABLES, map(_table, entries), whole=wide)
    else:
        note("no tables: gemmdb build --arch native makes one for this machine")


def _table(entry: Mapping[str, Any]) -> Row:
    return (
        Cell(str(entry["device"]), "bold"), str(entry["arch"]),
        Cell(str(entry["origin"]), "green" if entry["origin"] == "measured" else "yellow"),
        f"{sum(entry['problems'].values()):,}",
        ", ".join(f"{op} {number:,}" for op, number in entry["problems"].items()),
        f"{entry['measurements']:,}{' (packed)' if entry['packed'] else ''}", str(entry["digest"])[:12],
        str(entry["path"]),
    )  # fmt: skip


def show(
    file: Path = Argument(metavar="FILE", help="A table, or a workload from `gemmdb record`."),
    words: list[str] | None = Argument(
        None, metavar="[WORD]...", help="Show only lines whose full text contains all of these: `mm`, `m=16`, `int8`."
    ),
    sort: str = Option("gain", help="Sort order of a table: gain, time or size."),
    limit: int = Option(20, min=0, help="Maximum number of lines; 0: all."),
    wide: WideFlag = False,
    json: JsonFlag = False,
) -> None:
    """Show the contents of a table or a workload.

    For a table it shows the verdicts: the kernel that a lookup returns for each problem, its gain over ATen, and how
    many kernels were timed only under load, while other programs kept the machine busy; they cannot win against ATen.
    For a workload it shows the GEMMs, each with its first line; `gemmdb explain WORKLOAD.jsonl:LINE` explains one.

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
        columns = VERDICTS if any(marked for marked, _ in found.loads) else VERDICTS[:-1]
        say_table(columns, (row[: len(columns)] for row in _verdicts(found, wide)), whole=wide)
    if found.products:
        rows = []
        for line, entry in found.products:
            text = entry.problem.text if wide else names.short(entry.problem)
            ranged = names.ranged(text, {name: (low, high) for name, low, high in entry.ranges})
            rows.append((str(line), str(entry.count), f"{entry.calls:,}", ranged, places(entry.origins)))
        say_table(GEMMS, rows, whole=wide)
    _say_summary(found)


def _verdicts(found: Listing, wide: bool) -> list[Row]:
    rows: list[Row] = []
    for row, (marked, timed) in zip(found.rows, found.loads, strict=True):
        verdict, (low, high) = row.verdict, row.interval
        gain = f"{row.gain:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low != high else "")
        rows.append((
            verdict.problem.text if wide else names.short(verdict.problem), microseconds(verdict.expected_us),
            gain_cell(Gain(row.gain, low, high), gain), verdict.pick.text if wide else names.kernel(verdict.pick),
            Cell(f"{marked} of {timed}" if marked else "", "yellow"),
        ))  # fmt: skip
    return rows


def _say_summary(found: Listing) -> None:
    shown = len(found.rows) + len(found.products)
    noun = "GEMM" if found.products else "problem"
    text = count(found.matching, noun) if shown == found.matching else f"{shown} of {found.matching:,} {noun}s"
    if found.rows:
        text += f"; {found.gain:.2f}x over ATen in the geometric mean of all {found.matching:,}"
    if found.loaded:
        some = f"{count(found.loaded, 'problem')} {'has' if found.loaded == 1 else 'have'}"
        note(f"{some} kernels that were timed only under load and cannot win; run the same build to time them again")
    if shown < found.matching:
        note("--limit 0 shows all")
    say(text)


def _document(found: Listing) -> dict[str, Any]:
    verdicts = [
        {
            "problem": row.verdict.problem.text, "device": row.verdict.device.text, "l2": row.verdict.protocol.l2,
            "config": row.verdict.pick.text, "expected_us": row.verdict.expected_us, "speedup": row.gain,
            "interval": row.interval, "under_load": {"marked": marked, "timed": timed},
        }
        for row, (marked, timed) in zip(found.rows, found.loads, strict=True)
    ]  # fmt: skip
    products = [
        {"line": line, "problem": one.problem.text, "count": one.count, "calls": one.calls, "device": one.device}
        for line, one in found.products
    ]
    return {"matching": found.matching, "verdicts": verdicts, "products": products}


def pull(
    url: Url,
    names: list[str] | None = Argument(
        None, metavar="FILE...", help="Only these files of the manifest.", show_default=False
    ),
    into: Path | None = Option(
        None, metavar="FOLDER", help="Where to put them [default: where lookups find your tables]."
    ),
    replace: bool = Option(False, "--replace", help="Replace files that differ, even if they were not pulled."),
    timeout: float = Option(60.0, metavar="SECONDS", min=0.1, help="Maximum time to wait for an http server's data."),
    json: JsonFlag = False,
) -> None:
    """Download tables that `gemmdb tables push` uploaded to a URL.

    A file is installed only if its SHA-256 and its rows match the manifest; otherwise nothing is replaced. The same
    command continues an interrupted download; there is no time limit as long as data arrives. Proxies are read from
    HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Needs `pip install 'gemmdb[exchange]'`; s3, gs and hf also need s3fs, gcsfs
    and huggingface_hub.

    \b
    Examples:
      gemmdb tables pull https://example.com/tables
      gemmdb tables pull s3://bucket/tables sm90-nvidia-h200.db --into /opt/tables

    \b
    Exit codes: 0 done, 2 bad usage or bad input, including a rejected file.
    """
    from gemmdb.exchange.share import transfer

    _say_transferred(transfer.pull(url, into or settings.data_home(), names or (), replace, note, timeout), json)


def push(
    url: Url,
    tables: list[Path] = Argument(metavar="TABLE...", help="The tables to upload."),
    json: JsonFlag = False,
) -> None:
    """Upload tables to a URL, with a manifest that `gemmdb tables pull` checks them against.

    Every row is read before anything is uploaded. Other tables at the URL are kept. Needs `pip install
    'gemmdb[exchange]'`; s3, gs and hf also need s3fs, gcsfs and huggingface_hub. You cannot push to an http server:
    push to a folder and serve it.

    \b
    Examples:
      gemmdb tables push s3://bucket/tables mine.db
      gemmdb tables push /srv/tables monday.db tuesday.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.exchange.share import transfer

    if named := next(filter(None, map(settings.url_of, tables)), None):
        raise InputError(f"{named} is a URL, and not a table: the one to push to comes first")
    _say_transferred(transfer.push(url, tables, note), json)


def _say_transferred(done: list[Transferred], json: bool) -> None:
    if json:
        say_json("transfer", {"tables": [asdict(one) for one in done]})
    for one in done:
        resumed = f", {one.resumed:,} of them from before" if one.resumed else ""
        note(f"{one.state}: {one.path}, {count(one.bytes, 'byte')}{resumed}, digest {one.digest[:12]}")
    if not done:
        note("the manifest lists no tables")
