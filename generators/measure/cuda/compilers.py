"""Compile our kernels into on-disk caches, which needs no GPU, and load them: Triton kernels, and CUTLASS kernels as
shared libraries. Imports no torch: a hundred compile processes would each spend seconds on it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.generators.measure.cuda.render import Unit
from gemmdb.kernels import cutlass


@dataclass(frozen=True)
class Compiled:
    """Result of compiling a unit: `kernel` (a triton CompiledKernel) or the reason it failed, and the seconds."""

    kernel: Any
    failure: str
    seconds: float


def compile_unit(unit: Unit, capability: int) -> Compiled:
    """Compile for compute capability `capability` (90 for sm90). Finished units come from Triton's on-disk cache."""
    start = time.perf_counter()
    known = _recall(unit, capability)
    if known is not None:
        return Compiled(known, "", time.perf_counter() - start)
    places = {name: place for place, (name, _) in enumerate(unit.args)}
    attributes = {(places[name],): [["tt.divisibility", divisor]] for name, divisor in unit.divisors}
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(fn=load(unit), signature=dict(unit.args), constexprs={}, attrs=attributes)
        options = {"num_warps": unit.warps, "num_stages": unit.stages}
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        return Compiled(None, f"{type(error).__name__}: {error}", time.perf_counter() - start)
    # Record where Triton keeps the kernel: parsing the source to find it takes ten times as long as loading.
    group = {name: str(path) for name, path in kernel.metadata_group.items() if name.endswith((".json", ".cubin"))}
    write(_record(unit, capability), json.dumps({"group": group, "hash": kernel.hash}))
    return Compiled(kernel, "", time.perf_counter() - start)


@dataclass(frozen=True)
class _Source:
    """Source object that a CompiledKernel queries at launch."""

    signature: dict[str, str]
    constants: dict[Any, Any]


def build_launcher(unit: Unit, kernel: Any) -> None:
    """Compile the C launcher of a kernel, and Triton's own C code, into the on-disk cache. Otherwise the timing process
    would wait a third of a second for gcc at the first launch of each signature. Some Triton versions have no such
    code."""
    with contextlib.suppress(Exception):  # The timing process reports it.
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        CudaUtils()
        CudaLauncher(_Source(dict(unit.args), {}), kernel.metadata)


def _recall(unit: Unit, capability: int) -> Any:
    """Return the kernel of a note, or None if there is none or Triton's cache has lost the files."""
    try:
        from triton.compiler import CompiledKernel

        note = json.loads(_record(unit, capability).read_text())
        return CompiledKernel(_Source(dict(unit.args), {}), note["group"], note["hash"])
    except Exception:
        # If anything is wrong with a note, Triton can still compile the kernel.
        return None


def _record(unit: Unit, capability: int) -> Path:
    import triton

    return folder() / f"gemmdb_{unit.key}-{capability}-{triton.__version__}.json"


