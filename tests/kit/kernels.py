"""Archives of kernels for tests: their kernels are any bytes, or what g++ makes of a function in C."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from gemmdb.generators.cutlass_archive import Tools, write
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import KINDS

TOOLS = Tools("nvcc", "13.0.88", Path("include"), "4.2.0")
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; fi
echo "$@" >> {calls}
while [ $# -gt 0 ]; do case $1 in -o) out=$2;; -c) source=$2;; esac; shift; done
grep -q "cannot be" "$source" 2> /dev/null && echo "kernel.cu(3): error: it cannot be" >&2 && exit 2
case "$out" in *.o) echo '__asm(".globl _ZSt21ios_base_library_initv");' | g++ -x c++ -c - -o "$out"; exit;; esac
echo compiled > "$out"
"""
"""Stands for nvcc where only what happens around it is tested; a kernel takes the real one a minute. Its object names a
symbol as one of a host compiler of GCC 13 does."""
NAME = f"gemmdb_cutlass_{'ab' * 12}"
SOURCE = f'extern "C" int {NAME}(int number) {{ return number + 1; }}\n'


def archived(folder: Path, names: Iterable[str] = (NAME,), tools: Tools = TOOLS) -> Path:
    """An archive in `folder` with kernels of these names, which no processor runs."""
    files: dict[str, Mapping[str, Path]] = {}
    for name in names:
        files[name] = {kind: folder / f"{name}.{kind}" for kind in KINDS}
        for kind, path in files[name].items():
            path.write_bytes(f"{kind} of {name}".encode())
    return written(files, folder, tools)


def compiled(folder: Path) -> Path:
    """An archive with the function of SOURCE, compiled by g++."""
    paths = {kind: folder / f"{NAME}.{kind}" for kind in KINDS}
    source = folder / "source.cpp"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-fPIC", "-c", str(source), "-o", str(paths["o"])], check=True)
    subprocess.run(["g++", "-shared", str(paths["o"]), "-o", str(paths["so"])], check=True)
    return written({NAME: paths}, folder, TOOLS)


def written(files: Mapping[str, Mapping[str, Path]], folder: Path, tools: Tools) -> Path:
    """The archive of these files."""
    path = folder / "kernels-sm90.zip"
    write(files, tools, path)
    return path


def instead_of_nvcc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let COMPILER be the nvcc of this process, with headers and an empty cache, until the test ends. Returns the file
    with a line per call of it."""
    path, compiler = folder / "calls", folder / "nvcc"
    path.touch()
    compiler.write_text(COMPILER.format(calls=path))
    compiler.chmod(0o755)
    headers = folder / "include"
    (headers / "cutlass").mkdir(parents=True)
    numbers = zip(("MAJOR", "MINOR", "PATCH"), (4, 2, 0), strict=True)
    (headers / "cutlass" / "version.h").write_text("".join(f"#define CUTLASS_{name} {n}\n" for name, n in numbers))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("CUDACXX", str(compiler))
    monkeypatch.setattr(cutlass, "headers", lambda: headers)
    return path


def ship(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let this archive be the shipped one, until the test ends."""
    monkeypatch.setattr(prebuilt, "shipped", lambda arch=prebuilt.ARCH: path)
    prebuilt.archive.cache_clear()
