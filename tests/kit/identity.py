"""Digests of what tables and caches depend on: canonical texts and keys, kernel sources and what is rendered of them,
legality, candidates and answers.

`PYTHONPATH=tests python -m kit.identity > tests/golden/identity.json` writes the golden file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import TypeVar

from gemmdb import Config, Problem
from gemmdb.devices import registry
from gemmdb.generators import effort, shapes
from gemmdb.generators.measure.cuda import render
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels import cutlass, triton
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Query
from gemmdb.lookup import answer
from gemmdb.settings import Policy, Settings, shipped_tables
from gemmdb.table import schema
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from kit.devices import known

OURS = ("tile", "gemv", "persistent", "narrow")
PRESETS = ("cpu-llm", "cpu-quick", "h200-scaled", "odd", "vision")
"""Presets that load in a second, with all ops among them."""
GROWN = {"h200-scaled": 115}
"""How many problems a preset began with that has grown since."""
Pair = tuple[Problem, Config]
T = TypeVar("T")


def digest(items: Iterable[object]) -> str:
    """A digest of the items' texts, one per line, and how many they are: "<32 hex digits> of <number>"."""
    found, count = hashlib.blake2b(digest_size=16), 0
    for item in items:
        found.update(str(item).encode() + b"\n")
        count += 1
    return f"{found.hexdigest()} of {count}"


def sample(items: list[T], most: int) -> list[T]:
    """At most `most` of the items, evenly spread."""
    return list(islice(items[:: -(-len(items) // most)], most))


@functools.cache
def measured() -> list[Pair]:
    """All pairs of problem and config in the measured table of the H200, in the order of their keys."""
    found: set[Pair] = set()
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        for problem, device in table.pairs():
            record = table.record(problem, device)
            assert record is not None
            found.update((problem, time.config) for group in record.groups for time in group.times)
            found.update((problem, config) for config, _ in record.failed)
    return sorted(found, key=lambda pair: (pair[0].key, pair[1].key))


def by_text() -> list[Problem]:
    """The problems of the measured table, in the order of their canonical texts."""
    return sorted({problem for problem, _ in measured()}, key=lambda problem: problem.text)


def tables() -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(shipped_tables().glob("*.db"))}


def kernels() -> str:
    return digest(
        (k.backend, k.name, k.ops, k.devices, k.cost, sorted((n, repr(v)) for n, v in k.params.items()), k.splits)
        for k in KERNELS.values()
    )


def sources() -> dict[str, str]:
    return {name: triton.digest(name) for name in OURS} | {"cutlass": cutlass.digest("gemm")}


def problems() -> str:
    loaded = [problem for preset in PRESETS for problem in shapes.load(preset, "cuda")[: GROWN.get(preset)]]
    return digest((problem.text, problem.key, problem.family_key) for problem in (*loaded, *by_text()))


def configs() -> str:
    return digest(sorted({(config.text, config.key) for _, config in measured()}))


def rendered_triton() -> str:
    def plans() -> Iterator[object]:
        ours = [pair for pair in measured() if pair[1].backend == "triton" and pair[1].kernel in OURS]
        for problem, config in sample(ours, 800):
            plan = render.plan(problem, config)
            launches = [(launch.unit.key, launch.grid, launch.resident) for launch in plan.launches]
            yield problem.text, config.text, launches, plan.partials, plan.counters, plan.tma

    return digest(plans())


def rendered_cutlass() -> str:
    pairs = [pair for pair in measured() if pair[1].backend == "cutlass"]
    return digest(
        (p.text, c.text, sorted(cutlass.macros(c, p).items()), cutlass.order(c), cutlass.workspace_bound(c, p))
        for p, c in sample(pairs, 200)
    )


def legality() -> str:
    return digest(
        (p.text, c.text, name, bool(c.rejection(p.resized(p.m + shift, p.n + shift, p.k), known(name))))
        for p, c in sample(measured(), 400)
        for name in ("NVIDIA H200", "sm80", "sm89")
        for shift in (0, 1, 8)
    )


def candidates() -> str:
    def texts(problem: Problem, name: str, size: str) -> list[str]:
        found = CudaSpace().candidates(problem, known(name), effort.named(size, "cuda"))
        return [one.config.text for one in found]

    asked = product(sample(by_text(), 30), ("NVIDIA H200", "NVIDIA L4"), ("quick", "standard"))
    return digest((problem.text, name, size, texts(problem, name, size)) for problem, name, size in asked)


def lookups() -> str:
    """What the shipped tables alone answer, whatever torch is installed: for sizes in them and for others. Times are
    compared to nine digits: another order of the same sums changes the last of sixteen."""

    def answers(catalog: Catalog) -> Iterator[object]:
        for problem in sample(by_text(), 16):
            m, n, k = problem.m, problem.n, problem.k
            for sizes in ((m, n, k), (m + 3, n, k), (m, n * 2, k), (max(m // 3, 1), n + 64, k * 3)):
                for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"):
                    query = Query(problem.resized(*sizes), known(name))
                    hit = answer(query, catalog, Policy())
                    times = hit and (f"{hit.expected_us:.9g}", f"{hit.speedup:.9g}")
                    yield query.problem.text, name, hit and (hit.rung, hit.config.text, times)

    nowhere = Path("/nonexistent/user.db")
    return digest(answers(Catalog.load(Settings((), nowhere, "aten"))))


ENTRIES: dict[str, Callable[[], object]] = {
    "tables": tables,
    "schema": lambda: digest([*sorted(schema.SCHEMA.items()), *sorted(schema.PACKED.items())]),
    "policy": lambda: Policy().text,
    "kernels": kernels,
    "sources": sources,
    "devices": lambda: digest((one.text, one.key, sorted(one.figures.items())) for one in registry.KNOWN),
    "problems": problems,
    "configs": configs,
    "rendered triton": rendered_triton,
    "rendered cutlass": rendered_cutlass,
    "legality": legality,
    "candidates": candidates,
    "lookups": lookups,
}

if __name__ == "__main__":
    json.dump({name: entry() for name, entry in ENTRIES.items()}, sys.stdout, indent=1)
    print()
