"""CUTLASS kernels that are compiled in advance take the place of what Inductor's nvcc would make.

Inductor keeps what it compiles in its cache, by a digest of the source. A kernel of the archive is put there before
Inductor looks, also for a graph that comes from the FX graph cache. The output code stays complete: it has the source.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import CUDACodeCache, write_atomic

from gemmdb.errors import TableError
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.toolchain import Toolchain

_log = logging.getLogger("gemmdb")


def usable(name: str) -> bool:
    """Whether this process can load the kernel of that name: the shipped archive has it, whole, and its CUDA runtime is
    torch's."""
    archive = prebuilt.archive()
    if archive is None or name not in archive.digests or not archive.runs_with(_running()):
        return False
    return _loads(archive) and _whole(archive, name)


def with_prebuilt(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that compiles the CUDA source of a graph into an object or a library."""

    @functools.wraps(original)
    def compile(cls: Any, source_code: str, dst_file_ext: str, *args: Any, **options: Any) -> Any:
        if issubclass(cls, CUDACodeCache):
            _place(cls, source_code, dst_file_ext)
        return original(cls, source_code, dst_file_ext, *args, **options)

    return compile


def _place(cls: Any, source: str, kind: str) -> None:
    name, archive = prebuilt.find(source), prebuilt.archive()
    if not name or archive is None:
        return
    try:
        path = Path(cls.write(source, kind)[1]).with_suffix(f".{kind}")
        if not path.exists():
            write_atomic(str(path), archive.read(name, kind))
    except (OSError, TableError) as error:  # nvcc compiles it then.
        _log.warning("a kernel that is compiled in advance is left out: %s", error)


@functools.cache
def _whole(archive: prebuilt.Archive, name: str) -> bool:
    try:
        return all(archive.read(name, kind) for kind in prebuilt.KINDS)
    except TableError as error:
        _log.warning("a kernel that is compiled in advance is left out: %s", error)
        return False


@functools.cache
def _loads(archive: prebuilt.Archive) -> bool:
    """Whether a library of the archive can be loaded, tried with one of them, once per process."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmdb-kernel-") as folder:
            path = Path(folder, "kernel.so")
            path.write_bytes(archive.read(next(iter(archive.digests)), "so"))
            ctypes.CDLL(str(path))
    except (OSError, StopIteration, TableError) as error:
        _log.warning("a kernel that is compiled in advance is left out: %s", error)
        return False
    return True


def _running() -> Toolchain:
    return Toolchain(torch=torch.__version__, cuda=torch.version.cuda or "")
