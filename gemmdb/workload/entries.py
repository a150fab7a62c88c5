"""workload.jsonl: the GEMMs that a program compiles, one JSON object per line.

    {"problem": canonical text, "count": n, "calls": n, "device": canonical text, "ranges": {"m": [2, null]},
     "origins": [{"module": "layers.0.mlp.up", "source": "model.py:12"}], "seen": [{"m": 16, "calls": n}],
     "computed": true}

`count`: occurrences in compiled graphs; `calls`: calls of these graphs; `ranges`: the sizes that were symbolic;
`origins`: source locations in the user's code, if known; `seen`: the sizes of the calls, to the nearest power of two,
if they are known; `computed`: neither operand is a weight, but an input of the program or computed. A GEMM that gemmdb
does not handle has `uncovered`, its name, instead of `problem`.

Readers add up the lines of a problem and ignore unknown fields.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import append_lines, is_page
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.workload.seen import Seen, merged
from gemmdb.workload.seen import read as read_seen

SQLITE = b"SQLite format 3\0"
"""First bytes of a table file."""
MAX_BYTES = 2**28
"""Largest file accepted, in bytes. A line takes about 300 bytes."""
MAX_ENTRIES = 100_000
"""Most distinct problems in a file, including uncovered GEMMs. Each lookup takes milliseconds; programs have a few
hundred problems."""
MAX_CHARACTERS = 120
"""Most characters of each text of an origin; a longer one keeps its more specific end."""
MAX_ORIGINS = 8
"""Most origins of a GEMM. Each layer of a model has one."""
_MADE_BY = "; `gemmdb record` makes a workload, `gemmdb build` a table"
Ranges = tuple[tuple[str, int, int | None], ...]


def line(
    kind: str, name: str, count: int = 1, calls: int = 0, device: str = "", ranges: Ranges = (),
    origins: tuple[Origin, ...] = (), seen: Seen = (), computed: bool = False,
) -> str:  # fmt: skip
    """Return one line of a file. `kind`: `problem`, or `uncovered` for a GEMM that gemmdb does not handle; `name`:
    canonical text of the problem, or the GEMM's name. The other arguments are the fields of an Entry."""
    item: dict[str, Any] = {
        kind: name, "count": count, "calls": calls, "device": device,
        "ranges": {size: [low, high] for size, low, high in ranges},
    }  # fmt: skip
    if origins:
        item["origins"] = [asdict(one) for one in origins]
    if seen:
        item["seen"] = [{**dict(sizes), "calls": number} for sizes, number in seen]
    if computed:
        item["computed"] = True
    return json.dumps(item)


@dataclass(frozen=True, slots=True)
class Origin:
    """One source location. `module`: the path of the innermost module, such as `layers.0.mlp.up`; `source`: file and
    line, such as `serve.py:12`. Either may be empty."""

    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        return " at ".join(part for part in (self.module, self.source) if part)


@dataclass(frozen=True)
class Entry:
    """A problem of a workload. `count`: number of occurrences in compiled graphs; `calls`: number of calls of these
    graphs, summed over its occurrences; `device`: canonical text of the device compiled for, empty if unknown.
    `ranges`: (`m`, `n` or `k`, smallest, largest or None) of each size that was symbolic. `origins`: source locations
    in the user's code, at most MAX_ORIGINS. `seen`: the number of calls by their symbolic sizes, empty if unknown.
    `computed`: whether neither operand is a weight, but an input of the program or computed."""

    problem: Problem
    count: int = 1
    calls: int = 0
    device: str = ""
    ranges: Ranges = ()
    origins: tuple[Origin, ...] = ()
    seen: Seen = ()
    computed: bool = False

    def __add__(self, other: Entry) -> Entry:
        """Merge two lines with the same problem, device and ranges."""
        return replace(
            self, count=self.count + other.count, calls=self.calls + other.calls,
            origins=merged_origins(self.origins, other.origins), seen=merged(self.seen, other.seen),
            computed=self.computed and other.computed,
        )  # fmt: skip

    @property
    def line(self) -> str:
        """Return the entry as a line of the file."""
        return line(
            "problem", self.problem.text, self.count, self.calls, self.device, self.ranges, self.origins,
            self.seen, self.computed,
        )  # fmt: skip

    @property
    def ends(self) -> dict[str, tuple[int, int | None]]:
        """The smallest and the largest value of each symbolic size, as of a Query."""
        return {name: (low, high) for name, low, high in self.ranges}

    @property
    def most_rows(self) -> int:
        """The largest M of the calls, to the nearest power of two; that of the compile if none is known."""
        return max((problem.m for problem in self.sizes()), default=self.problem.m)

    def query(self, device: Device) -> Query:
        """Return the lookup of the problem, with its ranges, on a device."""
        return Query(self.problem, device, self.ends, computed=self.computed)

    def sizes(self) -> dict[Problem, float]:
        """Return the problem at each size that was called, with the share of these calls; empty if unknown."""
        total = sum(calls for _, calls in self.seen)
        found: dict[Problem, float] = {}
        for sizes, calls in self.seen:
            here = {"m": self.problem.m, "n": self.problem.n, "k": self.problem.k, **dict(sizes)}
            found[self.problem.resized(**here)] = calls / total
        return found


@dataclass(frozen=True)
class Workload:
    """A whole file: the entries, merged per problem, device and ranges in the order of their first lines; (count,
    calls) of GEMMs that gemmdb does not handle, by name; and the numbers of the entries' first lines."""

    entries: tuple[Entry, ...]
    uncovered: Mapping[str, tuple[int, int]]
    numbers: tuple[int, ...] = field(default=(), compare=False)


