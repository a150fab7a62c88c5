"""What Inductor itself chose by timing as it compiled a program: block sizes, and which products to pad.

It times a few block sizes at the first run of an elementwise kernel or a reduction, and keeps the choice beside the
source. The six softmaxes of a BERT took 24 us with one cache and 55 us with another, since other work disturbed these
timings. It also times products whose rows do not start at multiples of 16 bytes with and without padding. So ways that
have the same kernel or the same product are compared with the same choice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

SUFFIX = ".best_config"
"""What Inductor calls the file of a choice; its name comes from the kernel's source and the version of torch."""

TIMED, COMPILED = "cache", ("fxgraph", "aotautograd")
"""The folders of a cache of Inductor with what it timed before it generated code, and with compiled graphs."""


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


def share_paddings(cache: Path, others: Sequence[Path]) -> list[Path]:
    """Let the `others` pad the products that `cache` pads, if they asked about the same products. Returns those that
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
    """Whether each product is padded, by Inductor's own key. Its file, `{"system": ..., "cache": {KEY: VALUE}}`, holds
    times of products too."""
    found = (json.loads(file.read_text())["cache"] for file in _timed(cache))
    return {key: value for entries in found for key, value in entries.items() if isinstance(value, bool)}


def _timed(cache: Path) -> list[Path]:
    return [file for file in (cache / TIMED).glob("*") if file.is_file()]


def _choices(cache: Path) -> list[Path]:
    return sorted(cache.rglob(f"*{SUFFIX}"))
