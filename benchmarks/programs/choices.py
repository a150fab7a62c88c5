"""The block sizes that Inductor chose for the elementwise kernels and reductions of a program.

It times a few candidates at the first run of a kernel and keeps the choice beside the source. The six softmaxes of
a BERT took 24 us with one cache and 55 us with another, since other work disturbed these timings. So ways that have the
same kernel, which has the same name in all caches, are compared with the same choice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

SUFFIX = ".best_config"
"""What Inductor calls the file of a choice; its name comes from the kernel's source and the version of torch."""


def forget(cache: Path) -> None:
    """Remove the choices of a cache of Inductor."""
    for choice in _choices(cache):
        choice.unlink()


def share(cache: Path, others: Sequence[Path]) -> None:
    """Give the kernels in the `others` the choices that `cache` has for the same kernels."""
    for choice in _choices(cache):
        for other in others:
            same = other / choice.relative_to(cache)
            if same.exists():
                shutil.copyfile(choice, same)


def _choices(cache: Path) -> list[Path]:
    return sorted(cache.rglob(f"*{SUFFIX}"))
