"""Delivery of compiled artifacts from the node that compiled them to the nodes that measure: as files of the on-disk
caches, with the paths inside them rewritten."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.cpu.compiled import inductor_cache
from gemmdb.generators.measure.cuda import compilers
from gemmdb.generators.measure.cuda.artifacts import Artifact, Built

Files = Mapping[str, bytes]
"""Compressed contents by path, which starts with the name of a cache."""

_placed: set[str] = set()
_TEXTS = (".json", ".py")
"""Files in which Triton, Inductor and gemmdb write paths."""


def caches() -> dict[str, Path]:
    """Return this process's on-disk cache folders, by the environment variable that sets each."""
    home = Path.home()
    defaults = {
        "TRITON_CACHE_DIR": home / ".triton" / "cache",
        "TORCHINDUCTOR_CACHE_DIR": inductor_cache(),
        "XDG_CACHE_HOME": home / ".cache",
    }
    return {name: Path(os.environ.get(name) or default).absolute() for name, default in defaults.items()}


def built(artifact: Artifact, capability: int, elsewhere: bool) -> tuple[Built, Files]:
    """Build an artifact in this process. `elsewhere`: it will be measured on another node, so it is built in this
    process's private caches, and the new files are returned."""
    _settle()
    if not elsewhere:
        return artifact.build(capability), {}
    _move_caches()
    before = _listing()
    done = artifact.build(capability)
    if done.failure:
        return done, {}
    # An existing file may have been rewritten, so compare modification times, too.
    new = {name: path for name, (path, at) in _listing().items() if before.get(name) != (path, at)}
    roots = "\n".join(f"{name}={path}" for name, path in caches().items())
    return done, {name: zlib.compress(path.read_bytes(), 1) for name, path in new.items()} | {"": roots.encode()}


def place(files: Mapping[str, Any]) -> None:
    """Fetch artifacts by reference and write their files into the caches of this host, each once."""
    wanted = {key: reference for key, reference in files.items() if key not in _placed}
    if not wanted:
        return
    import ray

    for key, packed in zip(wanted, ray.get(list(wanted.values())), strict=True):
        _write(packed)
        _placed.add(key)


def _write(packed: Files) -> None:
    targets = caches()
    old = dict(line.split("=", 1) for line in packed.get("", b"").decode().splitlines())
    for name, content in packed.items():
        if not name:
            continue
        cache, _, inner = name.partition("/")
        path, text = targets[cache] / inner, zlib.decompress(content)
        if path.exists():
            continue
        if path.suffix in _TEXTS:
            for root, was in old.items():
                text = text.replace(was.encode(), str(targets[root]).encode())
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o755 if path.suffix == ".so" else 0o644)
        Path(file.name).replace(path)  # Atomic: other processes may be looking for it.


@functools.cache
def _settle() -> None:
    """Set up a compile process, once: with a lower priority than timing processes, and with the timing processes'
    ptxas."""
    os.nice(10)
    compilers.choose_ptxas()
    show_gpus()


def show_gpus() -> None:
    """Undo the hiding of GPUs by some Ray versions in tasks that use none: such a task may query device properties."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]


def _move_caches() -> None:
    """Give this process private caches, once, so that an artifact's new files can be identified."""
    root = _folder() / str(os.getpid())
    if Path(os.environ.get("TRITON_CACHE_DIR", "/")).parent == root:
        return
    for name in caches():
        os.environ[name] = str(root / name)
        (root / name).mkdir(parents=True, exist_ok=True)


def _folder() -> Path:
    """Return the folder for the caches of compile processes. Caches of exited processes are removed."""
    folder = Path(tempfile.gettempdir(), f"gemmdb-compile-{os.getuid()}")
    folder.mkdir(exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GemmdbError(f"{folder} is not this user's own; remove it, or set TMPDIR")  # We load libraries from it.
    for one in folder.iterdir():
        if one.name.isdecimal() and not Path("/proc", one.name).exists():
            shutil.rmtree(one, ignore_errors=True)
    return folder


def _listing() -> dict[str, tuple[Path, int]]:
    found = {}
    for name, root in caches().items():
        for folder, _, files in os.walk(root):
            for file in files:
                path = Path(folder, file)
                with contextlib.suppress(OSError):
                    found[f"{name}/{path.relative_to(root)}"] = path, path.stat().st_mtime_ns
    return found
