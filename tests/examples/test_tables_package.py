"""examples/gemmdb-tables-example: built without a network, installed into a folder, and used by gemmdb from there."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit.tables import Kit

EXAMPLE = Path(__file__).parents[2] / "examples" / "gemmdb-tables-example"
KIT = Kit()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder that the package was installed into, with one table in it."""
    pytest.importorskip("build")
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source)
    KIT.write(source / "gemmdb_tables_example" / "mine.db", [KIT.row(), KIT.row(KIT.configs[1], us=5.0)])
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("gemmdb_tables_example-*.whl")
    target = tmp_path / "target"
    if importlib.util.find_spec("pip"):
        flags = ["--no-index", "--no-deps", "--quiet", "--target", str(target)]
        subprocess.run([sys.executable, "-m", "pip", "install", *flags, str(wheel)], check=True, capture_output=True)
    else:  # Installing a wheel of pure Python into a folder is unpacking it.
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


def test_the_package_adds_its_table(installed: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GEMMDB_")}
    environ |= {"PYTHONPATH": str(installed), "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "gemmdb", "tables", "--json"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, check=True, capture_output=True, text=True)
    first = json.loads(done.stdout)["tables"][0]
    assert first["path"] == str(installed / "gemmdb_tables_example" / "mine.db")
    assert (first["device"], first["measurements"]) == (KIT.device.sku, 2)
    assert done.stderr == ""
    command = [sys.executable, "-m", "gemmdb", "lookup", KIT.problem.text, "--device", KIT.device.sku, "--json"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert KIT.configs[1].text in done.stdout
