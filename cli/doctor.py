"""`gemmdb doctor`: shows what is installed, what works and what is missing. Each check runs the real operation, in a
separate process if it may crash. A slow one that has succeeded counts for a day (`gemmdb.cli.probe`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from typer import Option

from gemmdb import trust
from gemmdb.cli import probe
from gemmdb.cli.options import JsonFlag
from gemmdb.cli.output import Cell, Column, say_json, say_table
from gemmdb.cli.probe import Memory, Outcome
from gemmdb.cli.progress import Pulse
from gemmdb.devices import detect
from gemmdb.errors import GemmdbError, InputError, TableError
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.key.toolchain import installed
from gemmdb.settings import ENVIRONMENT, Settings, fault_of
from gemmdb.table.catalog import Catalog

OK, OPTIONAL, MISSING, BROKEN = "ok", "optional", "missing", "broken"
STYLES = {OK: "green", OPTIONAL: "", MISSING: "yellow", BROKEN: "red"}
REINSTALL = "pip install --force-reinstall torch"
TORCH_PROBE = """
import torch
gpus = torch.cuda.device_count()
x = torch.ones(4, 4, device="cuda" if gpus else "cpu")
assert float((x @ x)[0, 0]) == 4, "a 4x4 GEMM of ones is wrong"
built_for = f"CUDA {torch.version.cuda}, {gpus} GPU(s)" if torch.version.cuda else "CPU only"
print(f"{torch.__version__}, {built_for}")
"""
COMPILE_PROBE = """
import torch
device = "cuda" if torch.cuda.device_count() else "cpu"
x = torch.arange(8., device=device)
assert torch.equal(torch.compile(lambda t: t * 2 + 1)(x), x * 2 + 1)
"""
FROZEN = "in force: compiles time and write nothing; the tables are"
CPP_SOURCE = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"


@dataclass(frozen=True)
class Check:
    """One line of the report. `state`: `ok`, `optional` (nothing on this machine needs it), `missing` (gemmdb
    works without it, with fewer features) or `broken`.
    `detail`: the finding. `remedy`: how to install or fix it, empty if nothing is needed."""

    name: str
    state: str
    detail: str
    remedy: str = ""


def doctor(
    json: JsonFlag = False,
    fresh: bool = Option(False, "--fresh", help="Run all checks again, also those that have succeeded today."),
) -> None:
    """Check what is installed, what works and what is missing.

    It suggests a fix for everything missing or broken. It also compiles a small function with torch.compile, which
    takes 5 to 30 seconds at first. If that succeeds, it counts for a day, unless torch, triton, a compiler or the
    driver changes.

    \b
    Examples:
      gemmdb doctor
      gemmdb doctor --json
      gemmdb doctor --fresh

    \b
    Exit codes: 0 nothing is broken (something may be missing), 1 something is broken, 2 bad usage.
    """
    with Pulse() as pulse:
        found = checks(Memory(fresh, pulse.begin))
    if json:
        say_json("doctor", {"checks": [asdict(check) for check in found]})
    else:
        rows = ((Cell(one.state, STYLES[one.state]), one.name, one.detail, one.remedy) for one in found)
        say_table((Column("state", rigid=True), Column("what", rigid=True), "found", "to do"), rows)
    if any(check.state == BROKEN for check in found):
        raise typer.Exit(1)


def checks(memory: Memory, compile_probe: bool = True) -> list[Check]:
    """All checks, in order. `compile_probe`: also compile a small function with torch.compile."""
    torch = _torch(memory)
    python = Check("python", OK, f"{platform.python_version()} {sys.executable}")
    found = [python, _sqlite(), torch, _triton(memory), _compiler(), _kernels(torch), _nvcc(), *_packages()]
    if compile_probe and torch.state == OK:
        found.append(_torch_compile(memory))
    environment = (_variable(name, os.environ[name]) for name in ENVIRONMENT if os.environ.get(name))
    return [*found, *environment, *_catalog()]


def _sqlite() -> Check:
    try:
        with sqlite3.connect(":memory:") as connection:
            connection.execute("create table t (key integer primary key) without rowid")
    except sqlite3.Error as error:
        return Check("sqlite", BROKEN, str(error), "use a Python whose sqlite3 module works")
    return Check("sqlite", OK, sqlite3.sqlite_version)


def _torch(memory: Memory) -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("torch", MISSING, "gemmdb build and torch.compile need it, lookups do not", "pip install torch")
    done = memory.run("torch", "importing torch", [sys.executable, "-c", TORCH_PROBE])
    return _checked("torch", done, REINSTALL, lambda out: out.splitlines()[-1])


def _torch_compile(memory: Memory) -> Check:
    command, remedy = [sys.executable, "-c", COMPILE_PROBE], "see the C++ compiler above; on a GPU, triton"
    words = "compiling a small function with torch.compile, 5 to 30 s on an idle machine"
    with tempfile.TemporaryDirectory(prefix="gemmdb-doctor-") as cache:
        # An empty cache: a cached kernel would hide a compiler that no longer works.
        done = memory.run("torch.compile", words, command, TORCHINDUCTOR_CACHE_DIR=cache)
    return _checked("torch.compile", done, remedy, lambda _: "compiled and ran a small function")


def _triton(memory: Memory) -> Check:
    if importlib.util.find_spec("triton") is None:
        if detect.cuda() is None:
            return Check("triton", OPTIONAL, "not installed; only GPU kernels need it")
        return Check("triton", MISSING, "GPU kernels need it", "install the CUDA wheel of torch")
    command = [sys.executable, "-c", "import triton, triton.language; print(triton.__version__)"]
    done = memory.run("triton", "importing triton", command)
    return _checked("triton", done, f"{REINSTALL} (it pins its triton)", str.strip)


def _compiler() -> Check:
    names = [os.environ.get("CXX", ""), "g++", "clang++"]
    path = next((known for name in names if name and (known := shutil.which(name))), None)
    remedy = "apt-get install g++ (or your system's package of it), or set CXX"
    if path is None:
        return Check("C++ compiler", MISSING, "torch.compile on a CPU needs it", remedy)
    with tempfile.TemporaryDirectory(prefix="gemmdb-doctor-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(CPP_SOURCE)
        command = [path, "-shared", "-fPIC", "-fopenmp", str(source), "-o", str(source.with_suffix(".so"))]
        return _checked("C++ compiler", probe.run(command), remedy, lambda _: f"{path}, with OpenMP")


def _kernels(torch: Check) -> Check:
    """Check the prebuilt CUTLASS kernels."""
    path = prebuilt.shipped()
    if not path.exists():
        device = detect.cuda()
        remedy = "gemmdb kernels build, with nvcc" if device is not None and device.arch == prebuilt.ARCH else ""
        return Check("kernels", MISSING, "no prebuilt CUTLASS kernels", remedy)
    try:
        archive = Archive.open(path)
    except TableError as error:
        return Check("kernels", BROKEN, str(error), "install gemmdb again")
    count = f"{len(archive.kernels)} CUTLASS kernels for {archive.provenance.get('arch', '?')}"
    running = installed("cuda") if torch.state == OK and detect.cuda() is not None else None
    if running is not None and not archive.runs_with(running):
        detail = f"{count}, for CUDA {archive.provenance['cuda']}: this torch has CUDA {running.cuda}"
        return Check("kernels", MISSING, detail, "a torch for that CUDA, or nvcc and Policy(compile_cost=10)")
    return Check("kernels", OK, f"{count}, compiled by nvcc {archive.provenance['cuda']}")


def _nvcc() -> Check:
    path = cutlass.compiler()
    if path is None:
        if detect.cuda() is None:
            return Check("nvcc", OPTIONAL, "not installed; only CUTLASS kernels need it, on a GPU")
        detail = "CUTLASS kernels that are not prebuilt need it; the default policy never serves them"
        return Check("nvcc", MISSING, detail, "install the CUDA toolkit, then set CUDA_HOME or PATH")
    remedy = "set CUDACXX to an nvcc that works"
    return _checked("nvcc", probe.run([path, "--version"]), remedy, lambda out: f"{path}, {_release(out)}")


def _release(version: str) -> str:
    return next((line.strip() for line in version.splitlines() if "release" in line), "")


def _packages() -> Iterator[Check]:
    extras = {"sqlite-utils": "", "jinja2": "build", "sympy": "build", "nvidia-cutlass": "cutlass"}
    for package, extra in extras.items():
        try:
            yield Check(package, OK, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            if extra == "cutlass" and detect.cuda() is None:
                yield Check(package, OPTIONAL, "not installed; only CUTLASS kernels need it, on a GPU")
            elif extra:
                yield Check(package, MISSING, f"installed by the extra '{extra}'", f"pip install 'gemmdb[{extra}]'")
            else:
                yield Check(package, MISSING, "", f"pip install {package}")


def _variable(name: str, value: str) -> Check:
    """Check a variable's value. The tables that it names have their own check."""
    if name == "GEMMDB_TRUST":
        path = Path(value)
        try:
            return Check(name, OK, f"{path}: {len(trust.listed(path.expanduser()))} digests")
        except InputError as error:
            return Check(name, BROKEN, str(error), "name a file that `sha256sum` wrote, or unset it")
    if name == "GEMMDB_FROZEN":
        return _frozen(name)
    if fault := fault_of(name, value):
        return Check(name, BROKEN, fault, f"set {name} to one of these, or unset it")
    return Check(name, OK, value)


