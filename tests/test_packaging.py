"""The distribution: what the wheel holds, what site-packages gains, what a light install needs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    # Setuptools builds in the source tree; processes that share these tests out take turns.
    with (ROOT / "pyproject.toml").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        subprocess.run(command, check=True, capture_output=True, text=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The Python of a new environment with the wheel, and with what this one has beside gemmdb."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:  # Installing a wheel of pure Python into a folder is unpacking it.
        archive.extractall(packages)
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others))
    return tmp_path / "venv" / "bin" / "python"


def test_the_wheel_adds_only_gemmdb_to_site_packages(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gemmdb"}


def test_the_wheel_holds_every_module_and_data_file(wheel_names: list[str]) -> None:
    packages = {"gemmdb": "gemmdb", "cli": "gemmdb/cli", "generators": "gemmdb/generators", "tables": "gemmdb/tables"}
    for folder, inside in packages.items():
        tracked = subprocess.run(
            ["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split()
        for path in tracked:
            if (ROOT / path).is_symlink():
                continue
            assert path.replace(folder, inside, 1) in wheel_names, path


def test_the_wheel_is_no_larger_than_it_may_be(wheel: Path) -> None:
    assert wheel.stat().st_size <= 8 * 2**20


def test_the_licence_is_in_the_wheel(wheel_names: list[str]) -> None:
    assert any(name.endswith("/LICENSE") for name in wheel_names)


def test_a_light_install_brings_typer_and_sqlite_utils_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"typer", "sqlite-utils"}


def test_the_dynamo_backend_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"gemmdb": "gemmdb.inductor.entry.backend:gemmdb"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_runs_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    here = tmp_path / "here"
    here.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMDB_", "PYTHON"))}
    # Threads that wait for each other take minutes beside other workers of the tests.
    environ = {**kept, "XDG_DATA_HOME": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [installed, *arguments], cwd=here, env=environ, capture_output=True, text=True, timeout=400
        )

    where = run("-c", "import gemmdb; print(gemmdb.__file__)").stdout
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    done = run("-m", "gemmdb", "demo", "--quick", "--wait", "0s")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((here / "gemmdb-demo" / "result.json").read_text())
    assert set(result["run_us"]) == {"int8-weight linear"}
    assert set(result["compile_s"]) == {"default", "max-autotune", "gemmdb"}
    assert (result["stats"]["benchmarked"], result["stats"]["misses"]) == (0, 0)
    assert result["max_error"]["int8-weight linear"] < 0.02
    assert "largest error against eager float64" in done.stdout
    assert [path.name for path in here.iterdir()] == ["gemmdb-demo"]
