"""What serves rows between the sizes of a range that decide: a kernel where ATen is expected to be no faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from kit.devices import H200
from kit.gpu import algorithm, make

from gemmdb.hit import Branches, Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance import by_rows
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

TILE, FIRST, SECOND, SEVERAL = make("tile"), algorithm(tile=19), algorithm(tile=23), algorithm(tile=18)
OTHER = make("tile", block_m=64, warps=8)
"""The tiles of the first two algorithms have 256 rows, those of the last have 64."""
POLICY = Policy(on_miss="aten", near=False, sku=False, model=False, captured=True)
SIZES = (64, 96, 128, 192, 256)
STEPS = (10.0, 10.0, 20.0, 20.0, 40.0)
"""ATen's microseconds, which grow with its tiles."""


def asked(lab: Any, ratios: Mapping[Config, tuple[float, ...]], op: str = "mm", **rest: Any) -> Hit:
    """The answer for 64 to 256 rows, with rows of each size that decides."""
    problems = [Problem.gemm(op, m=m, n=1024, k=1024, **rest) for m in SIZES]
    rows = [
        row for place, problem in enumerate(problems)
        for row in lab.rows(problem, {c: values[place] for c, values in ratios.items()}, aten_us=STEPS[place],
                            device=H200, clock="graph")
    ]  # fmt: skip
    found = answer(Query(problems[2], H200, {"m": (64, 256)}), lab.catalog(rows), POLICY)
    assert found is not None
    return found


@pytest.mark.parametrize("config", [TILE, FIRST])
def test_a_kernel_serves_all_rows_down_to_where_aten_takes_as_long(lab: Any, config: Config) -> None:
    """With 97 rows ATen takes 10 us at least, and the kernel as long at most."""
    assert asked(lab, {config: (0.5,) * 5}).branches == ()
    assert asked(lab, {config: (0.5,) * 5}).config == config


def test_an_algorithm_with_several_tiles_along_m_serves_eight_rows_down(lab: Any) -> None:
    """If the last has fewer rows, they may read the weight one after the other. Up to 64 rows, few take longer."""
    slower: Branches = ((64, SEVERAL), (88, ATEN), (96, SEVERAL), (120, ATEN), (128, SEVERAL), (184, ATEN))
    slower = (*slower, (192, SEVERAL), (248, ATEN), (None, SEVERAL))
    assert asked(lab, {SEVERAL: (0.5,) * 5}).branches == slower
    along_m = algorithm(tile=18, cluster=8)
    assert asked(lab, {along_m: (0.5,) * 5}).config == along_m
    assert asked(lab, {along_m: (0.5,) * 5}).branches == ()


def gemm(m: int, n: int = 1024, **rest: Any) -> Problem:
    return Problem.gemm(rest.pop("op", "mm"), m=m, n=n, k=1024, **rest)


def rows_of(lab: Any, problem: Problem, ratios: Mapping[Config, float]) -> list[Any]:
    found: list[Any] = lab.rows(problem, ratios, aten_us=20.0, device=H200, clock="graph")
    return found


def found_for(lab: Any, rows: list[Any], problem: Problem, high: int = 256, policy: Policy = POLICY) -> Hit | None:
    """The answer for 64 rows to `high`, with the hint of the problem."""
    return answer(Query(problem, H200, {"m": (64, high)}), lab.catalog(rows), policy)


@pytest.mark.parametrize("fusion", ["none", "pointwise:math"])
def test_sizes_that_a_table_lists_decide(lab: Any, fusion: str) -> None:
    """Engines run every multiple of eight. Rows without the epilogue list sizes, too."""
    ratios = {64: 1.2, 96: 1.2, 128: 1.2, 160: 0.6, 162: 0.5, 192: 1.2, 256: 1.2}
    rows = [row for m, ratio in ratios.items() for row in rows_of(lab, gemm(m), {TILE: ratio})]
    rows += rows_of(lab, gemm(144, n=2048), {TILE: 0.5})
    found = found_for(lab, rows, gemm(64, fusion=fusion))
    assert found is not None
    assert found.branches == ((128, ATEN), (160, TILE), (None, ATEN))
    sizes = [one["m"] for one in found.evidence["sizes"]]
    assert {64, 128, 160, 256} <= set(sizes) <= {64, 96, 128, 160, 192, 256}


def test_a_single_kernel_does_not_serve_a_listed_size_where_it_is_slower(lab: Any) -> None:
    """Without the row of 160, it serves the whole range."""
    rows = [row for m in SIZES for row in rows_of(lab, gemm(m), {TILE: 0.5})]
    alone = found_for(lab, rows, gemm(64))
    assert alone is not None
    assert (alone.config, alone.branches) == (TILE, ())
    joined = found_for(lab, [*rows, *rows_of(lab, gemm(160), {TILE: 1.3, OTHER: 0.25})], gemm(64))
    assert joined is not None
    assert (joined.at(160), joined.at(128), joined.at(256)) == (OTHER, TILE, TILE)


def test_a_kernel_that_was_not_timed_at_a_measured_size_does_not_serve_it(lab: Any) -> None:
    """Its neighbours say that it is fast there."""
    rows = [row for m in (64, 128, 192, 256) for row in rows_of(lab, gemm(m), {TILE: 0.5, OTHER: 0.9})]
    rows += rows_of(lab, gemm(160), {OTHER: 0.9})
    for policy in (replace(POLICY, near=True), replace(POLICY, near=True, confirm=True)):
        found = found_for(lab, rows, gemm(64), policy=policy)
        assert found is not None
        assert (found.at(160), found.at(128)) == (OTHER, TILE)


