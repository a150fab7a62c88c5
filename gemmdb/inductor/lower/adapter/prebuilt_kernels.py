"""Prebuilt CUTLASS kernels: which ones this process can load, and how Inductor finds them.

Inductor caches compiled code by a digest of the source. An archive kernel is copied there before Inductor looks, also
for a graph from the FX graph cache. The output code stays complete: it contains the source.

Importing this module does not import torch: the command line checks legality without it.
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
    """Whether this process can load the kernel of that name: the shipped archive has an intact copy, built for torch's
    CUDA runtime."""
    archive = prebuilt.archive()
    if archive is None or name not in archive.kernels or not archive.runs_with(running()):
        return False
    return _loads(archive) and _whole(archive, name)


@functools.cache
def _whole(archive: Archive, name: str) -> bool:
    try:
        return all(archive.read(name).values())
    except TableError as error:
        _log.warning("skipping a prebuilt kernel: %s", error)
        return False


@functools.cache
def _loads(archive: Archive) -> bool:
    """Whether a library of the archive can be loaded. Tries one of them, once per process."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmdb-kernel-") as folder:
            path = Path(folder, "kernel.so")
            path.write_bytes(archive.read(next(iter(archive.kernels)))["so"])
            ctypes.CDLL(str(path))
    except (OSError, StopIteration, TableError) as error:
        _log.warning("skipping a prebuilt kernel: %s", error)
        return False
    return True


def running() -> Toolchain:
    """Return the versions that decide which archive this process can load."""
    import torch  # Not all callers that check legality have it.

    return Toolchain(torch=torch.__version__, cuda=torch.version.cuda or "")


def with_prebuilt(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that compiles a graph's CUDA source into an object or a library."""
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
        # An earlier nvcc error for the same source, which Inductor would raise again.
        Path(binary_error_path(str(path))).unlink(missing_ok=True)
    except (OSError, TableError) as error:  # nvcc compiles it then.
        _log.warning("skipping a prebuilt kernel: %s", error)


def _written(cls: Any, source: str, kind: str) -> Path:
    """Return the path where Inductor wrote a source. torch 2.11 remembers it even after its folder is removed."""
    path = Path(cls.write(source, kind)[1])
    if not path.exists():
        cls.write.cache_clear()
        path = Path(cls.write(source, kind)[1])
    return path
