"""`gemmdb tables pull` and `gemmdb tables push`: tables at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmdb import settings
from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import count, note, say_json
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.exchange.share.transfer import Transferred

Url = Annotated[
    str,
    typer.Argument(metavar="URL", help="A folder: a path, or a URL of https, http, s3, gs, hf or file."),
]


def pull(
    url: Url,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Only these files of the manifest.", show_default=False),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to put them [default: where lookups find your tables]."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that differ, also those that were not pulled.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long an http server may be silent.")
    ] = 60.0,
    json: JsonFlag = False,
) -> None:
    """Download tables from a URL, where `gemmdb tables push` put them.

    A file takes its place only if its sha256 and its rows are those of the manifest; else nothing is replaced. If a
    download breaks off, the same command continues it. It may take any time, as long as bytes come. Proxies are those
    of HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Needs `pip install 'gemmdb[exchange]'`; s3, gs and hf also need
    s3fs, gcsfs and huggingface_hub.

    \b
    Examples:
      gemmdb tables pull https://example.com/tables
      gemmdb tables pull s3://bucket/tables sm90-nvidia-h200.db --into /opt/tables

    \b
    Exit codes: 0 done, 2 bad usage or bad input, also a file that is refused.
    """
    from gemmdb.exchange.share import transfer

    _tell(transfer.pull(url, into or settings.data_home(), names or (), replace, note, timeout), json)


def push(
    url: Url,
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="The tables to upload.")],
    json: JsonFlag = False,
) -> None:
    """Upload tables to a URL, with a manifest from which `gemmdb tables pull` checks them.

    Every row is read before anything is uploaded. Tables that are there already and are not named stay. Needs `pip
    install 'gemmdb[exchange]'`; s3, gs and hf also need s3fs, gcsfs and huggingface_hub. An http server cannot be
    pushed to: push to a folder, and serve it.

    \b
    Examples:
      gemmdb tables push s3://bucket/tables mine.db
      gemmdb tables push /srv/tables monday.db tuesday.db

    \b
    Exit codes: 0 done, 2 bad usage or bad input.
    """
    from gemmdb.exchange.share import transfer

    if named := next(filter(settings.is_url, tables), None):
        raise InputError(f"{settings.url(named)} is a URL, and not a table: the one to push to comes first")
    _tell(transfer.push(url, tables, note), json)


def _tell(done: list[Transferred], json: bool) -> None:
    if json:
        say_json("transfer", {"tables": [one.as_dict() for one in done]})
    for one in done:
        resumed = f", {one.resumed:,} of them from before" if one.resumed else ""
        note(f"{one.state}: {one.path}, {count(one.size, 'byte')}{resumed}, digest {one.digest[:12]}")
    if not done:
        note("the manifest lists no tables")
