"""Fitting the cost model: what was put into samples comes out, and the shipped coefficients know the shipped table."""

import hashlib
import json
import lzma
import math
from dataclasses import replace
from pathlib import Path

import pytest

from gemmdb.cost import data
from gemmdb.cost.candidates import MENU_OF
from gemmdb.cost.features import TREE_OPS
from gemmdb.cost.model import FITTED
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import COEFFICIENTS, tile_of
from gemmdb.devices import registry
from gemmdb.generators.files import archive
from gemmdb.generators.fit import cost_model, menu, write
from gemmdb.generators.modelled.space import rank, setting_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ranking import outside, uncovered
from gemmdb.settings import shipped_tables
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table

ROOT = Path(__file__).parents[3]
H200 = registry.find("NVIDIA H200")
SIZES = [(m, n, k) for m in (1, 4, 16, 64, 256) for n, k in ((1024, 8192), (4096, 4096), (14336, 4096))]


def made_up(op="mm"):
    """Samples whose times are the shipped model's, three times as long, and ATen's."""
    for m, n, k in SIZES:
        problem = Problem.gemm(op, m=m, n=n, k=k)
        times = {one.config: 3 * one.us for one in rank(problem, H200)[:40]}
        times[ATEN] = 3 * FITTED.predict_aten(setting_of(problem, H200))
        best = min(times.values())
        yield from (cost_model.Sample(problem, H200, config, us, best / us) for config, us in times.items())


@pytest.mark.parametrize("op", ["mm", "mixed_mm"])
def test_what_was_put_in_comes_out(op):
    found = list(made_up(op))
    fitted = cost_model.fit(found)
    errors = []
    for sample in found:
        setting, tile = setting_of(sample.problem, sample.device), tile_of(sample.config)
        expected = fitted.predict(setting, tile) if tile else fitted.predict_aten(setting)
        errors.append(abs(math.log(expected / sample.us)))
    assert sum(errors) / len(errors) < 0.05
    assert all(rate > 0 for rates in fitted.rates.values() for rate in rates)
    again = cost_model.fit(found)
    assert again == fitted


def test_samples_pool_runs_and_leave_out_what_says_nothing():
    problem, config = Problem.gemm("mm", m=16, n=64, k=64), Config.of("aten", "padded", multiple=8)

    def row(config, us, status=Status.OK, spread=0.01, clock="graph"):
        times = Times(us, us * (1 - spread), us * (1 + spread), 30, 10.0)
        return Measurement(problem, config, H200, Protocol(clock, "cold", 1, 30), Toolchain(), "run", status, times)

    rows = [
        row(ATEN, 10.0), row(ATEN, 12.0), row(ATEN, 11.0), row(config, 5.0, Status.SLOW), row(config, 8.0),
        row(config, 1.0, spread=0.5), row(config, 1.0, clock="model"),
    ]  # fmt: skip
    found = {sample.config: sample for sample in cost_model.samples(rows)}
    assert (found[ATEN].us, found[config].us) == (11.0, 8.0)
    assert (found[ATEN].share, found[config].share) == (8 / 11, 1.0)


def test_a_weight_of_int4_gives_no_sample():
    int4 = Problem.gemm("mixed_mm", m=16, n=4096, k=4096, weight_dtype="int4")
    row = Measurement(int4, ATEN, H200, Protocol("graph", "cold", 1, 30), Toolchain(), "run", Status.OK,
                      Times(10.0, 9.9, 10.1, 30, 10.0))  # fmt: skip
    assert cost_model.samples([row]) == []
    assert uncovered(int4).reason == "GEMMs with an int4 weight are not modelled"


def test_the_menu_holds_the_winners_and_what_runs_everywhere():
    found = list(made_up())
    menus = menu.menus(found)
    assert set(menus) == {"mm"}
    assert max(menus["mm"]) == menu.ROWS[-1]
    for limit, texts in menus["mm"].items():
        assert 0 < len(texts) <= menu.SHAPES
        winners = [
            sample.config
            for sample in found
            if sample.share == 1.0 and sample.config != ATEN and limit == _limit(sample.problem.m)
        ]
        shapes = {menu.shape(Config.parse(text)) for text in texts}
        assert all(menu.shape(config) in shapes for config in winners)


def _limit(m):
    return next(rows for rows in menu.ROWS if m <= rows)


