"""The distribution: what the wheel holds, what site-packages gains, what a light install needs."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    # Setuptools builds in the source tree; processes that share these tests out take turns.
    with (ROOT / "pyproject.toml").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        subprocess.run(command, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        return wheel.namelist()


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


def test_the_licence_is_in_the_wheel(wheel_names: list[str]) -> None:
    assert any(name.endswith("/LICENSE") for name in wheel_names)


def test_a_light_install_brings_typer_and_sqlite_utils_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"typer", "sqlite-utils"}


def test_the_dynamo_backend_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"gemmdb": "gemmdb.inductor.backend:gemmdb"}
