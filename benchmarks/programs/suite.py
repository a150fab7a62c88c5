"""All programs. Imports neither torch nor the packages of the models."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib

from benchmarks.programs.program import Program
from gemmdb.errors import InputError

COLLECTIONS = (
    "fast", "quantized", "decoders", "generating", "experts", "encoders", "vision", "images", "diffusion", "training",
)  # fmt: skip
"""The modules that have programs, in the order in which a suite runs."""


def suite() -> dict[str, Program]:
    """All programs by name."""
    found: dict[str, Program] = {}
    for collection in COLLECTIONS:
        for program in importlib.import_module(f"benchmarks.programs.{collection}").programs():
            if program.name in found:
                raise InputError(f"two programs are named {program.name}")
            found[program.name] = dataclasses.replace(program, collection=collection)
    return found


def chosen(patterns: str) -> list[Program]:
    """The programs whose names match one of the patterns, which commas separate, in the order of the patterns. Raises
    InputError if none does."""
    known = suite()
    wanted = (pattern for pattern in patterns.split(",") if pattern)
    found = {name: known[name] for pattern in wanted for name in fnmatch.filter(known, pattern)}
    if not found:
        raise InputError(f"no program is named {patterns}")
    return list(found.values())
