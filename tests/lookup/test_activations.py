"""Rows of a kernel that computes an activation say nothing about kernels that fuse any epilogue of the class."""

from dataclasses import replace

import pytest
from kit.devices import H200
from kit.gpu import algorithm, make

from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance.extern import tried_activation
from gemmdb.lookup.ask import Ask
from gemmdb.settings import Policy

pytestmark = pytest.mark.usefixtures("no_shipped_tables")
POLICY = Policy(on_miss="aten", confirm=True, model=False)
GEMM = Problem.gemm("mm", m=384, n=2304, k=768, fusion="pointwise")
TILE = make("tile", block_m=64, block_n=128)
RELU = activated(algorithm(), "relu")


def rows(lab, problem, ratios, **where):
    return [*lab.rows(problem, ratios, aten_us=20.0, device=H200, clock="graph", **where)]


def found(lab, *tables, activation="relu", policy=POLICY):
    return answer(replace(lab.query(GEMM, H200), activation=activation), lab.catalog(*tables), policy)


@pytest.mark.parametrize(("ratio", "activation", "rung", "config"), [
    (1.1, "relu", "near", TILE), (0.7, "relu", "exact", RELU), (0.985, "relu", "near", TILE), (0.7, "", "near", TILE),
])  # fmt: skip
def test_rows_of_an_activation_hide_no_neighbours(lab, ratio, activation, rung, config):
    beside = [row for m in (320, 448) for row in rows(lab, GEMM.resized(m, 2304, 768), {TILE: 0.78})]
    hit = found(lab, rows(lab, GEMM, {RELU: ratio}) + beside, activation=activation)
    assert (hit.rung, hit.config) == (rung, config)


@pytest.mark.parametrize(("ratio", "activation", "config"), [(1.1, "relu", TILE), (0.7, "relu", RELU), (0.7, "", TILE)])
def test_they_hide_no_verdict_of_another_table(lab, ratio, activation, config):
    hit = found(lab, rows(lab, GEMM, {RELU: ratio}), rows(lab, GEMM, {TILE: 0.78}), activation=activation)
    assert (hit.rung, hit.config) == ("exact", config)


def test_without_other_rows_nothing_answers(lab):
    """So the GEMM is tuned where the policy allows that."""
    own = rows(lab, GEMM, {RELU: 1.1})
    assert found(lab, own) is None
    ask = Ask(replace(lab.query(GEMM, H200), activation="relu"), tuple(lab.catalog(own).tables), POLICY, None)
    assert tried_activation(ask)


def test_rows_of_other_kernels_settle_it(lab):
    hit = found(lab, rows(lab, GEMM, {RELU: 1.1, TILE: 1.2}))
    assert (hit.rung, hit.config) == ("exact", ATEN)
