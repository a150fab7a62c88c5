"""CUTLASS kernels that are compiled in advance: which of them this process can load, and how Inductor gets them.

Inductor keeps what it compiles in its cache, by a digest of the source. A kernel of the archive is put there before
Inductor looks, also for a graph that comes from the FX graph cache. The output code stays complete: it has the source.

Importing this imports no torch: the command line asks for legality without it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmdb.errors import TableError
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import Archive
from gemmdb.key.toolchain import Toolchain

_log = logging.getLogger("gemmdb")


def usable(name: str) -> bool:
    """Whether this process can load the kernel of that name: the shipped archive has it, whole, and its CUDA runtime is
    torch's."""
    archive = prebuilt.archive()
    if archive is None or name not in archive.kernels or not archive.runs_with(running()):
        return False
    return _loads(archive) and _whole(archive, name)


@functools.cache
def _whole(archive: Archive, name: str) -> bool:
    try:
        return all(archive.read(name).values())
    except TableError as error:
        _log.warning("a kernel that is compiled in advance is left out: %s", error)
        return False


@functools.cache
def _loads(archive: Archive) -> bool:
    """Whether a library of the archive can be loaded, tried with one of them, once per process."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmdb-kernel-") as folder:
            path = Path(folder, "kernel.so")
            path.write_bytes(archive.read(next(iter(archive.kernels)))["so"])
            ctypes.CDLL(str(path))
    except (OSError, StopIteration, TableError) as error:
        _log.warning("a kernel that is compiled in advance is left out: %s", error)
        return False
    return True


def running() -> Toolchain:
    """The versions that decide which archive this process can load."""
    import torch  # Not all that ask what is legal have it.

    return Toolchain(torch=torch.__version__, cuda=torch.version.cuda or "")


def with_prebuilt(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that compiles the CUDA source of a graph into an object or a library."""
    from torch._inductor.codecache import CUDACodeCache

    @functools.wraps(original)
    def compile(cls: Any, source_code: str, dst_file_ext: str, *args: Any, **options: Any) -> Any:
        if issubclass(cls, CUDACodeCache):
            _place(cls, source_code, dst_file_ext)
        return original(cls, source_code, dst_file_ext, *args, **options)

    return compile


def _place(cls: Any, source: str, kind: str) -> None:
    from torch._inductor.codecache import binary_error_path, write_atomic

    name, archive = prebuilt.find(source), prebuilt.archive()
    if not name or archive is None or not archive.runs_with(running()):
        return
    try:
        path = _written(cls, source, kind).with_suffix(f".{kind}")
        if not path.exists():
            write_atomic(str(path), archive.read(name)[kind])
        # What nvcc said of the same source before, which Inductor would raise again.
        Path(binary_error_path(str(path))).unlink(missing_ok=True)
    except (OSError, TableError) as error:  # nvcc compiles it then.
        _log.warning("a kernel that is compiled in advance is left out: %s", error)


def _written(cls: Any, source: str, kind: str) -> Path:
    """Where Inductor wrote a source. torch 2.11 remembers that, also when its folder has been removed."""
    path = Path(cls.write(source, kind)[1])
    if not path.exists():
        cls.write.cache_clear()
        path = Path(cls.write(source, kind)[1])
    return path
