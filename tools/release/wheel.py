"""Build the wheel of a commit, which is the same bytes each time.

    python -m tools.release wheel [COMMIT] [--out dist] [--check]

COMMIT is anything that git knows, by default HEAD; a tag `v1.2.3` must name the version in pyproject.toml. The wheel is
built from an export of the commit, so nothing else of this folder gets into it. Its bytes also depend on the time of
the commit, on setuptools, whose version constraints.txt has, and on Python's zlib. `--check` builds it twice, in
another folder, time zone and locale, and fails if the bytes differ. Prints the SHA-256, as `sha256sum` does.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import ROOT
from gemmdb.errors import InputError
from gemmdb.trust import sha256_of

UMASK = 0o022
"""Mode bits of new files get into a wheel, so builds do not take them from who builds."""
ELSEWHERE = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": "/nonexistent"}
"""The environment of the second build: what differs between two machines and must not matter."""


def build(commit: str, out: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Build the wheel of `commit` in the folder `out`; returns its path. `environment` is added to that of this
    process. Raises InputError for a commit that git does not know, or a tag of another version."""
    seconds = _git("log", "-1", "--format=%ct", commit, "--").decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "gemmdb"
        export(commit, source)
        _check_tag(commit, source)
        made = Path(folder) / "wheel"
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(made), str(source)],
            env={**os.environ, **(environment or {}), "SOURCE_DATE_EPOCH": seconds},
            umask=UMASK, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        (wheel,) = made.glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def export(commit: str, folder: Path) -> None:
    """Write the files of a commit to a new folder. Their modes do not depend on the umask."""
    archive = _git("-c", "tar.umask=0022", "archive", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="fully_trusted")


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise InputError(f"git {' '.join(arguments)}: {done.stderr.decode().strip().splitlines()[0]}")
    return done.stdout


def _check_tag(commit: str, source: Path) -> None:
    tag = re.fullmatch(r"(?:refs/tags/)?v(\d.*)", commit)
    version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    if tag and tag[1] != version:
        raise InputError(f"{commit} has version {version} in pyproject.toml; move the tag, or change the version")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("commit", nargs="?", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for the wheel")
    parser.add_argument("--check", action="store_true", help="build it twice and compare")


def main(options: argparse.Namespace) -> None:
    """Build, compare and print."""
    wheel = build(options.commit, options.out)
    if options.check:
        with tempfile.TemporaryDirectory() as folder:
            again = build(options.commit, Path(folder), ELSEWHERE)
            if again.read_bytes() != wheel.read_bytes():
                raise SystemExit(f"{wheel}: a second build has other bytes: {sha256_of(wheel)}, {sha256_of(again)}")
    print(f"{sha256_of(wheel)}  {wheel}")