def test_the_shipped_data_is_whole_and_names_its_archives():
    assert set(data.RATES) == set(data.KINDS) == set(cost_model.GROUPS)
    assert all(len(rates) == len(COEFFICIENTS) for rates in data.RATES.values())
    assert set(data.menus()) == {MENU_OF[op] for op in (*data.OPS, *TREE_OPS)}
    assert not set(TREE_OPS) & set(data.OPS)
    for menus in data.menus().values():
        assert list(menus) == sorted(menus)
        assert all(tile_of(Config.parse(text)) for texts in menus.values() for text in texts)
    for path, digest in (*data.PROVENANCE["archives"].items(), *data.own()["provenance"]["archives"].items()):
        # The digest is that of the archive as a build writes it. Two archives are stored with a stronger preset since.
        raw = (ROOT / path).read_bytes()
        if hashlib.sha256(raw).hexdigest() != digest:
            written = lzma.compress(lzma.decompress(raw), preset=archive.PRESET)
            assert hashlib.sha256(written).hexdigest() == digest


def test_what_the_model_does_not_cover_is_chosen_as_it_is_measured():
    """First what helps the most beside ATen, then what helps where that does not; nothing that only ATen beats."""
    often, once, never = (Config.of("aten", "padded", multiple=size) for size in (8, 16, 64))
    found = []
    for n, times in (
        (1001, {often: 1.0, once: 2.0}),
        (1003, {often: 1.0, never: 3.0}),
        (1005, {often: 2.0, once: 1.5}),
    ):
        problem = Problem.gemm("mm", m=100, n=n, k=777)
        timed = {ATEN: 2.0, **times}
        best = min(timed.values())
        found += [cost_model.Sample(problem, H200, config, us, best / us) for config, us in timed.items()]
    covered, others = write.divided([*made_up(), *found])
    assert others == found
    assert not {uncovered(sample.problem) for sample in covered} - {None}
    assert menu.rest(others) == {"mm unaligned": {256: (often.text, once.text)}}


def test_numbers_and_texts_are_written_so_that_they_are_read_back():
    value = {"a": [1.5, -2e-7], "b": {"1": ["x y", "z"], "2": []}}
    assert json.loads(write.json_text("write", [Path("a")], value)) == {
        "written_by": "python -m gemmdb.generators.fit.write a", **value,
    }  # fmt: skip


def test_the_shipped_coefficients_order_what_the_shipped_table_measured():
    shares = []
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        for problem, device in table.decided():
            if uncovered(problem) is not None:
                continue
            setting = setting_of(problem, H200)
            kernels = [one for one in table.pooled(problem, device) if one.full and tile_of(one.config)]
            if kernels:
                first = min(kernels, key=lambda one: FITTED.predict(setting, tile_of(one.config)))
                shares.append(min(one.ratio for one in kernels) / first.ratio)
    assert len(shares) > 400
    assert math.exp(sum(map(math.log, shares)) / len(shares)) > 0.93


def test_the_trees_of_an_op_order_what_the_shipped_table_measured():
    """Live tuning tries the first of this order."""
    firsts, fours = {op: [] for op in TREE_OPS}, {op: [] for op in TREE_OPS}
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db", immutable=True) as table:
        for problem, device in table.decided():
            if problem.op not in TREE_OPS or outside(problem) is not None:
                continue
            corrected = Corrected.of(setting_of(problem, H200))
            times = {one.config: one.ratio for one in table.pooled(problem, device) if one.full and tile_of(one.config)}
            if len(times) > 4:
                order = sorted(times, key=lambda config: corrected.us(tile_of(config)))
                firsts[problem.op].append(min(times.values()) / times[order[0]])
                fours[problem.op].append(min(times.values()) / min(times[config] for config in order[:4]))
    for op in TREE_OPS:
        assert len(firsts[op]) > 150
        assert math.exp(sum(map(math.log, firsts[op])) / len(firsts[op])) > 0.97
        assert math.exp(sum(map(math.log, fours[op])) / len(fours[op])) > 0.99


def test_a_device_without_figures_is_told():
    sample = next(made_up())
    with pytest.raises(ValueError, match="no figures of"):
        cost_model.fit([replace(sample, device=replace(H200, arch="sm70", sku="Tesla V100"))])
