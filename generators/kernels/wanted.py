"""Which CUTLASS kernels the answers of tables can name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import entry, prebuilt
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder import lookup
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

ALLOWED = Policy(compile_cost=10)
"""A policy that serves CUTLASS kernels."""
_SCALES = (("fp32", "fp32"), ("bf16", "bf16"), ("fp32", ""), ("bf16", ""))
"""The dtypes of the scales of columns and rows that quantised programs have, those of torchao first; none where there
is no such vector."""
_BIASES = ("", "bf16")


def wanted(catalog: Catalog) -> dict[str, entry.Unit]:
    """By name, the units to compile for the verdicts of all tables of a catalog. Those that were measured come first,
    the most frequent ones before others. Others follow, with scales and a bias that problems do not name."""
    picks = list(_picks(catalog))
    counts = Counter(tuple(cutlass.macros(config, problem).items()) for config, problem in picks)
    measured = sorted(counts, key=lambda one: (-counts[one], one))
    joined = (cutlass.macros(config, one, vectors) for config, problem in picks for one, vectors in _joined(problem))
    units = [prebuilt.unit(macros) for macros in (*map(dict, measured), *joined)]
    return {unit.name: unit for unit in units}


def _picks(catalog: Catalog) -> Iterator[tuple[Config, Problem]]:
    """Every problem whose verdict is a CUTLASS kernel, with its config."""
    for table in catalog.tables:
        for problem, device in table.decided():
            hit = lookup(Query(problem, device), catalog, ALLOWED, None)
            if hit is not None and hit.config.backend == "cutlass":
                yield hit.config, problem


def _joined(problem: Problem) -> Iterator[tuple[Problem, cutlass.Vectors]]:
    if problem.fusion != "scale":
        return
    if problem.spec.dequantises:
        yield problem, cutlass.Vectors("fp32")
        return
    for columns, rows in _SCALES:
        for out in (problem.out, "fp32"):  # A program may go on in fp32, with a SiLU for example.
            for bias in _BIASES:
                yield replace(problem, out=out), cutlass.Vectors(columns, rows, bias)
