"""Which kernels that are compiled in advance this process can load."""

from __future__ import annotations

import ctypes
import functools
import logging
import tempfile
from pathlib import Path

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
