"""The order in which modules may import each other, and what `import gemmdb` costs."""

from __future__ import annotations

import re
import resource
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "triton", "typer", "sqlite_utils", "rich", "jinja2", "sympy", "numpy")
LIMIT_MS = 60


def test_the_layers_hold() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("import-linter is not installed: pip install 'gemmdb[dev]'")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_of_the_core_is_in_a_layer() -> None:
    """A module that no contract names would be free to import anything."""
    text = (ROOT / "pyproject.toml").read_text().partition("[tool.importlinter]")[2]
    named = set(re.findall(r"gemmdb\.(\w+)", text))
    present = {path.stem for path in (ROOT / "gemmdb").glob("*.py")} - {"__init__", "__main__"}
    present |= {path.name for path in (ROOT / "gemmdb").iterdir() if (path / "__init__.py").exists()} - {"tables"}
    assert present <= named, f"not in any import-linter contract: {sorted(present - named)}"


def test_the_pictures_of_the_layers_are_drawn_from_the_contracts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tools.layers", tmp_path], cwd=ROOT, check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "docs").glob("layers*.svg")}
    assert kept == drawn, "run: make docs"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ordered = {" ".join(one["layers"]).replace(" | ", " ") for one in contracts if one["type"] == "layers"}
    shown = {" ".join(re.findall(r'class="title"[^>]*>([\w.]+)<', picture)) for picture in drawn.values()}
    assert shown == ordered
    assert {"layers.svg", "layers-generators.svg", "layers-inductor.svg"} <= set(drawn)


def test_packages_import_each_other_no_more_than_documented() -> None:
    """`tools.imports` fails where packages import each other in a circle."""
    done = subprocess.run([sys.executable, "-m", "tools.imports"], cwd=ROOT, capture_output=True, text=True, check=True)
    row = r"^\| (the [\w ]+)%s \| (\d+) \| (\d+) \| (\d+) \|"
    counted = re.findall(row % "", done.stdout, re.MULTILINE)
    documented = re.findall(row % "", (ROOT / "docs" / "contributing" / "architecture.md").read_text(), re.MULTILINE)
    assert [title for title, *_ in counted] == [title for title, *_ in documented] == ["the whole package", "the core"]
    for now, most in zip(counted, documented, strict=True):
        assert all(int(x) <= int(y) for x, y in zip(now[1:], most[1:], strict=True)), f"{now}, documented: {most}"


def test_importing_gemmdb_loads_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import gemmdb"], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "gemmdb" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_importing_gemmdb_is_quick() -> None:
    """Processor time, so that what else runs on the machine counts little; bare python and the import take turns."""
    pairs = [(_processor_s("pass"), _processor_s("import gemmdb")) for _ in range(9)]
    cost = statistics.median(full - bare for bare, full in pairs)
    assert cost * 1000 < LIMIT_MS, f"{cost * 1000:.0f} ms"


def _processor_s(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    """In a fresh process, before and after the names are imported."""
    script = (
        "import gemmdb, gemmdb.inductor as inductor\n"
        "for module in (gemmdb, inductor, gemmdb):\n"
        "    assert dir(module) == sorted(module.__all__), dir(module)\n"
        "    [getattr(module, name) for name in dir(module)]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_string_names_a_package_above_but_that_of_the_process_for_live_tuning() -> None:
    """A module that is imported by its name evades the contracts. Only another process imports this one."""
    own = [path for path in (ROOT / "gemmdb").iterdir() if not path.is_symlink()]
    files = [file for path in own for file in (path.rglob("*.py") if path.is_dir() else [path])]
    named = {
        (str(file.relative_to(ROOT)), found)
        for file in files if file.suffix == ".py"
        for found in re.findall(r"""["'](gemmdb\.(?:generators|cli)\b[\w.]*)["']""", file.read_text())
    }  # fmt: skip
    assert named == {("gemmdb/inductor/benchmark/client.py", "gemmdb.generators.live.process")}
