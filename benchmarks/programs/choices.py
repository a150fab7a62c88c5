"""What Inductor itself chose by timing as it compiled a program: block sizes, and which GEMMs to pad.

It times a few block sizes at the first run of an elementwise kernel or a reduction, and keeps the choice beside the
source. The six softmaxes of a BERT took 24 us with one cache and 55 us with another, since other work disturbed these
timings. It also times GEMMs whose rows do not start at multiples of 16 bytes with and without padding. So ways that
have the same kernel or the same GEMM are compared with the same choice.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

SUFFIX = ".best_config"
"""What Inductor calls the file of a choice."""
_NAME = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)

TIMED, COMPILED = "cache", ("fxgraph", "aotautograd")
"""The folders of a cache of Inductor with what it timed before it generated code, and with compiled graphs."""


def forget(cache: Path) -> None:
    """Remove the choices of a cache of Inductor."""
    for choice in _choices(cache):
        choice.unlink()


def share(cache: Path, others: Sequence[Path]) -> None:
    """Give the kernels in the `others` the choices that `cache` has for the same kernels."""
    chosen = known(cache)
    for other in others:
        give(chosen, other)


def known(cache: Path) -> dict[str, str]:
    """The choices of a cache, by the sources of the kernels."""
    return {_same(one): choice.read_text() for one in _kernels(cache) if (choice := _choice_of(one)).exists()}


def give(chosen: Mapping[str, str], cache: Path) -> None:
    """Give the kernels in a cache the choices that are `known` for the same sources."""
    for kernel in _kernels(cache):
        if choice := chosen.get(_same(kernel)):
            _choice_of(kernel).write_text(choice)


def share_paddings(cache: Path, others: Sequence[Path]) -> list[Path]:
    """Let the `others` pad the GEMMs that `cache` pads, if they asked about the same GEMMs. Returns those that
    had chosen otherwise; their compiled graphs are removed."""
    chosen = _paddings(cache)
    return [other for other in others if _padded_alike(other, chosen)]


def _padded_alike(other: Path, chosen: dict[str, bool]) -> bool:
    own = _paddings(other)
    changed = {key: value for key, value in chosen.items() if own.get(key, value) != value}
    if not changed:
        return False
    for file in _timed(other):
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "cache": {**found["cache"], **changed}}))
    for folder in COMPILED:
        shutil.rmtree(other / folder, ignore_errors=True)
    return True


def _paddings(cache: Path) -> dict[str, bool]:
    """Whether each GEMM is padded, by Inductor's own key. Its file, `{"system": ..., "cache": {KEY: VALUE}}`, holds
    times of GEMMs too."""
    found = (json.loads(file.read_text())["cache"] for file in _timed(cache))
    return {key: value for entries in found for key, value in entries.items() if isinstance(value, bool)}


def _timed(cache: Path) -> list[Path]:
    return [file for file in (cache / TIMED).glob("*") if file.is_file()]


def _kernels(cache: Path) -> list[Path]:
    """The files with the source of a kernel each."""
    return [path for path in cache.glob("*/*.py") if _NAME.search(path.read_text())]


def _same(kernel: Path) -> str:
    """The source of a kernel without its name: Inductor numbers the kernels of a graph, so one that is fused away
    renames all that follow."""
    source = kernel.read_text()
    found = _NAME.search(source)
    return source.replace(found[1], "kernel") if found else source


def _choice_of(kernel: Path) -> Path:
    """Where Inductor keeps the choice for a kernel. The name is a digest of the file's name and of torch's sources."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    cache = AutotuneCache.create({"autotune_local_cache": True, "autotune_remote_cache": False}, str(kernel), "")
    assert cache is not None
    assert cache.local_cache is not None
    return Path(cache.local_cache[1])


def _choices(cache: Path) -> list[Path]:
    return sorted(cache.rglob(f"*{SUFFIX}"))
