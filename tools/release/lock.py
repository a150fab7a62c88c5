"""Resolve what CI installs, and write the versions to constraints.txt.

    python -m tools.release lock [--check]

pip resolves every extra of pyproject.toml together with the torch of the Makefile, and installs nothing. A version with
a label (`torch 2.13.0+cpu`) is written without it, since an index may have another build. `--check` writes nothing. It
compares the packages of this environment with the file, and fails for one that has another version.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from gemmdb.errors import InputError

CONSTRAINTS = ROOT / "constraints.txt"
HEAD = """\
# What CI installs. `make lock` writes this file; the Makefile gives it to pip unless TORCH names another torch.
"""


def locked() -> dict[str, str]:
    """The versions in constraints.txt, by normalized name. Raises FileNotFoundError."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def normalized(name: str) -> str:
    """The name of a distribution as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def torch() -> str:
    """The requirement of torch that the Makefile locks."""
    found = re.search(r"^LOCKED_TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def extras() -> list[str]:
    """The extras of pyproject.toml."""
    return sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def resolve() -> dict[str, str]:
    """The versions that pip chooses, by normalized name. Raises InputError with pip's reason if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = (
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
            "--report", str(report), torch(), f"{ROOT}[{','.join(extras())}]",
        )  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"pip resolves nothing: {done.stderr.strip().splitlines()[-1]}")
        return pins(json.loads(report.read_text()))


def pins(report: Mapping[str, Any]) -> dict[str, str]:
    """The versions in a report of pip, by normalized name, without gemmdb and without local labels."""
    found = (one["metadata"] for one in report["install"])
    versions = {normalized(one["name"]): str(one["version"]).partition("+")[0] for one in found}
    return {name: versions[name] for name in sorted(versions) if name != "gemmdb"}


def others() -> list[str]:
    """Packages of this environment that are not what constraints.txt says, one line each."""
    lines = []
    for name, wanted in locked().items():
        try:
            there = version(name)
        except PackageNotFoundError:
            continue
        if there.partition("+")[0] != wanted:
            lines.append(f"{name} {there} is installed, and constraints.txt has {wanted}")
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--check", action="store_true", help="compare this environment with the file")


def main(options: argparse.Namespace) -> None:
    """Write the file, or compare."""
    if options.check:
        if lines := others():
            raise SystemExit("\n".join((*lines, "make the environment again: `make clean test`")))
        print(f"what is installed has the versions of {CONSTRAINTS.name}")
        return
    found = resolve()
    CONSTRAINTS.write_text(HEAD + "".join(f"{name}=={one}\n" for name, one in found.items()))
    print(f"{CONSTRAINTS.name}: {len(found)} packages with {torch()}")
