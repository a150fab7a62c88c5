"""A lookup outside a compile leaves out what a compile cannot or does not serve, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.devices import A100
from kit.gpu import make

from gemmdb.cost import host
from gemmdb.devices import registry
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer, explain, lowering, slow_calls
from gemmdb.outcome import ONLY_ATEN, Kind, of_hit
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog

H200 = registry.find("NVIDIA H200")
SHIPPED = Catalog.load(Settings.read({}))
POLICY = Policy(on_miss="aten")
SMALL = Query(
    Problem.parse(
        "mm m=24 n=8192 k=28672 a=bf16:row:8 b=bf16:col:8 out=bf16 bias=none scalars=unit fusion=none fp32=ieee"
        " acc=fp32 reduced=1 deterministic=0 constant=0"
    ),
    H200,
    {"m": (0, 24)},
)
"""A range with size zero, for which the H200's table has CUTLASS kernels."""


def test_a_kernel_that_a_range_rules_out_is_left_out() -> None:
    policy = replace(POLICY, allow="cutlass")
    positive = answer(replace(SMALL, ranges={"m": (1, 24)}), SHIPPED, policy)
    assert positive is not None
    first, _ = next(positive.kernels({"m": (1, 24)}))
    assert first.backend == "cutlass"
    hit = answer(SMALL, SHIPPED, policy)
    assert hit is not None
    assert next(hit.kernels(SMALL.ranges)) == (ATEN, (0, 1)), "CUTLASS rejects a GEMM of size zero"
    assert not any(lowering.rejection(config, SMALL, rows) for config, rows in hit.kernels(SMALL.ranges))


def test_a_range_has_one_problem_at_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many configs are checked: making a problem takes as long as checking a config."""
    query = replace(SMALL, ranges={"m": (1, 513)})
    configs = [make("tile", stages=stages) for stages in range(2, 6)]
    made = list[Problem]()
    resized = Problem.resized
    monkeypatch.setattr(Problem, "resized", lambda self, **sizes: (made.append(self), resized(self, **sizes))[1])
    lowering._ends.cache_clear()
    assert not any(lowering.rejection(config, query) for config in configs)
    assert len(made) == 2


def test_a_range_is_checked_at_both_ends() -> None:
    """Without an upper end, at the hint."""
    problem = SMALL.problem
    assert [one.m for one in lowering._ends(problem, (("m", (0, 24)),))] == [1, 24]
    assert [(one.m, one.k) for one in lowering._ends(problem, (("m", (3, None)), ("k", (8, 64))))] == [(3, 8), (24, 64)]


def test_a_kernel_that_a_process_cannot_run_is_left_out_of_a_range() -> None:
    whole = replace(SMALL, ranges={"m": (1, 24)})
    first = next(config for config, _ in answered(whole).kernels(whole.ranges) if config.backend == "cutlass")
    missing = Rejected("its compiled kernel cannot be loaded here")
    hit = answer(whole, SHIPPED, POLICY, excluded=lambda config, rows: missing if config == first else None)
    assert hit is not None
    assert hit.evidence["left_out"] == {first.text: missing.reason}
    assert all(config != first for config, _ in hit.kernels(whole.ranges))


def answered(query: Query) -> Hit:
    found = answer(query, SHIPPED, POLICY)
    assert found is not None
    return found


def test_explain_shows_the_same_answer() -> None:
    found = next(step for step in explain(SMALL, SHIPPED, POLICY) if step.hit is not None)
    assert found.hit == answer(SMALL, SHIPPED, POLICY)


def test_slow_calls_are_left_out_unless_a_cuda_graph_captures_them() -> None:
    text = SMALL.problem.text.replace("mm m=24 n=8192 k=28672", "addmm m=10 n=1280 k=5120").replace(
        "none", "1d:bf16:8", 1
    )
    query = Query(Problem.parse(text), H200)
    captured, hit = answer(query, SHIPPED, replace(POLICY, captured=True)), answer(query, SHIPPED, POLICY)
    assert captured is not None
    assert hit is not None

    def slow(hit: Hit, policy: Policy) -> object:
        return slow_calls(hit.config, query, hit.expected_us, hit.speedup, policy)

    assert slow(captured, POLICY)
    assert not slow(captured, replace(POLICY, captured=True))
    assert not slow(hit, POLICY)
    assert hit.evidence["left_out"][captured.config.text].startswith("host time")


@pytest.mark.parametrize("us", [2.0, host.HIDDEN_US * 2])
def test_with_aten_keeps_the_time_of_aten(us: float) -> None:
    hit = Hit("exact", ATEN, us, 1.5, "a.db", {"kernels": [], "left_out": {ATEN.text: "no"}}, ((1, ATEN), (None, ATEN)))
    found = hit.with_aten()
    assert (found.config, found.expected_us, found.speedup, found.branches) == (ATEN, us * 1.5, 1.0, ())
    assert of_hit(found).kind is Kind.ATEN_REFUSED


def test_a_gpu_that_multiplies_no_fp8_is_not_built_for():
    """`lookup` advised a build on another device."""
    problem, why = Problem.gemm("scaled_mm", m=16, n=4096, k=4096), "needs compute capability 8.9"
    found = lowering.only_aten(Query(problem, A100))
    assert found.reason == f"{ONLY_ATEN}: sm80 cannot multiply fp8, which {why}"
    assert of_hit(None, found.reason).kind is Kind.ATEN_REFUSED
    assert lowering.only_aten(Query(problem, H200)) is None
