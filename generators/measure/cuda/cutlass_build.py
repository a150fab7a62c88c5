"""Compiles our CUTLASS kernel into shared libraries, with nvcc, in an on-disk cache that needs no GPU."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.generators.measure.cuda.artifact import Built
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.hardware import HOPPER
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem

LIMIT_S = 600
"""A compiler that takes longer is stuck: a kernel takes 15 to 60 seconds."""
_OPTIONS = ("-shared", "-Xcompiler=-fPIC", "-Xptxas=-v")
ENTRY = """
extern "C" int gemmdb_gemm(
    void const* a, void const* b, void const* scale, void const* bias, void* out, int m, int n, int k, long lda,
    long ldb, int split, int swizzle, int raster, void* workspace, size_t bytes, void* stream) {
  return run({a, b, scale, bias, out, m, n, k, lda, ldb}, {split, swizzle, raster}, {workspace, bytes},
             static_cast<cudaStream_t>(stream));
}
extern "C" size_t gemmdb_workspace(int m, int n, int k, long lda, long ldb, int split, int swizzle, int raster) {
  return workspace_bytes({nullptr, nullptr, nullptr, nullptr, nullptr, m, n, k, lda, ldb}, {split, swizzle, raster});
}
"""
"""The functions of a library; a problem's sizes are arguments of both."""


@dataclass(frozen=True)
class Library:
    """One compiled kernel as an Artifact. `source`: the whole of its CUDA source."""

    source: str

    @lazy
    def key(self) -> str:
        """Changes with the source and the flags."""
        text = "\n".join((self.source, *cutlass.FLAGS, *_OPTIONS))
        return f"cutlass-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def path(self) -> Path:
        """Where the library is once it is built with the present compiler and headers."""
        return _folder() / f"{self.key}-{tools()}.so"

    @property
    def work(self) -> str:
        """See `Artifact.work`."""
        return ""

    def build(self, capability: int) -> Built:
        """Run nvcc unless the library is there. The messages of the assembler, with registers and spills, are kept
        beside it."""
        start = time.perf_counter()
        compiler, headers = cutlass.compiler(), cutlass.headers()
        if compiler is None or headers is None:
            return Built("nvcc is not there" if compiler is None else "the nvidia-cutlass package is not there", 0.0)
        if capability != HOPPER:
            return Built(f"sm{capability} does not run Hopper's instructions", 0.0)
        failure = "" if self.path.exists() else self._compile(compiler, headers)
        return Built(failure, time.perf_counter() - start)

    def _compile(self, compiler: str, headers: Path) -> str:
        with tempfile.TemporaryDirectory(dir=_folder()) as folder:
            source, library = Path(folder, "gemm.cu"), Path(folder, "gemm.so")
            source.write_text(self.source)
            command = [compiler, *cutlass.FLAGS, *_OPTIONS, f"-I{headers}", str(source), "-o", str(library)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{type(error).__name__}: {error}"
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line]
                return lines[0] if lines else f"nvcc ended with {done.returncode}"
            self.path.with_suffix(".log").write_text(done.stderr)
            library.replace(self.path)
        return ""


def library(problem: Problem, config: Config) -> Library:
    """The library of a legal cutlass config on a problem."""
    return Library(cutlass.render(config, problem) + ENTRY)


@functools.cache
def loaded(path: Path) -> Any:
    """The library at `path`, its functions with their signatures. Raises OSError when it cannot be loaded."""
    found = ctypes.CDLL(str(path))
    pointer, size, integer, long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    sizes, order = (integer, integer, integer, long, long), (integer, integer, integer)
    found.gemmdb_gemm.argtypes = (*(pointer,) * 5, *sizes, *order, pointer, size, pointer)
    found.gemmdb_gemm.restype = integer
    found.gemmdb_workspace.argtypes = (*sizes, *order)
    found.gemmdb_workspace.restype = size
    return found


@functools.cache
def tools() -> str:
    """8 hexadecimal digits that change with the compiler and the headers."""
    compiler, headers = cutlass.compiler(), cutlass.headers()
    version = ""
    if compiler is not None:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60).stdout
    text = (headers / "cutlass" / "version.h").read_text() if headers is not None else ""
    return hashlib.sha256(f"{version}\n{text}".encode()).hexdigest()[:8]


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "gemmdb" / "cutlass"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
