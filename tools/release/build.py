"""Build the source distribution and the wheel of a commit, which are the same bytes each time.

    python -m tools.release build [COMMIT] [--repository URL] [--out dist] [--check]

COMMIT is anything that git knows, by default HEAD; a tag `v1.2.3` must name the version in pyproject.toml. Both are
built from an export of the commit, so nothing else of this folder gets into them, and the wheel from the source
distribution, which is therefore complete. URL is where the repository is on the web: the metadata links to it. The
bytes also depend on the time of the commit, on setuptools, whose version constraints.txt has, and on Python's zlib.
`--check` builds twice, in another folder, time zone and locale, and fails if the bytes differ. Prints the SHA-256 of
each file, as `sha256sum` does.
"""

from __future__ import annotations

import argparse
import gzip
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
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT
from gemmdb.errors import InputError
from gemmdb.trust import sha256_of
from tools.release import description

UMASK = 0o022
"""Mode bits of new files get into a wheel, so builds do not take them from who builds."""
ELSEWHERE = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": "/nonexistent"}
"""The environment of the second build: what differs between two machines and must not matter."""


@dataclass(frozen=True)
class Distributions:
    """What is uploaded."""

    source: Path
    wheel: Path

    @property
    def paths(self) -> tuple[Path, Path]:
        """Both files."""
        return self.source, self.wheel

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of both files, in the same order."""
        return tuple(map(sha256_of, self.paths))


def build(commit: str, out: Path, repository: str = "", environment: Mapping[str, str] | None = None) -> Distributions:
    """Build both distributions of `commit` in the folder `out`. `repository`: its address on the web, or empty.
    `environment` is added to that of this process. Raises InputError for a commit that git does not know, or a tag of
    another version."""
    seconds = int(_git("log", "-1", "--format=%ct", commit, "--").decode())
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "gemmdb", Path(folder) / "made"
        export(commit, source)
        _check_tag(commit, source)
        description.prepare(source, repository)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)],
            env={**os.environ, **(environment or {}), "SOURCE_DATE_EPOCH": str(seconds)},
            umask=UMASK, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (archive,) = made.glob("*.tar.gz")
        (wheel,) = made.glob("*.whl")
        normalize(archive, seconds)
        out.mkdir(parents=True, exist_ok=True)
        return Distributions(*(Path(shutil.move(path, out / path.name)) for path in (archive, wheel)))


def export(commit: str, folder: Path) -> None:
    """Write the files of a commit to a new folder. Their modes do not depend on the umask."""
    archive = _git("-c", "tar.umask=0022", "archive", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="fully_trusted")


def normalize(archive: Path, seconds: int) -> None:
    """Rewrite a .tar.gz so that it depends on its files alone: setuptools keeps their times and owners, and the order
    of the file system. `seconds`: the time of every file, since 1970."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mode, plain.type, plain.mtime = member.size, member.mode, member.type, seconds
            new.addfile(plain, old.extractfile(member))
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as target:
        target.write(packed.getvalue())


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
    parser.add_argument("--repository", default="", metavar="URL", help="where the repository is on the web")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for both files")
    parser.add_argument("--check", action="store_true", help="build twice and compare")


def main(options: argparse.Namespace) -> None:
    """Build, compare and print."""
    made = build(options.commit, options.out, options.repository)
    if options.check:
        with tempfile.TemporaryDirectory() as folder:
            again = build(options.commit, Path(folder), options.repository, ELSEWHERE)
            if again.digests != made.digests:
                raise SystemExit(f"a second build has other bytes: {made.digests}, {again.digests}")
    for digest, path in zip(made.digests, made.paths, strict=True):
        print(f"{digest}  {path}")
