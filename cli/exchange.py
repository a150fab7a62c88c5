"""`gemmdb export` and `gemmdb import`: tables in the formats of other programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from gemmdb.cli.options import JsonFlag, takes
from gemmdb.cli.output import count, note, say_json

if TYPE_CHECKING:
    from gemmdb.exchange.content import Exchanged

# The formats are imported inside the commands: they load modules that no other command needs.
EXAMPLE_CHARS = 100
"""Maximum characters of an example on stderr. `--json` contains more examples, in full."""


def export(
    table: Path = Argument(metavar="TABLE", help="The table to export. It is not changed."),
    to: str = Option(
        metavar="FORMAT",
        help="csv, jsonl or parquet: every measurement, one per row, read back by `gemmdb import`. verdicts: the best"
        " kernel of each problem and its gain, as CSV for a spreadsheet. lookup-table: the best configs, for PyTorch's"
        " torch._inductor.config.lookup_table.table.",
    ),
    out: Path = Option(..., "--out", "-o", help="The file to write. It is replaced if it exists."),
    json: JsonFlag = False,
) -> None:
    """Write a table as CSV, JSON Lines, Parquet, a list of verdicts, or PyTorch's own lookup table.

    A line on stderr counts the rows that the format cannot represent, with examples. Parquet needs `pip install
    'gemmdb[parquet]'`.

    \b
    Use a lookup table without gemmdb, with mode="max-autotune":
      from torch._inductor import config
      from torch._inductor.lookup_table import LookupTableChoices
      from torch._inductor.virtualized import V
      config.lookup_table.table = json.load(open("table.json"))
      V.set_choices_handler(LookupTableChoices())

    \b
    Examples:
      gemmdb export mine.db --to csv -o rows.csv
      gemmdb export mine.db --to jsonl -o rows.jsonl --json
      gemmdb export mine.db --to verdicts -o verdicts.csv
      gemmdb export mine.db --to lookup-table -o table.json

    \b
    Exit codes: 0 done, 1 nothing could be carried over, 2 bad usage or bad input.
    """
    from gemmdb.exchange.formats import export as export_table

    _say(export_table(table, out, to), json)


def _say(found: Exchanged, json: bool) -> None:
    """Print the result of an export or an import. Raises typer.Exit(1) if nothing was carried over."""
    if json:
        say_json("exchange", found.as_dict())
    for left in found.left:
        example = (
            left.examples[0] if len(left.examples[0]) <= EXAMPLE_CHARS else f"{left.examples[0][:EXAMPLE_CHARS]}..."
        )
        named = example if left.count == 1 else f"first {example}"
        note(f"skipped: {left.count:,}: {left.reason} ({named})")
    rest = "" if found.total in (None, found.carried) else f", which now holds {found.total:,}"
    where = f" in {found.out}{rest}" if found.out.exists() else ""
    note(f"{count(found.carried, found.what)} from {found.source}{where}")
    if not found.carried:
        raise typer.Exit(1)


@dataclass(frozen=True)
class ImportOptions:
    """The argument and options of `gemmdb import`. From `device` on, they fill in what other programs' files do not
    contain."""

    file: Path = Argument(metavar="FILE", help="The file to import. It is not changed.")
    kind: str = Option(
        ...,
        "--from",
        metavar="FORMAT",
        help="csv, jsonl or parquet: what `gemmdb export` wrote. inductor-log: TORCHINDUCTOR_MM_LOGGING_FILE."
        " inductor-cache: the file cache/HASH in TORCHINDUCTOR_CACHE_DIR. tunableop: the CSV of"
        " PYTORCH_TUNABLEOP_FILENAME. vllm: configs by M in JSON.",
    )
    out: Path = Option(..., "--out", "-o", help="The table to write: a new file, or a table to add the rows to.")
    device: str | None = Option(
        None, help="The device it was measured on, if the file does not specify it: 'NVIDIA H200'."
    )
    cuda: str | None = Option(None, help="The CUDA version of its torch, if the file does not specify it: 13.0.")
    torch: str | None = Option(None, help="Its torch version, if the file does not specify it: 2.13.0.")
    op: str | None = Option(
        None, help="inductor-log, vllm: the op, if the file does not specify it [vllm's default: mm]."
    )
    dtype: str | None = Option(None, help="inductor-log, vllm: dtype of the operands: bf16, fp16.")
    layout: str | None = Option(
        None, help="inductor-log, vllm: how A and B are stored, as for `gemmdb lookup` [default: nt]."
    )
    n: int | None = Option(None, help="vllm: columns of the weight, if the file name does not contain them.")
    k: int | None = Option(None, help="vllm: the inner size K, if the file name does not contain it.")


@takes(ImportOptions)
def import_(options: ImportOptions, json: JsonFlag = False) -> None:
    """Add the measurements in a file from gemmdb, Inductor, TunableOp or vLLM to a table.

    The file is not trusted: every value is checked, and nothing in it is ever executed. On an error, a message names
    the file and the line, and the table is unchanged. A line on stderr counts what cannot be imported, with examples.
    If GEMMDB_TRUST is set, your own table (GEMMDB_USER_TABLE) accepts only files that it lists.

    Files from other programs contain one number per kernel, so each time gets an interval of +-10%. If gemmdb has no
    counterpart of the fastest kernel, the times are kept but give no verdict. vLLM's files contain no times: they
    become modelled rows.

    \b
    Examples:
      gemmdb import rows.csv --from csv -o copy.db
      gemmdb import rows.jsonl --from jsonl -o copy.db --json
      gemmdb import mm.json --from inductor-log --device 'NVIDIA H200' --cuda 13.0 --dtype bf16 --op mm -o new.db

    \b
    Exit codes: 0 done, 1 nothing could be carried over, 2 bad usage or bad input.
    """
    from gemmdb.exchange.foreign.races import Given
    from gemmdb.exchange.formats import load

    given = Given(**{field.name: getattr(options, field.name) for field in fields(options)[3:]})
    _say(load(options.file, options.out, options.kind, given), json)
