"""benchmarks.torch invariance: its groups and lines, and its program on a CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200

from benchmarks.torch import invariance, llama, projections
from gemmdb import Problem
from gemmdb.kernels.triton.sum_order import WARP, WARP_GROUP, SumOrder, sum_order

SMALL = llama.Shape(hidden=64, heads=4, key_heads=2, head=16, feed=96, vocabulary=128, layers=1)


def test_equal_results_are_listed_together() -> None:
    found = {1: "a", 8: "b", 16: "a", 64: "c"}
    assert invariance.grouped(found, str.__eq__) == [[1, 16], [8], [64]]
    said = invariance.lines(
        {"agree": {"ATen": {"down": [[1, 16], [8]]}}, "kernels": {"int8": [["one", "two"], ["three"]]}, "covered": None}
    )
    assert list(said) == [
        "ATen, down: 1 16 | 8", "kernels, int8 weight: one; two", "kernels, int8 weight: three", "covered: None"
    ]  # fmt: skip


def test_the_kernels_are_legal_and_named_after_their_order() -> None:
    problem = Problem.gemm("mm", m=16, n=4096, k=4096)
    for name, config in invariance.configs("int8").items():
        assert config.rejection(Problem.gemm("mixed_mm", m=16, n=4096, k=4096), H200) is None, name
    for name, config in invariance.configs("bf16").items():
        assert config.rejection(problem, H200) is None, name
        order = sum_order(config, problem, H200)
        wanted = {"group": SumOrder(WARP_GROUP), "warp": SumOrder(WARP), "two slices": SumOrder(WARP_GROUP, 2, 2048)}
        assert order == wanted.get(name.partition(",")[0], SumOrder(WARP_GROUP, 4, 1024)), name


def test_the_program_runs_in_each_way() -> None:
    program, given = projections.Projections("cpu", SMALL).eval(), projections.inputs(6, "cpu", SMALL)
    with torch.no_grad():
        eager = projections.results(program, given, [2, 6])
        ways = (
            projections.results(projections.compiled(program), given, [2, 6]),
            projections.results(projections.compiled(program, True), given, [2, 6]),
            projections.symbolic(program, given, ([2, 6], 4)),
        )
    assert len(eager[2]) == len(projections.NAMES)
    for way in ways:
        for rows, one in way.items():
            for found, wanted in zip(one, eager[rows], strict=True):
                torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)
    assert projections.covered()["covered"] == 0, "a CPU has no batch invariance"
