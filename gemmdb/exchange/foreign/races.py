"""Autotuning runs of other programs: information supplied by the caller, and conversion of timings to rows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import bounded
from gemmdb.exchange.content import Tally
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import EMITTED, LEAST_US, MOST_US, Measurement, Protocol, Status, Times

SPREAD = 0.1
"""Half-width of the relative interval assigned to imported times: these files have one number per kernel, with unknown
noise. So a kernel must be more than twice this margin ahead of ATen to be picked."""
INDUCTOR = Protocol("graph", "cold", 1, 1, reference="inductor autotuning")
"""Inductor's autotuning protocol: GPU stream events around one call at a time, after a cache flush."""


@dataclass(frozen=True)
class Given:
    """Information supplied by the caller. The file's own information takes precedence; a contradiction is an
    InputError.

    `device`: a SKU or an arch. `cuda`, `torch`: versions. `op`, `dtype`, `layout`: as in `Problem.gemm`. `n`, `k`:
    sizes in elements. `resolve`: finds a device by name.
    """

    device: str | None = None
    cuda: str | None = None
    torch: str | None = None
    op: str | None = None
    dtype: str | None = None
    layout: str | None = None
    n: int | None = None
    k: int | None = None
    resolve: Callable[[str | None], Device] = lambda name: Catalog.load().resolve(name)

    def device_for(self, path: Path, named: str | None = None) -> Device:
        """Return the device named by the caller or by the file. Raises InputError without either."""
        if self.device and named and not self.resolve(self.device).named(named):
            raise InputError(f"{path}: it names the device {named[:80]!r}, and --device is {self.device!r}")
        if not self.device and not named:
            raise InputError(f"--device is missing: {path} does not name the device")
        return self.resolve(self.device or named)

    def source(
        self, path: Path, kind: str, protocol: Protocol, named: str | None = None, torch: str = "", cuda: str = ""
    ) -> Source:
        """Return the Source of the rows in a file of format `kind`. `named`, `torch`, `cuda`: device and versions if
        the file specifies them. Raises InputError if a GPU's CUDA or a CPU's torch version is unknown."""
        device = self.device_for(path, named)
        torch, cuda = torch or self.torch or "", (device.kind == "cuda" and cuda) or self.cuda or ""
        if device.kind == "cuda" and not cuda:
            raise InputError(f"--cuda is missing: {path} does not specify torch's CUDA version, such as 13.0")
        if device.kind == "cpu" and not torch:
            raise InputError(f"--torch is missing: {path} does not specify the torch version, such as 2.13.0")
        return Source(device, Toolchain(torch=torch, cuda=cuda), protocol, self.run(path, kind))

    def said(self) -> dict[str, Any]:
        """Return the caller's information, JSON-ready, for the provenance."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "resolve"}
        return {name: value for name, value in found.items() if value is not None}

    def run(self, path: Path, kind: str) -> dict[str, Any]:
        """Return the run of a file, in the form of `Table.provenance`. Its name is derived from the file's content and
        the caller's information, so importing a file again adds nothing."""
        with bounded.reading(path), path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        sha256 = digest.hexdigest()
        digest.update(repr(sorted(self.said().items())).encode())
        name = f"import-{kind}-{digest.hexdigest()[:16]}"
        return {"run": name, "imported": kind, "file": path.name, "sha256": sha256, "given": self.said()}


@dataclass(frozen=True)
class Source:
    """Properties shared by all rows of one file. `run`: its provenance."""

    device: Device
    toolchain: Toolchain
    protocol: Protocol
    run: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One kernel in an autotuning run: its config, or why it is skipped, with its location; its time in microseconds:
    infinite if it failed, 0 if the file does not specify it."""

    config: Config | Rejected
    us: float
    place: str = ""


def rows(
    source: Source, problem: Problem, choices: Sequence[Choice], tally: Tally, place: str
) -> Iterator[Measurement]:
    """Yield the rows of the kernels that one program timed on one problem.

    If the fastest kernel is skipped, or every kernel but ATen is, the rows are estimates (`slow`) and yield no verdict:
    ATen would win only because its rivals were skipped.
    """
    aten_us = min((one.us for one in choices if one.config == ATEN), default=math.inf)
    if aten_us == math.inf:
        tally.leave("ATen was not timed in this run, so there is no reference time", place, len(choices))
        return
    found = [Choice(ATEN, aten_us)]
    for one in choices:
        if isinstance(one.config, Rejected):
            tally.leave(one.config.reason, one.place)
        elif one.config != ATEN:
            found.append(one)
    decided = len(found) > 1 and min(one.us for one in choices) == min(one.us for one in found)
    for one in found:
        assert isinstance(one.config, Config)
        failed, us = math.isinf(one.us), one.us
        yield Measurement(
            problem, one.config, source.device, source.protocol, source.toolchain, source.run["run"],
            Status.ERROR if failed else Status.OK if decided else Status.SLOW,
            None if failed else Times(us, us * (1 - SPREAD), us * (1 + SPREAD), 1, aten_us),
            detail="it failed in the imported race" if failed else EMITTED if one.config.spec.emitted else "",
        )  # fmt: skip


def microseconds(value: Any, where: str) -> float:
    """Convert a time in milliseconds to microseconds; infinity, and what is not a number, stand for a kernel that
    failed. Raises InputError, prefixed with `where`."""
    if value != value:
        return math.inf
    if type(value) not in (int, float) or (isinstance(value, int) and abs(value) > MOST_US):
        raise InputError(f"{where}: a time must be a number of milliseconds, got {value!r:.60}")
    us = float(value) * 1000
    if us != math.inf and not LEAST_US / (1 - SPREAD) <= us <= MOST_US / (1 + SPREAD):
        raise InputError(f"{where}: {value!r:.60} is not a valid time in milliseconds")
    return us


def template_config(kernel: str, **values: int) -> Config | Rejected:
    """Return the config of one of Inductor's own Triton templates."""
    try:
        return Config.of("triton", kernel, **values)
    except InputError:
        domains = KERNELS["triton", kernel].params
        wrong = sorted(name for name, value in values.items() if name in domains and value not in domains[name])
        named = ", ".join(wrong or sorted(domains.keys() ^ values.keys()))
        return Rejected(f"gemmdb does not support this tile: {named} out of range")


class Cursor:
    """Find the lines of JSON keys, visited in text order."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text, self._place, self._line = path, text, 0, 1
        self._follows = True

    def at(self, key: str) -> str:
        """Return `FILE:LINE` of the next occurrence of a key, or of the last one found if there is none."""
        place = self._text.find(json.dumps(key), self._place) if self._follows else -1
        self._follows = place >= 0  # Do not rescan the whole text for a key with another spelling.
        if place >= 0:
            self._line += self._text.count("\n", self._place, place)
            self._place = place
        return f"{self._path}:{self._line}"


def document(path: Path) -> tuple[Any, Cursor]:
    """Parse a JSON file and return it with a Cursor in its text. Raises InputError with file and line."""
    text = bounded.whole(path)
    return bounded.parse_json(text, path), Cursor(path, text)
