"""Times that no device can reach decide nothing, whoever claims them."""

import logging
from pathlib import Path

import pytest
from kit.devices import known

from benchmarks.common import ROOT
from gemmdb.cost.possible import possible
from gemmdb.errors import TableError
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, expected, explain
from gemmdb.lookup.evidence import possible_times, verdict_is_possible
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Protocol, Status
from gemmdb.table.reader import Table

H200 = known("NVIDIA H200")
LARGE = Problem.gemm("mm", m=4096, n=4096, k=4096)
POLICY = Policy(near_loss=1.0)


def tile(m, n=128):
    return Config.of("triton", "inductor_mm", block_m=m, block_n=n, block_k=64, group_m=8, warps=8, stages=3)


LIAR, HONEST = tile(64), tile(128)


@pytest.fixture(params=["measurements", "packed"])
def catalog(request, lab, tmp_path):
    """Makes a Catalog of one table per list of rows, in both forms of a table."""

    def make(*tables):
        opened = lab.catalog(*tables)
        if request.param == "measurements":
            return opened
        paths = [Path(table.path) for table in opened.tables]
        small = [tmp_path / f"small-{path.name}" for path in paths]
        for path, out in zip(paths, small, strict=True):
            pack(path, out)
        return Catalog([(Source(path, "explicit"), Table.open(path)) for path in small])

    return make


def rows(lab, ratios, problem=LARGE, aten_us=200.0, **where):
    return lab.rows(problem, ratios, aten_us=aten_us, device=H200, clock="graph", **where)


@pytest.mark.parametrize("us", [2e-6, 1.0, 30.0])
def test_an_impossible_winner_is_not_served(lab, catalog, us, caplog):
    found = catalog(rows(lab, {LIAR: us / 200}))
    with caplog.at_level(logging.WARNING, "gemmdb"):
        hit = answer(lab.query(LARGE, H200), found, POLICY)
    assert hit is None or (hit.rung, hit.table) == ("model", "")
    assert "no NVIDIA H200 can reach" in caplog.text


def test_a_fast_winner_that_is_possible_is_served(lab, catalog):
    assert answer(lab.query(LARGE, H200), catalog(rows(lab, {LIAR: 0.6})), POLICY).config == LIAR


def test_an_impossible_time_of_aten_decides_nothing(lab, catalog):
    found = catalog(rows(lab, {LIAR: 0.5}, aten_us=0.001))
    assert explain(lab.query(LARGE, H200), found, POLICY)[0].hit is None


def test_another_table_answers_instead(lab, catalog):
    found = catalog(rows(lab, {LIAR: 1e-6}), rows(lab, {HONEST: 0.8}))
    hit = answer(lab.query(LARGE, H200), found, POLICY)
    assert (hit.rung, hit.config, hit.table) == ("exact", HONEST, str(found.tables[1].path))


def test_a_strict_lookup_says_so(lab, catalog):
    with pytest.raises(TableError, match="gemmdb verify"):
        answer(lab.query(LARGE, H200), catalog(rows(lab, {LIAR: 1e-6})), Policy(on_miss="error"))


def test_a_policy_that_rules_out_the_pick_does_not_get_an_impossible_time(lab, catalog):
    """The pick is slower than a config whose short estimate is impossible, since an estimate is never picked."""
    estimate = [row for row in rows(lab, {LIAR: 1e-6}, status=Status.SLOW) if row.config == LIAR]
    found = catalog([*rows(lab, {HONEST: 0.8, tile(32): 0.9}), *estimate])
    hit = answer(lab.query(LARGE, H200), found, Policy(deny="block_m=128"))
    assert (hit.rung, hit.config) == ("exact", tile(32))


def test_a_neighbour_predicts_nothing_from_impossible_times(lab, catalog):
    around = [LARGE.resized(m, 4096, 4096) for m in (3840, 4352)]
    lies = catalog([row for one in around for row in rows(lab, {LIAR: 0.001, HONEST: 0.8}, one)])
    hit = answer(lab.query(LARGE, H200), lies, POLICY)
    assert (hit.rung, hit.config) == ("near", HONEST)
    lies = catalog([row for one in around for row in rows(lab, {LIAR: 0.5}, one, aten_us=0.001)])
    assert explain(lab.query(LARGE, H200), lies, POLICY)[1].hit is None


def test_what_a_packed_table_says_of_the_cost_model_makes_no_time_impossible(lab, tmp_path, monkeypatch):
    """Its times are those of honest rows. The liar is said to be far faster than the cost model expects, which a
    prediction carries over to the problem."""
    honest = expected.expectation
    around = [LARGE.resized(m, 4096, 4096) for m in (3840, 4352)]
    full = lab.catalog([row for one in around for row in rows(lab, {LIAR: 0.95, HONEST: 0.8}, one)])
    monkeypatch.setattr(expected, "expectation", lambda *args: 30_000 if args[-1] == LIAR else honest(*args))
    pack(full.tables[0].path, tmp_path / "small.db")
    found = Catalog([(Source(tmp_path / "small.db", "explicit"), Table.open(tmp_path / "small.db"))])
    hit = answer(lab.query(LARGE, H200), found, POLICY)
    assert hit.config in (ATEN, HONEST)
    assert possible(hit.expected_us, LARGE, H200, "cold")


def test_a_modelled_table_is_no_exception(lab, catalog):
    claimed = list(lab.rows(LARGE, {LIAR: 1e-6}, aten_us=200.0, device=H200, clock="model"))
    assert {row.protocol for row in claimed} == {Protocol("model", "cold", 1, 30)}
    steps = explain(lab.query(LARGE, H200), catalog(claimed), POLICY)
    assert all(step.hit is None or (step.rung, step.hit.table) == ("model", "") for step in steps)


@pytest.mark.parametrize("path", sorted((ROOT / "tables").glob("*.db")), ids=lambda path: path.stem)
def test_no_shipped_time_is_impossible(path):
    with Table.open(path, immutable=True) as table:
        for problem, device in list(table.pairs())[::4]:
            for group in table.record(problem, device).groups:
                assert possible_times(group, problem, device) == group.times
        for problem, device in list(table.decided())[::4]:
            assert all(map(verdict_is_possible, table.verdicts(problem, device)))


def test_the_times_that_remain_are_those_that_are_possible(lab):
    with lab.catalog(rows(lab, {LIAR: 0.01, HONEST: 0.8})).tables[0] as table:
        (group,) = table.record(LARGE, H200).groups
    assert {time.config for time in possible_times(group, LARGE, H200)} == {ATEN, HONEST}
