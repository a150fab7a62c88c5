"""Batched GEMMs: rows of a GEMM of two matrices do not answer for them, and ranges are ATen's."""

import math

import pytest
from kit.devices import H200
from kit.gpu import make

import gemmdb
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.settings import Policy

TILE = make("tile", block_m=64, block_n=128)


def bmm(batch: int = 64, m: int = 64, n: int = 256, k: int = 256, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def test_no_gemm_of_two_matrices_answers(lab, ask):
    known = [Problem.gemm("mm", m=m, n=4096, k=4096) for m in (32, 64, 128)]
    rows = [row for problem in known for row in lab.rows(problem, {TILE: 0.5}, device=H200)]
    assert ask(known[1], rows) is not None
    assert ask(bmm(batch=1), rows) is None
    assert ask(bmm(), rows) is None
    assert str(TILE.rejection(bmm(), H200)) == "triton:tile does not solve bmm on cuda"


BMM = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=32, group_m=8, warps=4, stages=3)
CONFIRMING = Policy(confirm=True)


def test_the_kernel_of_the_nearest_batch_answers_where_it_will_be_timed(lab):
    rows = [
        *lab.rows(bmm(batch=16), {BMM: 0.8}, device=H200),
        *lab.rows(bmm(batch=64, m=128), {BMM: 1.5}, device=H200),
    ]
    query, catalog = lab.query(bmm(batch=48), H200), lab.catalog(rows)
    hit = answer(query, catalog, CONFIRMING)
    assert (hit.rung, hit.config) == ("near", BMM)
    assert hit.speedup == pytest.approx(1.25)
    assert hit.evidence["neighbours"] == [bmm(batch=16).text]
    known = answer(lab.query(bmm(batch=16), H200), catalog, CONFIRMING)
    assert hit.expected_us == pytest.approx(3 * known.expected_us)
    beside = answer(lab.query(bmm(batch=64, m=100), H200), catalog, CONFIRMING)
    assert (beside.rung, beside.config, beside.speedup) == ("near", ATEN, 1.0)


def test_a_batch_is_predicted_from_those_around_it(lab):
    """The number of matrices tells how many waves of programs there are: of two that leave none idle, a time per matrix
    carries over."""
    around = (bmm(batch=48), bmm(batch=96), bmm(batch=64, m=128))
    rows = [row for one in around for row in lab.rows(one, {BMM: 0.5}, device=H200)]
    hit = answer(lab.query(bmm(batch=64), H200), lab.catalog(rows), Policy())
    assert (hit.rung, hit.config) == ("near", BMM)
    assert hit.speedup == pytest.approx(2.0, rel=0.1)
    assert set(hit.evidence["neighbours"][0]) == {"problem", "distance", "table", "aten_us"}
    assert hit.evidence["distance"] == pytest.approx(0.5 * math.log2(64 / 48))
    slow = [row for one in around for row in lab.rows(one, {BMM: 1.2}, device=H200)]
    served = answer(lab.query(bmm(batch=64), H200), lab.catalog(slow), Policy())
    assert served is None or served.config == ATEN


def test_a_batch_of_other_sizes_is_too_far(lab):
    rows = lab.rows(bmm(batch=64), {BMM: 0.8}, device=H200)
    catalog = lab.catalog(rows)
    for problem in (bmm(batch=64, n=2048), bmm(batch=1 << 14, n=512), bmm(batch=64, m=1)):
        assert answer(lab.query(problem, H200), catalog, Policy(confirm=True, model=False)) is None
    denied = answer(lab.query(bmm(batch=48), H200), catalog, Policy(confirm=True, deny="inductor_bmm"))
    assert denied.config == ATEN


def test_a_range_is_answered_where_every_bucket_was_measured(lab, ask):
    ranges = {"m": (16, 64)}
    every = [row for m in (16, 32, 64) for row in lab.rows(bmm(m=m), {}, device=H200)]
    hit = ask(bmm(), every, ranges=ranges)
    assert (hit.rung, hit.config) == ("exact", ATEN)
    beside = ask(bmm(m=48), every, ranges=ranges)
    assert (beside.rung, beside.config) == ("near", ATEN)


def test_the_shipped_table_still_answers_as_it_did(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for op, rest in (("mm", {}), ("mixed_mm", {"fusion": "scale"})):
        hit = gemmdb.lookup(Problem.gemm(op, m=16, n=4096, k=4096, **rest), "NVIDIA H200")
        assert hit.rung == "exact"
        assert hit.table.endswith("sm90-nvidia-h200.db")
    assert gemmdb.lookup(bmm(), "NVIDIA H200") is None