def read(path: Path) -> Workload:
    """Read a workload file. Raises InputError, naming file and line, for anything else."""
    merged: dict[tuple[Problem, str, Ranges], Entry] = {}
    numbers: list[int] = []
    uncovered: dict[str, tuple[int, int]] = {}
    for where, text in lines(path):
        item = as_object(text, where, "; name a workload of `gemmdb record`")
        if isinstance(name := item.get("uncovered"), str):
            count, calls = uncovered.get(name, (0, 0))
            uncovered[name] = count + _number(item, "count", 1, where), calls + _number(item, "calls", 0, where)
        else:
            new = entry(item, where)
            key = new.problem, new.device, new.ranges
            if key not in merged:
                numbers.append(int(where.rpartition(":")[2]))
            merged[key] = merged[key] + new if key in merged else new
        if len(merged) + len(uncovered) > MAX_ENTRIES:
            raise InputError(
                f"{where}: more than {MAX_ENTRIES:,} distinct problems; record fewer programs into one file"
            )
    return Workload(tuple(merged.values()), uncovered, tuple(numbers))


def append(path: Path, entries: Iterable[Entry]) -> None:
    """Append entries under a lock, so that several processes may record into one file. Raises InputError."""
    write(path, (entry.line for entry in entries))


def write(path: Path, lines: Iterable[str]) -> None:
    """Append lines of either kind; otherwise as `append`."""
    try:
        append_lines(path, lines)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def entry(item: Mapping[str, Any], where: str) -> Entry:
    """Return the entry for a line's object; `where` names the line in errors. Raises InputError."""
    text, device = item.get("problem"), item.get("device") or ""
    if not isinstance(text, str) or not isinstance(device, str):
        raise InputError(f'{where}: a workload line needs a "problem", its canonical text')
    try:
        problem = Problem.parse(text)
    except InputError as error:
        raise InputError(f"{where}: {error}; delete the line, or record the program again") from error
    count, calls = _number(item, "count", 1, where), _number(item, "calls", 0, where)
    ranges = _ranges(item.get("ranges") or {}, where)
    seen = read_seen(item.get("seen", []), [name for name, _, _ in ranges], where)
    computed = item.get("computed") is True
    return Entry(problem, count, calls, device, ranges, read_origins(item.get("origins")), seen, computed)


def is_table(path: Path) -> bool:
    """Whether a file is an SQLite database. Raises InputError if it cannot be read."""
    with _reading(path), path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (`file:line`, text) for each non-empty line. Raises InputError for anything that cannot be read as text."""
    with _reading(path), path.open("rb") as file:  # Opened once: it may be a pipe, such as /dev/stdin.
        raw = file.read(MAX_BYTES + 1)
        if raw.startswith(SQLITE):
            raise InputError(f"{path} is a table, not a workload: `gemmdb show {path}` lists what is in it")
        if len(raw) > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES:,} bytes")
        if is_page(raw):
            raise InputError(f"{path} is an HTML page; name a workload of `gemmdb record`")
        text = raw.decode("utf-8-sig")  # Editors on Windows begin a file with a byte-order mark.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        makes = "; name a file in it" if path.is_dir() else _MADE_BY if not os.path.lexists(path) else ""
        raise InputError(f"cannot read {path}: {error.strerror}{makes}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is neither text nor a table{_MADE_BY}") from error


def as_object(text: str, where: str, remedy: str = "") -> dict[str, Any]:
    """Parse the JSON object of a line. Raises InputError for anything else; `remedy` ends its message."""
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}{remedy}") from error
    if not isinstance(item, dict):
        raise InputError(f"{where}: a line must be a JSON object, not {text.strip()[:40]!r}")
    return item


def _number(item: Mapping[str, Any], name: str, default: int, where: str) -> int:
    value = item.get(name, default)
    if type(value) is not int or not 0 <= value < 2**63:
        raise InputError(f"{where}: {name} must be an integer of at least 0 and below 2**63, got {str(value)[:40]!r}")
    return value


def _ranges(ranges: object, where: str) -> Ranges:
    found = []
    for name, bounds in ranges.items() if isinstance(ranges, dict) else [("", None)]:
        low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (None, None)
        if name not in ("m", "n", "k") or type(low) is not int or (high is not None and type(high) is not int):
            raise InputError(f"{where}: ranges must have the form {{'m': [smallest, largest or null]}}, got {ranges!r}")
        if low < 0 or (high is not None and high < low):
            raise InputError(f"{where}: no such range: {name} from {low} to {high}")
        found.append((name, low, high))
    return tuple(sorted(found))


def merged_origins(*several: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return all distinct, non-empty origins, at most MAX_ORIGINS."""
    found = dict.fromkeys(one for some in several for one in some if one.module or one.source)
    return tuple(found)[:MAX_ORIGINS]


def read_origins(items: Any) -> tuple[Origin, ...]:
    """Return the origins of a workload line. They are informational only, so invalid ones are dropped, long ones are
    truncated, and control characters become `?`."""
    if not isinstance(items, list):
        return ()
    found = (Origin(clean(item.get("module")), clean(item.get("source"))) for item in items if isinstance(item, dict))
    return merged_origins(found)


def clean(text: object) -> str:
    """Return a text in displayable form: printable, on one line, and bounded. Anything but a text becomes empty."""
    if not isinstance(text, str):
        return ""
    short = text if len(text) <= MAX_CHARACTERS else f"...{text[3 - MAX_CHARACTERS :]}"
    return "".join(c if c.isprintable() else "?" for c in short)
