"""`gemmdb import`: reads the measurements of another program's file into a table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmdb.cli.exporting import tell
from gemmdb.cli.options import JsonFlag, takes


@dataclass(frozen=True)
class ImportOptions:
    """The argument and options of `gemmdb import`. From `device` on, they say what other programs' files leave open."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to import. It is not changed.")]
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="csv, jsonl or parquet: what `gemmdb export` wrote. inductor-log: TORCHINDUCTOR_MM_LOGGING_FILE."
            " inductor-cache: the file cache/HASH in TORCHINDUCTOR_CACHE_DIR. tunableop: the CSV of"
            " PYTORCH_TUNABLEOP_FILENAME. vllm: configs by M in JSON.",
        ),
    ]
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The table: a new file, or a table to which the rows are added.")
    ]
    device: Annotated[
        str | None, typer.Option(help="The device on which it was measured, if the file does not say: 'NVIDIA H200'.")
    ] = None
    cuda: Annotated[str | None, typer.Option(help="The CUDA of its torch, if the file does not say: 13.0.")] = None
    torch: Annotated[str | None, typer.Option(help="Its torch, if the file does not say: 2.13.0.")] = None
    op: Annotated[
        str | None, typer.Option(help="inductor-log, vllm: the op, if the file does not say [vllm's default: mm].")
    ] = None
    dtype: Annotated[str | None, typer.Option(help="inductor-log, vllm: dtype of the operands: bf16, fp16.")] = None
    layout: Annotated[
        str | None,
        typer.Option(help="inductor-log, vllm: how A and B are stored, as for `gemmdb lookup` [default: nt]."),
    ] = None
    n: Annotated[int | None, typer.Option(help="vllm: columns of the weight, if the file's name does not say.")] = None
    k: Annotated[int | None, typer.Option(help="vllm: the inner size, if the file's name does not say.")] = None

    def said(self) -> dict[str, Any]:
        """The options from `device` on, by name."""
        names = [field.name for field in fields(self) if field.name not in ("file", "kind", "out")]
        return {name: getattr(self, name) for name in names}


@takes(ImportOptions)
def import_(options: ImportOptions, json: JsonFlag = False) -> None:
    """Add the measurements in a file to a table: of gemmdb, Inductor, TunableOp or vLLM.

    The file is read as a stranger's: every value is checked, and nothing in it is ever run. If something is wrong, one
    line names the file and the line in it, and the table stays as it is. A line on stderr counts what cannot be carried
    over, and names examples. Where GEMMDB_TRUST is set, your own table (GEMMDB_USER_TABLE) takes only files that it
    lists.

    Files of other programs hold one number per kernel, so each time gets an interval of 10% to each side. If the
    fastest kernel of a race has no counterpart here, its times are kept, and no verdict is made of them. What vLLM's
    files hold was never timed: it becomes modelled rows.

    \b
    Examples:
      gemmdb import rows.csv --from csv -o copy.db
      gemmdb import rows.jsonl --from jsonl -o copy.db --json
      gemmdb import mm.json --from inductor-log --device 'NVIDIA H200' --cuda 13.0 --dtype bf16 --op mm -o new.db

    \b
    Exit codes: 0 done, 1 nothing could be carried over, 2 bad usage or bad input.
    """
    # Imported here: the formats load modules that no other command needs.
    from gemmdb.exchange.foreign.given import Given
    from gemmdb.exchange.formats import load

    tell(load(options.file, options.out, options.kind, Given(**options.said())), json)
