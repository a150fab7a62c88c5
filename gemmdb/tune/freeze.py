"""The last steps of `gemmdb freeze`: the program times what only it can time, and the tables are pinned."""

from __future__ import annotations

import platform
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmdb import __version__
from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.files import replacing
from gemmdb.generators.files.merge import unite
from gemmdb.generators.files.pack import pack
from gemmdb.key.device import Device
from gemmdb.key.toolchain import installed
from gemmdb.report.workload import Product, WorkloadReport, of_workload
from gemmdb.settings import Policy, Settings
from gemmdb.table.admission import digest_of
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.reader import Table
from gemmdb.tune.running import Say, run
from gemmdb.workload.entries import Workload

LIST, PACKED, MEASURED = "frozen.sha256", "frozen.db", "table.db"
"""Files in the folder: the digests, the packed table, and the table with the measurements."""
MAX_RUNS = 3
"""Most runs of the program that time what no build can: each is limited to the budget of one process."""


@dataclass(frozen=True)
class Frozen:
    """The result. `pins`: the list of digests; `tables`: its digests by file name; `report`: the workload as frozen
    programs are served; `changed`: GEMMs that another config served before."""

    pins: Path
    tables: Mapping[str, str]
    report: WorkloadReport
    changed: tuple[Product, ...] = ()


def settle(command: Sequence[str], table: Path, say: Say, stdout: int | None = None) -> int:
    """Run a program, whose compiles store in `table` what they time (confirming, algorithms of cuBLASLt), until a run
    stores nothing new. Returns the number of runs: 0 on a CPU, where nothing is timed. Raises
    InputError for a program that fails, KeyboardInterrupt if a signal ends it."""
    if detect.native().kind != "cuda":
        return 0
    environment = {
        "GEMMDB_USER_TABLE": str(table.absolute()),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "VLLM_DISABLE_COMPILE_CACHE": "1",
    }  # fmt: skip
    for number in range(1, MAX_RUNS + 1):
        say(f"4/4 the program runs with gemmdb and times what a build cannot, run {number} of {MAX_RUNS} at most")
        before = _state(table)
        ended = run(command, table, "settle", environment, stdout)
        if ended.failures:
            raise InputError(f"the program cannot be timed: {ended.failures[0]}")
        if ended.stopped and _state(table) == before:
            raise KeyboardInterrupt
        if ended.failed:
            raise InputError(f"the program ended with exit code {ended.exit_code}; it has to run without an error")
        if _state(table) == before:
            return number
    return MAX_RUNS


def freeze(folder: Path, catalog: Catalog, workload: Workload, command: Sequence[str]) -> Frozen:
    """Pin what `catalog` has for the devices of a workload in a `folder`: measurements as one packed table, and packed
    tables as copies, except shipped ones, which are listed only. Raises TableError and InputError."""
    settings = Settings.read()
    policy = Policy(frozen=True).resolved(settings)
    before = of_workload(workload, folder.name, catalog, policy)
    devices = {one.device for one in before.products}
    used = [
        (source, table) for source, table in catalog.entries if _serves(table, devices) and not _is_old(folder, table)
    ]
    tables = dict(_written(folder, used))
    pins = folder / LIST
    with replacing(pins) as part:
        part.write_text("".join([*_head(devices, command), *(f"{tables[name]}  {name}\n" for name in tables)]))
    frozen = Catalog.load(replace(settings.with_frozen(pins), tables=()), strict=True)
    report = of_workload(workload, folder.name, frozen, policy)
    kernels = {one.entry: one.kernels for one in before.products}
    changed = tuple(one for one in report.products if one.kernels != kernels.get(one.entry))
    return Frozen(pins, tables, report, changed)


def _written(folder: Path, used: Iterable[tuple[Source, Table]]) -> Iterable[tuple[str, str]]:
    """Write the tables into the folder and yield the name and digest of each, in the order of lookups."""
    used = list(used)
    measured = [table.path for _, table in used if not table.packed]
    (folder / PACKED).unlink(missing_ok=True)
    if measured:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            unite(measured, whole := Path(name, MEASURED))
            pack(whole, folder / PACKED)
        yield PACKED, digest_of(folder / PACKED)
    for source, table in used:
        if not table.packed:
            continue
        if source.origin == "shipped":
            yield table.path.name, digest_of(table.path)
            continue
        # Tables of two folders may have the same name.
        copy = folder / f"{table.digest[:8]}-{table.path.name}"
        with replacing(copy) as part:
            shutil.copyfile(table.path, part)
        yield copy.name, digest_of(copy)


def _serves(table: Table, devices: Iterable[Device]) -> bool:
    """Return whether lookups for one of the devices may read a table: it has that architecture."""
    archs = {(device.kind, device.arch) for device in devices}
    return any((device.kind, device.arch) in archs for device in table.devices())


def _is_old(folder: Path, table: Table) -> bool:
    """Return whether an earlier run made this table."""
    return table.path.absolute() == (folder / PACKED).absolute()


def _head(devices: Iterable[Device], command: Sequence[str]) -> Iterable[str]:
    """Yield comments that say what the tables are for."""
    names = sorted({device.sku for device in devices})
    toolchain = installed(detect.native().kind)
    torch = "" if toolchain is None else f", torch {toolchain.torch}"
    yield f"# GEMMDB_FROZEN: the tables of {shlex.join(command)}\n".replace("\n", " ").rstrip() + "\n"
    yield f"# gemmdb {__version__}{torch}, Python {platform.python_version()}; {', '.join(names)}\n"


def _state(table: Path) -> str:
    """Return a text that changes with every row of a table; empty without one."""
    if not table.exists():
        return ""
    with Table.open(table) as opened:
        return opened.state()
