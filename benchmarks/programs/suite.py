"""All programs. Imports neither torch nor the packages of the models."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.programs.program import Program
from gemmdb.errors import InputError

COLLECTIONS = (
    "fast", "quantized", "decoders", "generating", "experts", "expert_layers", "encoders", "vision", "images",
    "diffusion", "training", "engine",
)  # fmt: skip
"""The modules that have programs, in the order in which a suite runs."""


def suite(source: str = "") -> dict[str, Program]:
    """All programs by name. `source`: a Python file whose `programs()` takes the place of the suite's. Raises
    InputError if it has none, or if two have the same name."""
    found: dict[str, Program] = {}
    for collection, programs in [_of_file(Path(source))] if source else _collections():
        for program in programs:
            if program.name in found:
                raise InputError(f"two programs are named {program.name}")
            found[program.name] = dataclasses.replace(program, collection=collection)
    return found


def _collections() -> Iterator[tuple[str, Iterable[Program]]]:
    for collection in COLLECTIONS:
        yield collection, importlib.import_module(f"benchmarks.programs.{collection}").programs()


def _of_file(path: Path) -> tuple[str, Iterable[Program]]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # A dataclass looks for its module there.
    spec.loader.exec_module(module)
    if not callable(programs := getattr(module, "programs", None)):
        raise InputError(f"{path}: it has no function `programs`, which yields records of benchmarks.programs.program")
    return path.stem, programs()


def chosen(patterns: str, source: str = "") -> list[Program]:
    """The programs whose names match one of the patterns, which commas separate, in the order of the patterns. Raises
    InputError if none does. `source`: as for `suite`."""
    known = suite(source)
    wanted = (pattern for pattern in patterns.split(",") if pattern)
    found = {name: known[name] for pattern in wanted for name in fnmatch.filter(known, pattern)}
    if not found:
        raise InputError(f"no program is named {patterns}")
    return list(found.values())
