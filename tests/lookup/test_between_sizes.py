"""What serves the rows between the sizes of a range that decide: a kernel only where it cannot be slower than ATen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kit.devices import H200
from kit.gpu import algorithm, make

from gemmdb.hit import Branches, Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog

TILE, FIRST, SECOND = make("tile"), algorithm(), algorithm(tile=18)
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


@pytest.mark.parametrize("n", [4096, 6144, 28672])
def test_no_kernel_of_the_shipped_table_may_be_slower_than_aten_between_its_sizes(n: int) -> None:
    shipped = Catalog.load()
    found = answer(Query(Problem.gemm("mm", m=256, n=n, k=4096), H200, {"m": (1, 512)}), shipped, POLICY)
    assert found is not None
    sizes = {one["m"]: one for one in found.evidence["sizes"]}
    for before, m in zip(sizes, list(sizes)[1:], strict=False):
        between = [found.at(rows) for rows in range(before + 1, m - 8)]
        least = sizes[before]["expected_us"] * sizes[before]["speedup"]
        assert set(between) <= {ATEN} or sizes[m]["expected_us"] <= 1.02 * least