def _frozen(name: str) -> Check:
    """Check the frozen mode. Its tables have their own checks."""
    settings = Settings.read()
    if not settings.frozen:
        return Check(name, OK, "off")
    if settings.pins is None:
        return Check(name, OK, f"{FROZEN} those named, and the shipped ones")
    try:
        pinned = trust.pinned(settings.pins)
    except InputError as error:
        return Check(name, BROKEN, str(error), "name the file that `gemmdb freeze` wrote, or unset it")
    return Check(name, OK, f"{FROZEN} those of {settings.pins}: {', '.join(pinned)}")


def _catalog() -> list[Check]:
    """Check each table, then whether any covers this machine's device."""
    found = []
    try:
        catalog = Catalog.load(Settings.read(), strict=True)
    except InputError:
        return []  # The environment is invalid: the check of that variable has reported it.
    except GemmdbError as error:
        frozen = Settings.read().pins is not None  # The message has the remedy, and compiles read no other table.
        remedy = "" if frozen else "move the file away, or take it out of GEMMDB_TABLES"
        found.append(Check("catalog", BROKEN, str(error), remedy))
        catalog = Catalog(()) if frozen else Catalog.load(Settings.read())
    for table in catalog.tables:
        skus = ", ".join(device.sku for device in table.devices())
        found.append(Check("table", OK, f"{table.path}: {skus or 'empty'}"))
    device = detect.native()
    covering = [str(table.path) for table in catalog.tables if device in table.devices()]
    if covering:
        return [*found, Check("this device", OK, f"{device.sku} ({device.arch}): covered by {', '.join(covering)}")]
    detail = f"{device.sku} ({device.arch}, {device.units} units): no table yet"
    state = OPTIONAL if device.kind == "cpu" else MISSING
    return [*found, Check("this device", state, detail, "gemmdb tune -- python PROGRAM.py makes one")]


def _checked(name: str, done: Outcome, remedy: str, describe: Callable[[str], str]) -> Check:
    """Return the check of a command that must succeed. `describe` turns its stdout into the detail."""
    if done.error:
        return Check(name, BROKEN, done.error, remedy)
    when = "" if done.seconds_ago is None else f" (checked {probe.ago(done.seconds_ago)})"
    return Check(name, OK, f"{describe(done.out)}{when}")
