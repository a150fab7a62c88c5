"""Archives: the rows of a table as compressed text. They are committed after a build; later builds and tables start
from them.

An archive is a folder of files `rows-00.jsonl.xz`, ..., each readable by itself. The first line of a file holds the
runs and the devices; each other line holds the rows of one problem by column:

{"archive": 1, "runs": [...], "devices": [[text, figures], ...]}
    {"problem": text, "configs": [...], "contexts": [[device, protocol, toolchain, run], ...], "details": [...],
     "columns": {"config": [...], "context": [...], "detail": [...], "status": [...], "median_us": [...], ...}}

`configs`, `contexts` and `details` list what earlier lines of the file have not listed; the columns `config`, `context`
and `detail` hold positions in the lists of all lines so far. Texts are canonical, and numbers are written so that the
same floats are read back.
"""

from __future__ import annotations

import contextlib
import json
import lzma
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.schema import parse_figures
from gemmdb.table.writer import Store

VERSION = 1
FILE_ROWS = 250_000
"""Rows per file. A row takes about 30 bytes, so a file stays far below 15 MiB even if many rows failed."""
PRESET = 1
"""Compression preset. Higher ones take ten times as long and save a sixth of the size."""
_TIMES = ("median_us", "low_us", "high_us", "samples", "aten_us")
_NUMBERS = (*_TIMES, "error", "compile_s")
_CHUNK = 5000

T = TypeVar("T")


def write(path: Path, folder: Path, rows: int = FILE_ROWS) -> list[Path]:
    """Write every row of the table at `path` to files `rows-00.jsonl.xz`, ... in `folder`, which is created if missing.
    Returns the files. All rows of a problem are in one file, so the last problem of a file may exceed `rows`.

    Raises TableError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    with contextlib.closing(Table.open(path)) as table, contextlib.ExitStack() as stack:
        count, part = 0, _File(None)
        for problem, group in groupby(table.measurements(), key=lambda row: row.problem):
            if part.file is None or count >= rows:
                stack.close()
                parts.append(folder / f"rows-{len(parts):02}.jsonl.xz")
                count, part = 0, _File(stack.enter_context(lzma.open(parts[-1], "wt", preset=PRESET, encoding="utf-8")))
                devices = [[device.text, dict(device.figures)] for device in table.devices()]
                part.put({"archive": VERSION, "runs": table.provenance(), "devices": devices})
            found = sorted(group, key=lambda row: (row.run, row.config.text))
            part.put(part.block(problem, found))
            count += len(found)
    return parts


def runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, in the form of `Table.provenance`. Raises InputError."""
    with contextlib.closing(_lines(path)) as lines:
        found: list[dict[str, Any]] = _head(path, next(lines, None))["runs"]
    return found


def read(path: Path) -> Iterator[Measurement]:
    """Yield the rows of a file. Raises InputError, with file and line, for anything that `write` does not write."""
    lines = _lines(path)
    try:
        devices = {text: Device.parse(text, parse_figures(json.dumps(figures)))
                   for text, figures in _head(path, next(lines, None))["devices"]}  # fmt: skip
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}:1: malformed devices ({error})") from error
    configs: list[Config] = []
    contexts: list[tuple[Device, Protocol, Toolchain, str]] = []
    details: list[str] = []
    for number, line in enumerate(lines, 2):
        try:
            block = json.loads(line)
            configs += map(Config.parse, block["configs"])
            for device, protocol, toolchain, run in block["contexts"]:
                contexts.append((devices[device], Protocol.parse(protocol), Toolchain.parse(toolchain), run))
            details += block["details"]
            yield from _rows(Problem.parse(block["problem"]), block["columns"], configs, contexts, details)
        except (InputError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}:{number}: malformed rows ({error})") from error


def _rows(
    problem: Problem, columns: dict[str, list[Any]], configs: Sequence[Config],
    contexts: Sequence[tuple[Device, Protocol, Toolchain, str]], details: Sequence[str],
) -> list[Measurement]:  # fmt: skip
    found = []
    for row in zip(*(columns[name] for name in ("config", "context", "detail", "status", *_NUMBERS)), strict=True):
        config, context, detail, status, *times, error, compile_s = row
        if min(config, context, detail) < 0:
            raise InputError("a number is negative")
        timed = None if times[0] is None else Times(*times)
        device, protocol, toolchain, run = contexts[context]
        found.append(
            Measurement(
                problem, configs[config], device, protocol, toolchain, run,
                Status(status), timed, error, compile_s, details[detail],
            )
        )  # fmt: skip
    return found


def restore(paths: Sequence[Path], out: Path, wanted: Callable[[Measurement], bool] | None = None) -> int:
    """Add the `wanted` rows (default: all) of archive files, and their runs, to the table at `out`. Returns the number
    of new rows. Verdicts are not refreshed.

    Raises InputError for a file that is not an archive, TableError if `out` is not a table.
    """
    added = 0
    with Store.open(out) as store:
        for path in paths:
            present: set[str] = set()
            rows = filter(wanted, read(path))
            while chunk := list(islice(rows, _CHUNK)):
                added += store.add(chunk)
                present |= {row.run for row in chunk}
            store.add_runs([run for run in runs(path) if wanted is None or run["run"] in present])
    return added


@dataclass
class _File:
    """A file being written, and the indices of the values it has listed so far."""

    file: Any
    configs: dict[str, int] = field(default_factory=dict)
    contexts: dict[tuple[str, ...], int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)

    def put(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def block(self, problem: Problem, rows: Sequence[Measurement]) -> dict[str, Any]:
        before = len(self.configs), len(self.contexts), len(self.details)
        contexts = [(row.device.text, row.protocol.text, row.toolchain.text, row.run) for row in rows]
        columns: dict[str, list[Any]] = {
            "config": [_number(self.configs, row.config.text) for row in rows],
            "context": [_number(self.contexts, context) for context in contexts],
            "detail": [_number(self.details, row.detail) for row in rows],
            "status": [row.status.value for row in rows],
            **{name: [getattr(row.times, name) if row.times else None for row in rows] for name in _TIMES},
            **{name: [getattr(row, name) for row in rows] for name in ("error", "compile_s")},
        }
        return {
            "problem": problem.text,
            "configs": list(self.configs)[before[0] :],
            "contexts": list(self.contexts)[before[1] :],
            "details": list(self.details)[before[2] :],
            "columns": columns,
        }


def _number(known: dict[T, int], value: T) -> int:
    return known.setdefault(value, len(known))


def _head(path: Path, line: str | None) -> dict[str, Any]:
    try:
        head = json.loads(line or "null")
        if head["archive"] == VERSION and isinstance(head["runs"], list) and isinstance(head["devices"], list):
            return dict(head)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not an archive of rows") from error
    raise InputError(f"{path}: an archive of another version")


def _lines(path: Path) -> Generator[str, None, None]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})") from error