def load(unit: Unit) -> Any:
    """Return the jitted function of a unit. Triton reads sources from files, so the source is kept next to Triton's
    cache."""
    path = folder() / f"gemmdb_{unit.key}.py"
    if not path.exists():
        write(path, unit.source)
    spec = importlib.util.spec_from_file_location(f"gemmdb_{unit.key}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def write(path: Path, text: str) -> None:
    """Write a file atomically: other processes may be looking for it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)  # noqa: PTH105


def folder() -> Path:
    """Return the folder of sources and notes, next to Triton's cache."""
    found = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache") / "gemmdb"
    found.mkdir(parents=True, exist_ok=True)
    return found


PTXAS_VARIABLE = "TRITON_PTXAS_PATH"
"""Environment variable in which Triton looks for ptxas."""
PTXAS_SETTER = Path("_inductor", "runtime", "compile_tasks.py")
"""The file of torch that sets it before a kernel is compiled (`_set_triton_ptxas_path`), from a path relative to its
own: torch 2.11 has it in `torch/bin`, torch 2.13 in `torch/_inductor/bin`."""
_RELATIVE = re.compile(r"parents\[(\d)\] / \"bin\" / \"ptxas\"")


def choose_ptxas() -> None:
    """Make this process and its children use the ptxas that Inductor uses, if that is not Triton's own, unless the user
    has set another. Programs run Inductor's code, so everything measured must be assembled by the same ptxas, which is
    also part of Triton's cache key. Call it before Triton first looks for ptxas."""
    torch = importlib.util.find_spec("torch")
    if PTXAS_VARIABLE in os.environ or torch is None or not torch.origin:
        return
    setter = Path(torch.origin).parent / PTXAS_SETTER
    found = _RELATIVE.search(setter.read_text()) if setter.is_file() else None
    path = setter.parents[int(found[1])] / "bin" / "ptxas" if found else None
    if path is not None and path.is_file() and os.access(path, os.X_OK):
        os.environ[PTXAS_VARIABLE] = str(path)


LIBRARY_LIMIT_S = 600
"""Timeout after which a compiler counts as stuck: a kernel takes 15 to 60 seconds."""
LIBRARY_OPTIONS = ("-shared", "-Xcompiler=-fPIC", "-Xptxas=-v")
ENTRY = """
extern "C" int gemmdb_gemm(
    void const* a, void const* b, void const* scale, void const* bias, void const* row_scale, void* out, int m, int n,
    int k, long lda, long ldb, int split, int swizzle, int raster, void* workspace, size_t bytes, void* stream) {
  return run({a, b, scale, bias, out, m, n, k, lda, ldb, row_scale}, {split, swizzle, raster}, {workspace, bytes},
             static_cast<cudaStream_t>(stream));
}
extern "C" size_t gemmdb_workspace(int m, int n, int k, long lda, long ldb, int split, int swizzle, int raster) {
  return workspace_bytes({nullptr, nullptr, nullptr, nullptr, nullptr, m, n, k, lda, ldb}, {split, swizzle, raster});
}
"""
"""Exported functions of a library; both take the problem's sizes as arguments."""


def compile_library(source: str, path: Path) -> str:
    """Compile a kernel's CUDA source into a shared library at `path`, unless that exists. Returns why it failed, or "".
    The assembler's messages, with registers and spills, are kept next to it."""
    compiler, headers = cutlass.compiler(), cutlass.headers()
    if compiler is None or headers is None:
        return "nvcc is not there" if compiler is None else "the nvidia-cutlass package is not there"
    if path.exists():
        return ""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, library = Path(folder, "gemm.cu"), Path(folder, "gemm.so")
        code.write_text(source)
        command = [compiler, *cutlass.FLAGS, *LIBRARY_OPTIONS, f"-I{headers}", str(code), "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIBRARY_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {error}"
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            return lines[0] if lines else f"nvcc ended with {done.returncode}"
        path.with_suffix(".log").write_text(done.stderr)
        library.replace(path)
    return ""


@functools.cache
def load_library(path: Path) -> Any:
    """Load the library at `path` and set its functions' signatures. Raises OSError if it cannot be loaded."""
    found = ctypes.CDLL(str(path))
    pointer, size, integer, long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    sizes, order = (integer, integer, integer, long, long), (integer, integer, integer)
    found.gemmdb_gemm.argtypes = (*(pointer,) * 6, *sizes, *order, pointer, size, pointer)
    found.gemmdb_gemm.restype = integer
    found.gemmdb_workspace.argtypes = (*sizes, *order)
    found.gemmdb_workspace.restype = size
    return found


@functools.cache
def cutlass_tools() -> str:
    """Return 8 hexadecimal digits that change with the compiler and the headers."""
    compiler, headers = cutlass.compiler(), cutlass.headers()
    version = ""
    if compiler is not None:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60).stdout
    text = (headers / "cutlass" / "version.h").read_text() if headers is not None else ""
    return hashlib.sha256(f"{version}\n{text}".encode()).hexdigest()[:8]


def library_folder() -> Path:
    """Return the folder of CUTLASS libraries."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "gemmdb" / "cutlass"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