@pytest.mark.parametrize("others", [{}, {"op": "mixed_mm", "weight_dtype": "int8", "fusion": "scale"}])
def test_more_kernels_than_share_a_range(lab: Any, others: dict[str, Any]) -> None:
    """ATen gets some of the sizes. If it cannot, the listed sizes do not count."""
    kernels = [make("tile", block_k=k, stages=stages, warps=warps)
               for k in (32, 64, 128) for stages in range(2, 8) for warps in (4, 8)]  # fmt: skip
    listed = range(64, 64 + 8 * len(kernels), 8)
    assert len(kernels) > by_rows.MOST_KERNELS
    rows = [row for m, one in zip(listed, kernels, strict=True) for row in rows_of(lab, gemm(m, **others), {one: 0.5})]
    found = found_for(lab, rows, gemm(64, **others), listed[-1])
    if others:
        assert found is None or {one["m"] for one in found.evidence["sizes"]} < set(listed)
        return
    assert found is not None
    assert {one["m"] for one in found.evidence["sizes"]} == set(listed)
    served = [found.at(m) for m in listed]
    assert ATEN in served
    assert len(set(served)) > by_rows.MOST_KERNELS - 4


def test_listed_sizes_are_bounded_whatever_the_hint_is(lab: Any) -> None:
    """The smallest multiples of eight, over all families and tables together."""
    rows = [row for m in range(1, 700) for row in rows_of(lab, gemm(m), {TILE: 0.5})]
    catalog = lab.catalog(rows)
    found = []
    for hint in (64, 300, 4096):
        query = Query(gemm(hint, fusion="pointwise:math"), H200, {"m": (1, 4096)})
        found.append(by_rows.rows(Ask(query, catalog.tables, POLICY, None)).listed)
    assert all(0 < len(one) <= by_rows.MOST_LISTED for one in found)
    assert all(max(one) <= by_rows.CLOSE * by_rows.MOST_LISTED for one in found)
    assert all(m % by_rows.CLOSE == 0 for one in found for m in one)


@pytest.mark.parametrize("config", [TILE, FIRST])
def test_elsewhere_it_serves_eight_rows_down_and_aten_the_others(lab: Any, config: Config) -> None:
    """With 97 rows, ATen may take 10 us, and the kernel 18."""
    slower: Branches = ((96, config), (120, ATEN), (192, config), (248, ATEN), (None, config))
    found = asked(lab, {config: (0.9,) * 5})
    assert found.branches == slower
    assert (found.config, found.at(128), found.at(120), found.at(97)) == (config, config, ATEN, ATEN)


def test_each_size_has_the_kernel_that_is_fastest_there(lab: Any) -> None:
    ratios = {FIRST: (0.9, 0.9, 0.6, 0.6, 0.6), SECOND: (0.6, 0.6, 0.9, 0.9, 0.9)}
    assert asked(lab, ratios).branches == ((96, SECOND), (120, ATEN), (192, FIRST), (248, ATEN), (None, FIRST))


def test_sizes_without_a_kernel_stay_atens(lab: Any) -> None:
    assert asked(lab, {FIRST: (1.2, 1.2, 0.9, 1.2, 1.2)}).branches == ((120, ATEN), (128, FIRST), (None, ATEN))


def test_where_aten_cannot_share_the_node_a_kernel_serves_all_rows(lab: Any) -> None:
    """ATen casts the weight first, by a kernel of its own."""
    found = asked(lab, {TILE: (0.9,) * 5}, op="mixed_mm", weight_dtype="int8", fusion="scale")
    assert (found.config, found.branches) == (TILE, ())


@pytest.mark.parametrize("n", [4096, 28672])
def test_kernels_of_the_shipped_table_between_its_sizes_take_no_longer_than_aten_at_the_smaller(n: int) -> None:
    shipped, policy = Catalog.load(), replace(POLICY, near=True)
    for high in (512, None):
        found = answer(Query(Problem.gemm("mm", m=256, n=n, k=4096), H200, {"m": (1, high)}), shipped, policy)
        assert found is not None
        sizes, kernels = {one["m"]: one for one in found.evidence["sizes"]}, 0
        for before, m in pairwise(sizes):
            between = {found.at(rows) for rows in range(before + 1, m - 7)} - {ATEN}
            if between:
                kernels += 1
                assert sizes[m]["expected_us"] <= 1.01 * sizes[before]["expected_us"] * sizes[before]["speedup"]
        assert kernels
        limits = [limit for limit, _ in found.branches]
        assert limits[-1] is None
        assert limits[:-1] == sorted({limit for limit in limits if limit is not None})


def test_the_parts_that_aten_gets_are_told(lab: Any) -> None:
    found = asked(lab, {TILE: (0.9,) * 5})
    assert found.evidence["aten_between"] == [[97, 120], [193, 248]]
    assert [one["m"] for one in found.evidence["kernels"]] == [list(SIZES)]
    assert "aten_between" not in asked(lab, {TILE: (0.5,) * 5}).evidence
