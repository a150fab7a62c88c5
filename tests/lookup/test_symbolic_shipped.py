"""What a symbolic compile gets of the shipped H200 table at each size, beside a compile for that size alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer, lowering
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog

SHIPPED = Catalog.load(Settings.read({}))
POLICY = Policy(on_miss="aten", captured=True)
LAYERS = {"qkv": (6144, 4096), "out": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336), "head": (128256, 4096)}
"""N and K of the GEMMs of Llama-3-8B."""
RANGES = {
    (2, 512): (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    (512, 4096): (512, 1024, 2048, 4096),
}
"""Sizes of decode steps and of prefills, by range."""
SMALL = 0.03
"""The largest loss in one size for which fewer kernels are preferred."""


def at(hit: Hit | None, m: int) -> Config:
    """The config of a hit for a range at one size."""
    if hit is None:
        return ATEN
    return next((config for limit, config in hit.branches if limit is None or m <= limit), hit.config)


def compared(fusion: str) -> tuple[int, list[Config], dict[tuple[str, int], float]]:
    """How many sizes a kernel serves alone; the configs of those where a symbolic compile runs none because they cannot
    share a node; and what it misses at others, as logs of speedups, by layer and size."""
    served, apart, lost = 0, list[Config](), {}
    for layer, (n, k) in LAYERS.items():
        for ends, sizes in RANGES.items():
            problem = Problem.gemm("mm", m=ends[1] // 2, n=n, k=k, fusion=fusion)
            found = answer(Query(problem, H200, {"m": ends}), SHIPPED, POLICY)
            for m in sizes:
                alone = answer(Query(problem.resized(m, n, k), H200), SHIPPED, POLICY)
                if alone is None or alone.config == ATEN:
                    continue
                served += 1
                ours = at(found, m)
                if not lowering.joins(alone.config, problem) or alone.config.kernel == "gemv":
                    apart.append(alone.config)
                elif ours == ATEN:
                    lost[layer, m] = math.log(alone.speedup)
    return served, apart, lost


@pytest.mark.parametrize("fusion", ["none", "pointwise:reads1", "pointwise:math:reads1"])
def test_a_symbolic_compile_gets_what_static_ones_get(fusion: str) -> None:
    """Its answers are those for fixed sizes: from all rungs, with fused epilogues, and as many kernels as pay."""
    served, apart, lost = compared(fusion)
    assert served >= 30
    # Inductor's own templates, kernels with a second one, and CUTLASS's with a workspace are no parts, and `gemv` has a
    # fixed M.
    apart = [config for config in apart if config.values.get("reduce") != "kernel"]
    assert {config.name for config in apart} <= {"triton:inductor_mm", "cutlass:gemm", "triton:gemv"}
    assert all(config.values["split_k"] != 1 for config in apart if config.name == "cutlass:gemm")
    assert len(apart) <= served / 5
    assert all(loss <= SMALL for loss in lost.values()), lost


@pytest.mark.parametrize("fusion", ["none", "pointwise:reads1"])
def test_an_open_range_loses_little_at_any_size(fusion: str) -> None:
    """Of `mark_dynamic` without bounds, with more sizes that decide than any other range."""
    policy, lost = replace(POLICY, confirm=True), dict[tuple[str, int], float]()
    for layer, (n, k) in LAYERS.items():
        problem = Problem.gemm("mm", m=64, n=n, k=k, fusion=fusion)
        found = answer(Query(problem, H200, {"m": (2, None)}), SHIPPED, policy)
        assert found is not None
        lost |= {(layer, one["m"]): one["regret"] for one in found.evidence.get("sizes", ()) if one["m"] <= 8192}
    assert len(lost) > 20
    assert max(lost.values()) <= SMALL, lost


def test_no_compile_benchmarks_sizes_far_above_what_runs() -> None:
    """An open range ends at 65,536 rows."""
    policy, rows = Policy(on_miss="aten", confirm=True), set[int]()
    for n, k in LAYERS.values():
        problem = Problem.gemm("mm", m=64, n=n, k=k, fusion="pointwise:reads1")
        found = answer(Query(problem, H200, {"m": (2, None)}), SHIPPED, policy)
        rows |= {one["m"] for one in (found.evidence if found else {}).get("unmeasured", ())}
    assert 0 < max(rows) <= 8192


def test_explicit_live_tuning_leaves_no_size_of_a_range_to_aten() -> None:
    """Sizes of a range are not tuned live, so what a fixed size would leave to that is confirmed."""
    confirmed = 0
    for n, k in LAYERS.values():
        problem = Problem.gemm("addmm", m=512, n=n, k=k, bias="full")
        query, policy = Query(problem, H200, {"m": (16, 2048)}), Policy(confirm=True)
        live, aten = (answer(query, SHIPPED, replace(policy, on_miss=on_miss)) for on_miss in ("live", "aten"))
        assert (live and live.branches) == (aten and aten.branches)
        confirmed += len(live.evidence.get("unmeasured", ())) if live else 0
    assert confirmed
