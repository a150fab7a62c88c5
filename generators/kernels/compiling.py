"""Compiles one CUTLASS kernel in advance: an object for AOTInductor to link, and a shared library to load."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry
from gemmdb.kernels.cutlass.archive import KINDS

FLAGS = (*cutlass.FLAGS, "-Xcompiler=-fPIC,-fvisibility=hidden")
LINKED = ("-shared", "-cudart", "shared", "-Xlinker", "-s")
"""A library calls the CUDA runtime that torch has loaded, by its name with the major version."""
LIMIT_S = 1800
"""A kernel takes a minute, and several at once on few processors take longer."""


@dataclass(frozen=True)
class Tools:
    """What compiles: nvcc and its version, the headers of CUTLASS and theirs."""

    nvcc: str
    cuda: str
    headers: Path
    version: str

    @classmethod
    def find(cls) -> Tools:
        """The tools of this machine. Raises InputError if one is missing."""
        nvcc, headers = cutlass.compiler(), cutlass.headers()
        if nvcc is None:
            raise InputError("nvcc is not there: install the CUDA toolkit, or name it in CUDACXX")
        if headers is None:
            raise InputError("CUTLASS's headers are not there: pip install 'gemmdb[cutlass]'")
        told = _run([nvcc, "--version"])
        release = re.search(r"V(\d+\.\d+\.\d+)", told)
        numbers = [
            re.search(rf"#define CUTLASS_{part} (\d+)", _version(headers)) for part in ("MAJOR", "MINOR", "PATCH")
        ]
        if release is None or not all(numbers):
            raise InputError(f"the version of {nvcc} or of the headers in {headers} is unknown")
        return cls(nvcc, release[1], headers, ".".join(number[1] for number in numbers if number))

    @property
    def digest(self) -> str:
        """Changes with the versions and the flags."""
        text = "\n".join((self.cuda, self.version, *FLAGS, *LINKED))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def compiled(unit: entry.Unit, tools: Tools, folder: Path) -> dict[str, Path]:
    """The files of a unit by kind. What lies in `folder` already is not compiled again. Raises InputError with the
    first line of nvcc's if it fails."""
    paths = {kind: folder / f"{unit.name}.{kind}" for kind in KINDS}
    if all(path.exists() for path in paths.values()):
        return paths
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as place:
        source, made, library = Path(place, "kernel.cu"), Path(place, "kernel.o"), Path(place, "kernel.so")
        source.write_text(unit.source)
        _run([tools.nvcc, *FLAGS, f"-I{tools.headers}", "-c", str(source), "-o", str(made)])
        _run([tools.nvcc, *LINKED, str(made), "-o", str(library)])
        made.replace(paths["o"])
        library.replace(paths["so"])
    return paths


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise InputError(f"{command[0]} ended with {done.returncode}: {lines[0][:300]}")
    return done.stdout


@functools.cache
def _version(headers: Path) -> str:
    return (headers / "cutlass" / "version.h").read_text()
