"""benchmarks/torch on a GPU: the host's time of each kind of GEMM, and the stages of an algorithm search."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gemmdb.key.problem import Problem

pytestmark = pytest.mark.usefixtures("clean")
OPTIONAL = {"cutlass", "tile tma", "persistent", "inductor tma", "cublaslt split"}
"""Kinds that need a library or a GPU that may be missing, or an algorithm that cuBLASLt may not have."""


def test_every_kind_is_served_and_timed() -> None:
    from benchmarks.torch import host, launches

    kinds = launches.kinds("cuda")
    chains, failed = launches.compiled(kinds, "cuda")
    assert set(failed) <= OPTIONAL, failed
    samples = host.timed(chains, 0.0)
    rows = host.summary({name: kinds[name].against for name in chains}, samples)
    assert all(row["us"]["us"] > 0 for row in rows)
    assert chains["aten mm"].gpu_us() > 0


def test_a_search_has_all_stages_and_a_result() -> None:
    from benchmarks.torch import stages

    found = stages.searched(Problem.gemm("mm", m=768, n=2048, k=7168), stages.device())
    assert "failure" not in found
    assert set(stages.STAGES) < set(found["stages_s"])
    assert len(found["estimated"]) == 2
    assert found["picked"]
