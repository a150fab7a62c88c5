"""One cache of what Inductor compiles, for all tests of a run and the processes that share them: a precompiled header
costs ten seconds, and many tests end in the same C++."""

from __future__ import annotations

import argparse
import fcntl
import gc
import getpass
import importlib.util
import logging
import math
import multiprocessing.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kit.lab import Lab

# Other work on the machine must not fail a test. "thorough" is for a change of what the properties are about.
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("patient", max_examples=50, **_PATIENT)
settings.register_profile("thorough", max_examples=500, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))

MOST_WORKERS = 4
"""What the tests of a machine with many cores are divided among at most: each holds torch, and compiles C++."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/3`: the second of three parts of about as many tests each, the same in every run."""
    parser.addoption("--part", type=_part, metavar="K/N", help="only the tests of the K-th of N parts")


def _part(text: str) -> tuple[int, int]:
    if (found := re.fullmatch(r"(\d+)/(\d+)", text)) and 1 <= int(found[1]) <= int(found[2]):
        return int(found[1]), int(found[2])
    raise argparse.ArgumentTypeError(f"{text!r} is not like 2/3")


def pytest_configure(config: pytest.Config) -> None:
    """Before torch is imported, parts of which read it once. Workers of pytest-xdist inherit the cache.

    Each worker has its own folder of temporary files, and with it its own lock of the machine: no build waits for
    another worker's. Torch keeps precompiled headers there, which the workers share by a link.

    Garbage is not collected until all tests are imported: it would take a fifth of that time."""
    gc.disable()
    # The code around the kernels of a package takes four seconds to compile, one less without optimization.
    os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
    # A thread that waits for another one would keep a core from the other workers.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "COMPILER_PATH" not in os.environ and (gold := shutil.which("ld.gold")):
        # It reads the symbols of libtorch in a third of the time, for each of a thousand small libraries.
        folder = _folder("linker-")
        Path(folder, "ld").symlink_to(gold)
        if _links(folder):
            os.environ["COMPILER_PATH"] = folder
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = _folder("inductor-")
    if hasattr(config, "workerinput"):
        os.environ["TMPDIR"] = tempfile.tempdir = _folder("tests-")
        shared = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "headers")
        shared.mkdir(parents=True, exist_ok=True)
        Path(tempfile.tempdir, f"torchinductor_{getpass.getuser()}").symlink_to(shared)


def pytest_collection_finish() -> None:
    """From here on garbage is collected, and no collection looks at torch, which takes a third of a second. A compile
    makes a million objects: collections after each 700 of them would be a tenth of its time.

    pytest captures what loggers that do not propagate are told. Torch's trace is one; it formats each graph and each
    code of a compile where anybody listens, which takes a fifth of the time of a compile."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    logging.getLogger("torch.__trace").propagate = True


def _links(folder: str) -> bool:
    """Whether the compiler makes a library with the linker in `folder`. One that was installed elsewhere may not."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    command = [compiler, "-shared", "-x", "c++", os.devnull, "-o", str(Path(folder, "empty.so"))]
    environ = {**os.environ, "COMPILER_PATH": folder}
    return bool(compiler) and subprocess.run(command, env=environ, capture_output=True).returncode == 0


def _folder(prefix: str) -> str:
    """A folder that is removed at the end of this process, after what multiprocessing removes in it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
    return folder


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that does not name the mark that `-m` asks for is not imported, nor is a folder of such files."""
    wanted = re.fullmatch(r"(slow|timed)( and not \w+)*", config.option.markexpr)
    if wanted is None or not (files := _tests(collection_path)):
        return None
    return None if any(f"mark.{wanted[1]}" in file.read_text() for file in files) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test whose mark its file does not name would run in no step: see above. Tests of other parts are left out.

    Files of tests with a long timeout come first: at the end, one worker would run the last of them alone. Before them
    come the tests of a cluster of Ray, so that one worker starts it once."""
    marked = {(item.path, mark) for item in items for mark in ("slow", "timed") if item.get_closest_marker(mark)}
    if hidden := [f"{path} names no mark.{mark}" for path, mark in marked if f"mark.{mark}" not in path.read_text()]:
        raise pytest.UsageError(*hidden)
    if part := config.getoption("part"):
        ours, others = [], []
        for item in items:
            (ours if zlib.crc32(item.nodeid.encode()) % part[1] == part[0] - 1 else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = ours
    longest: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0.0), float(mark.args[0]) if mark else 0.0)
    items.sort(key=lambda item: ("cluster" not in getattr(item, "fixturenames", ()), -longest[item.path]))


def _tests(path: Path) -> list[Path]:
    return list(path.rglob("test_*.py")) if path.is_dir() else [path] if path.suffix == ".py" else []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: two workers per core, since many tests wait for a limit of time or for another process; one
    process alone where there is a GPU, whose timings others would disturb."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 0 if any(Path("/dev").glob("nvidia[0-9]*")) else min(2 * (os.cpu_count() or 1), MOST_WORKERS)


LOCK = "vector-units-lock"
"""In the cache: held while one process finds out what the others wait for."""


@pytest.fixture(scope="session")
def vector_units() -> None:
    """What the compiler and the CPU can do, found out once for all workers and all runs with one cache: else each
    process that compiles C++ tries it anew, with an import of torch per kind of vector unit. Only where all that the
    CPU has came out to be usable."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._inductor.cpu_vec_isa")
    from gemmdb.inductor.lower.adapter import vector_units as units

    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    cache.mkdir(parents=True, exist_ok=True)
    found = cache / f"vector-units-{torch.__version__}"
    with (cache / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            found.write_text("usable" if units.all_usable() else "not all")
    if found.read_text() == "usable":
        os.environ.update(units.TRUSTED)
        units.trust()


@pytest.fixture(autouse=True)
def trusted(request: pytest.FixtureRequest) -> None:
    """Most slow tests start processes that compile C++. So do a few others, for which alone it is not found out."""
    known = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], LOCK).exists()
    if (known or request.node.get_closest_marker("slow")) and importlib.util.find_spec("torch"):
        request.getfixturevalue("vector_units")


@pytest.fixture(autouse=True, scope="session")
def unknown_load() -> Iterator[None]:
    """No test waits for a quiet machine, or finds its times marked: other workers of the tests keep it busy. Estimates
    are for the machine of their rates. Tests of that put back what they need."""
    from gemmdb.devices import load, speed
    from gemmdb.generators.measure import quiet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "PROC", Path(os.devnull))
        patch.setattr(quiet, "NOISY", math.inf)
        patch.setattr(speed, "slowness", lambda: 1.0)
        yield


@pytest.fixture(autouse=True)
def fresh_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests change settings and tables in less than the tenth of a second in which a process may miss it."""
    from gemmdb.lookup import environment

    monkeypatch.setattr(environment, "INTERVAL_S", 0.0)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Builders for problems, configs, measurements and catalogs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module that new interpreters can import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(name: str, source: str) -> None:
        (folder / f"{name}.py").write_text(textwrap.dedent(source))

    return write


@pytest.fixture
def python() -> str:
    return sys.executable
