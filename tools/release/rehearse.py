"""Check what would be uploaded, and install it as a user would: a dry run of the release.

    python -m tools.release rehearse [FOLDER] [--demo]

FOLDER holds one source distribution and one wheel (default: dist). The metadata must be valid, the classifiers known
to the index, and the description must render. Then pip installs each into a new environment, with the versions of
constraints.txt, and its command answers in an empty folder. `--demo` also lends the environment of the wheel the torch
of this one and runs `gemmdb demo --quick` there (a minute). Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import ROOT
from gemmdb.errors import InputError
from tools.release.lock import CONSTRAINTS

GEMM = ("lookup", "--op", "mm", "--m", "16", "--n", "4096", "--k", "4096", "--device", "NVIDIA H200")


def found(folder: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel of a folder. Raises InputError if there is not one of each."""
    sources, wheels = sorted(folder.glob("*.tar.gz")), sorted(folder.glob("*.whl"))
    if len(sources) != 1 or len(wheels) != 1:
        raise InputError(f"{folder} does not hold one source distribution and one wheel; run `make release`")
    return sources[0], wheels[0]


def metadata_of(path: Path) -> bytes:
    """The metadata that a distribution carries, in the format of the index."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return archive.read(name)
    with tarfile.open(path) as archive:
        member = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        return member.read()


def faults(metadata: bytes) -> Iterator[str]:
    """What the index would refuse or show badly, one line each."""
    from packaging.metadata import ExceptionGroup, Metadata
    from readme_renderer import markdown
    from trove_classifiers import classifiers

    try:
        parsed = Metadata.from_email(metadata)
    except ExceptionGroup as group:
        yield from (str(error) for error in group.exceptions)
        return
    yield from (f"unknown classifier: {one}" for one in parsed.classifiers or () if one not in classifiers)
    yield from (f"no {name}" for name in ("summary", "license_expression", "requires_python", "classifiers", "author")
                if not getattr(parsed, name))  # fmt: skip
    if parsed.description_content_type != "text/markdown":
        yield f"the description is {parsed.description_content_type}, not text/markdown"
    rendered = markdown.render(parsed.description or "")
    if not rendered:
        yield "the description does not render"
    elif "<table>" not in rendered:
        yield "the tables of the description do not render"


def environment(folder: Path, distribution: Path) -> Path:
    """The Python of a new environment with the distribution and what it requires. Raises CalledProcessError."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = ("install", "--quiet", "--constraint", str(CONSTRAINTS), str(distribution.absolute()))
    # This environment's pip installs, so that the new one holds nothing else.
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], env=_environ(), check=True)
    return python


def _environ() -> dict[str, str]:
    """This process's environment without gemmdb's settings and Python's, such as a PYTHONPATH to the checkout."""
    without = ("GEMMDB_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


def run(python: Path, here: Path, *command: str) -> str:
    """What `python` prints in the folder `here`, without this process's Python and gemmdb settings. Raises SystemExit
    with the command's messages."""
    environ = {**_environ(), "XDG_DATA_HOME": str(here / "data"), "XDG_CACHE_HOME": str(here / "cache")}
    done = subprocess.run([python, *command], cwd=here, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def answers(python: Path, here: Path) -> str:
    """What an installation says of a GEMM on an H200. Raises SystemExit if the package is not that of `python`."""
    where = run(python, here, "-c", "import gemmdb; print(gemmdb.__file__)").strip()
    if not Path(where).is_relative_to(python.parents[1]):
        raise SystemExit(f"gemmdb comes from {where}, not from the distribution")
    command = python.parent / "gemmdb"
    done = subprocess.run([command, "--version"], cwd=here, env=_environ(), capture_output=True, text=True, check=True)
    answer = json.loads(run(python, here, "-m", "gemmdb", *GEMM, "--json"))
    return f"{done.stdout.strip()}: {answer['backend']}:{answer['kernel']}"


def lend_torch(python: Path) -> None:
    """Let an environment import what this one has: torch and the packages that a build needs. Its own come first."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others))


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    parser.add_argument("--demo", action="store_true", help="run `gemmdb demo --quick` from the wheel, too")


def main(options: argparse.Namespace) -> None:
    """Check, install and run."""
    source, wheel = found(options.folder)
    for path in (source, wheel):
        if lines := list(faults(metadata_of(path))):
            raise SystemExit("\n".join(f"{path.name}: {line}" for line in lines))
        print(f"{path.name}: the metadata is valid and the description renders", flush=True)
        if b"Project-URL" not in metadata_of(path):
            print(f"{path.name}: no project URLs and no links; build it with --repository", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder) / "here"
            here.mkdir()
            python = environment(Path(folder) / "venv", path)
            print(f"{path.name}: {answers(python, here)}", flush=True)
            if options.demo and path is wheel:
                lend_torch(python)
                print(run(python, here, "-m", "gemmdb", "demo", "--quick", "--wait", "0s"), flush=True)
