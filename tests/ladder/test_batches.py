"""Products of batches on the ladder: no product of two matrices answers for them, and ranges are ATen's."""

import pytest
from kit.devices import H200

import gemmdb
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.legality import illegal
from gemmdb.key.problem import Problem
from gemmdb.ladder import explain, lookup
from gemmdb.settings import Policy

TILE = Config.of(
    "triton", "tile", block_m=64, block_n=128, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip


def bmm(batch: int = 64, m: int = 64, n: int = 256, k: int = 256, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.fixture
def ask(lab):
    """A lookup among the given rows."""

    def find(problem, rows, **query) -> Hit | None:
        return lookup(lab.query(problem, H200, **query), lab.catalog(rows), Policy())

    return find


def test_no_product_of_two_matrices_answers(lab, ask):
    known = [Problem.gemm("mm", m=m, n=4096, k=4096) for m in (32, 64, 128)]
    rows = [row for problem in known for row in lab.rows(problem, {TILE: 0.5}, device=H200)]
    assert ask(known[1], rows) is not None
    assert ask(bmm(batch=1), rows) is None
    assert ask(bmm(), rows) is None
    assert illegal(TILE, bmm(), H200) == "triton:tile does not solve bmm on cuda"
    steps = explain(lab.query(bmm(), H200), lab.catalog(rows), Policy())
    reasons = {step.rung: step.reason for step in steps}
    assert "op bmm" in reasons["near"]


def test_a_range_is_answered_where_every_bucket_was_measured(lab, ask):
    ranges = {"m": (16, 64)}
    every = [row for m in (16, 32, 64) for row in lab.rows(bmm(m=m), {}, device=H200)]
    hit = ask(bmm(), every, ranges=ranges)
    assert (hit.rung, hit.config) == ("exact", ATEN)
    assert ask(bmm(m=48), every, ranges=ranges) is None


def test_the_shipped_table_still_answers_as_it_did(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for op, rest in (("mm", {}), ("mixed_mm", {"fusion": "scale"})):
        hit = gemmdb.lookup(Problem.gemm(op, m=16, n=4096, k=4096, device="NVIDIA H200", **rest))
        assert hit.rung == "exact"
        assert hit.table.endswith("sm90-nvidia-h200.db")
    assert gemmdb.lookup(bmm(device="NVIDIA H200")) is None
