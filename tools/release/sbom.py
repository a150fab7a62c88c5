"""Write the bill of materials (SBOM) of a wheel: a CycloneDX document of what an installation of it brings.

    python -m tools.release sbom WHEEL [--out sbom]

The wheel is installed into a new environment with the versions of constraints.txt. cyclonedx-py reads that environment,
validates the document against CycloneDX's schema, and writes no time but that of SOURCE_DATE_EPOCH, if it is set. The
same wheel gives the same bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT
from gemmdb.errors import InputError
from tools.release.rehearse import environment


def write(wheel: Path, out: Path) -> Path:
    """The document of `wheel` in the folder `out`; returns its path. Raises InputError for a file that is no wheel,
    CalledProcessError for an installation that fails."""
    if wheel.suffix != ".whl" or not wheel.is_file():
        raise InputError(f"{wheel} is not a wheel; make one with `python -m tools.release build`")
    out.mkdir(parents=True, exist_ok=True)
    target = out / "gemmdb.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), wheel)
        subprocess.run(
            [sys.executable, "-m", "cyclonedx_py", "environment", str(python), "--pyproject", "pyproject.toml",
             "--mc-type", "library", "--output-reproducible", "--short-PURLs", "--output-file", str(target.absolute())],
            cwd=ROOT, check=True,
        )  # fmt: skip
    return target


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("--out", type=Path, default=ROOT / "sbom", help="the folder for the document")


def main(options: argparse.Namespace) -> None:
    """Write it."""
    print(write(options.wheel, options.out))
