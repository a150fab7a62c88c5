"""The cost model counts all matrices of a batch, and int8 stands for fp8."""

import math
from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Config, Problem
from gemmdb.cost.candidates import alike
from gemmdb.cost.features import of_counts, of_tile
from gemmdb.cost.library import library
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.terms import Estimator
from gemmdb.cost.transfer import programs
from gemmdb.cost.work import Setting, residency, tile_of, work
from gemmdb.key.layout import ITEM_SIZES, Layout
from gemmdb.key.operands import Operand
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

MACHINE = machine(H200)
TEMPLATE = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
TILE = tile_of(TEMPLATE)


def bmm(batch: int = 64, m: int = 100, n: int = 256, k: int = 300, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 2, 64, 1000])
def test_every_matrix_has_its_tiles_and_bytes(batch: int) -> None:
    one, many = Setting.of(bmm(1), MACHINE), Setting.of(bmm(batch), MACHINE)
    assert programs(TEMPLATE, bmm(batch)) == batch * 2 * 4
    assert many.output == pytest.approx(batch * one.output)
    assert many.dram == pytest.approx(batch * one.dram)
    single, whole = work(one, TILE), work(many, TILE)
    assert whole.l2 == pytest.approx(batch * single.l2)
    assert whole.waves == math.ceil(8 * batch / (132 * residency(many, TILE, True)))
    assert library(many).dram == pytest.approx(batch * library(one).dram)


def test_the_operand_that_a_batch_shares_is_read_once() -> None:
    shared = replace(bmm(), b=Operand("bf16", Layout("col", 4, "broadcast")))
    apart = Setting.of(bmm(), MACHINE).dram - Setting.of(shared, MACHINE).dram
    assert apart * MACHINE.dram == pytest.approx(63 * 256 * 300 * ITEM_SIZES["bf16"])


@pytest.mark.parametrize("problem", [bmm(), bmm(7, 1, 64, 4096), bmm(500, 512, 512, 64)])
def test_the_estimator_gives_the_same_times_and_features(problem: Problem) -> None:
    setting = Setting.of(problem, MACHINE)
    estimator, us = Estimator.of(FITTED, setting), FITTED.predict(setting, TILE)
    assert estimator.us(TILE) == pytest.approx(us)
    terms = estimator.terms(TILE)
    quick = of_counts(setting, terms, estimator.counts(terms))
    assert quick == pytest.approx(of_tile(setting, TILE, work(setting, TILE), us)[-len(quick) :])


@pytest.mark.parametrize(("least", "first"), [(64, 2), (16, 3)])
def test_its_order_of_measured_templates(least: int, first: int) -> None:
    """Fitted to plain GEMMs, it finds the best template of a batch among its first two. With the smaller
    tiles, which are newer than the fit, it does among its first three."""
    lost: list[float] = []
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        for problem, device in table.decided():
            templates = [one for one in table.pooled(problem, device) if one.config.kernel == TILE.kernel]
            times = {one.config: one.ratio for one in templates if min(_tile(one.config)) >= least}
            if problem.op == "bmm" and problem.a.dtype != "fp32" and len(times) > 2:
                setting = Setting.of(problem, MACHINE)
                order = sorted(times, key=lambda config: FITTED.predict(setting, tile_of(config)))
                lost.append(min(times[config] for config in order[:first]) / min(times.values()) - 1)
    assert len(lost) > 100
    assert sum(lost) / len(lost) < 0.02


def _tile(config: Config) -> tuple[int, int]:
    return int(config.values["block_m"]), int(config.values["block_n"])


def test_what_stands_for_fp8() -> None:
    problem = Problem.gemm("scaled_mm", m=16, n=4096, k=4096, scales="row", fast_accum=True, bias="1d")
    found = alike(problem)
    assert found == Problem.gemm("int_mm", m=16, n=4096, k=4096, fusion="scale")
    assert alike(found) is found
    assert alike(bmm()).op == "bmm"
