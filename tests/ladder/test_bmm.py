"""Products of batches on the ladder: answered by what was measured, never by another batch, op or the model."""

from dataclasses import replace

import pytest
from kit.devices import H200

import gemmdb
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.legality import illegal
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.ladder import explain, lookup
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.candidates import candidates
from gemmdb.settings import Policy

TEMPLATE = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
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


def test_the_same_batch_is_answered_exactly(lab, ask):
    rows = [*lab.rows(bmm(), {TEMPLATE: 0.5}, device=H200)]
    hit = ask(bmm(), rows)
    assert (hit.rung, hit.config, hit.speedup) == ("exact", TEMPLATE, 2.0)


@pytest.mark.parametrize(
    "other",
    [
        bmm(batch=63), bmm(m=65), bmm(layout="nn"), bmm(dtype="fp16"), bmm(fusion="pointwise"),
        replace(bmm(), b=Operand("bf16", Layout("col", 8, "broadcast"))),
        replace(bmm(), a=Operand("bf16", Layout("row-padded", 8, "interleaved"))),
        replace(bmm(), a=Operand("bf16", Layout("row", 4))),
    ],
    ids=lambda problem: problem.text,
)  # fmt: skip
def test_nothing_else_is(lab, ask, other):
    assert ask(other, [*lab.rows(bmm(), {TEMPLATE: 0.5}, device=H200)]) is None


def test_no_product_of_two_matrices_answers(lab, ask):
    known = [Problem.gemm("mm", m=m, n=4096, k=4096) for m in (32, 64, 128)]
    rows = [row for problem in known for row in lab.rows(problem, {TILE: 0.5}, device=H200)]
    assert ask(known[1], rows) is not None
    assert ask(bmm(batch=1), rows) is None
    assert ask(bmm(), rows) is None
    steps = explain(lab.query(bmm(), H200), lab.catalog(rows), Policy())
    reasons = {step.rung: step.reason for step in steps}
    assert "op bmm" in reasons["near"]
    assert reasons["model"] == "products of the op bmm are not modelled"


def test_a_range_is_answered_where_every_bucket_was_measured(lab, ask):
    ranges = {"m": (16, 64)}
    every = [row for m in (16, 32, 64) for row in lab.rows(bmm(m=m), {}, device=H200)]
    hit = ask(bmm(), every, ranges=ranges)
    assert (hit.rung, hit.config) == ("exact", ATEN)
    assert "template is generated for fixed sizes" in str(illegal(TEMPLATE, bmm(), H200, ("m",)))
    assert ask(bmm(m=48), every, ranges=ranges) is None


def test_another_sku_answers_from_its_own_rows(lab):
    h100 = Device("cuda", "sm90", "NVIDIA H100 80GB HBM3", 132, 79)
    catalog = lab.catalog([*lab.rows(bmm(), {TEMPLATE: 0.5}, device=h100)])
    assert lookup(lab.query(bmm(), H200), catalog, Policy()) is None
    hit = lookup(lab.query(bmm(), H200), catalog, Policy(sku=True))
    assert (hit.rung, hit.config) == ("sku", TEMPLATE)


def test_live_tuning_is_left_to_the_menu(lab):
    catalog = lab.catalog([*lab.rows(Problem.gemm("mm", m=64, n=256, k=256), {TILE: 0.5}, device=H200)])
    for problem in (bmm(), bmm(dtype="fp32"), bmm(k=255)):
        assert candidates(Ask(lab.query(problem, H200), catalog.tables, Policy(), None)) == []


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (bmm(batch=65_536, m=1, n=1), "room for 65535 matrices"),
        (bmm(batch=1), "of a batch of one"),
        (bmm(k=1), "where K is 1"),
        (bmm(batch=0), "size zero"),
        (bmm(m=0), "size zero"),
        (bmm(batch=512, m=4096, n=16, k=1024), "within an operand"),
        (bmm(batch=512, m=4096, n=1024, k=16), "within the output"),
        (bmm(dtype="fp64"), "bf16, fp16, int8, and fp32"),
        (replace(bmm(), b=Operand("bf16", Layout("strided", 1))), "no row start"),
        (Problem.gemm("mm", m=64, n=64, k=64), "does not solve mm"),
    ],
)
def test_what_the_template_cannot_run_says_why(problem, reason):
    assert reason in (illegal(TEMPLATE, problem, H200) or "")
    assert illegal(TEMPLATE, bmm(), H200) is None
    assert illegal(TILE, bmm(), H200) == "triton:tile does not solve bmm on cuda"


def test_the_shipped_table_still_answers_as_it_did(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for op, rest in (("mm", {}), ("mixed_mm", {"fusion": "scale"})):
        hit = gemmdb.lookup(Problem.gemm(op, m=16, n=4096, k=4096, device="NVIDIA H200", **rest))
        assert hit.rung == "exact"
        assert hit.table.endswith("sm90-nvidia-h200.db")
    assert gemmdb.lookup(bmm(device="NVIDIA H200")) is None


@pytest.mark.parametrize(
    ("problem", "kernel", "gain"),
    [
        ({"batch": 512, "m": 128, "n": 128, "k": 64, "layout": "nt"}, "inductor_bmm", 1.15),
        ({"batch": 32, "m": 2048, "n": 2048, "k": 128, "layout": "nt"}, "default", 1.0),
    ],
)
def test_the_shipped_table_has_batches(monkeypatch, tmp_path, problem, kernel, gain):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hit = gemmdb.lookup(Problem.gemm("bmm", device="NVIDIA H200", **problem))
    assert (hit.rung, hit.config.kernel) == ("exact", kernel)
    assert hit.speedup >= gain
