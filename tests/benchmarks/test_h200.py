"""The tools behind the shipped H200 table, on some of its real rows: shipping, reporting, comparing with peers."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from contextlib import closing
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from kit import gpu
from kit.devices import H200
from kit.tables import Kit

from benchmarks.common import SHIPPED
from benchmarks.h200 import peers, peers_report, report, results
from benchmarks.h200.strata import STRATA
from gemmdb.generators.files import archive, manifest
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import WITHOUT_WAIT
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem
from gemmdb.lookup import expected
from gemmdb.lookup.expected import with_expectations
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.verdict import decide_all
from gemmdb.table.writer import Store
from tools.release import ship

TAKEN = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two archives of the first problems of the newest results."""
    part = results.archives(results.newest())[0]
    groups = groupby(archive.read(part), key=lambda row: row.problem)
    rows = [row for _, group in islice(groups, TAKEN) for row in group]
    with Store.open(tmp_path / "some.db") as store:
        store.add_runs(archive.runs(part))
        store.add(rows)
        store.refresh()
    assert len(archive.write(tmp_path / "some.db", tmp_path / "rows", len(rows) // 2)) == 2
    return tmp_path / "rows"


def test_every_results_folder_says_what_made_its_rows() -> None:
    for path in results.RESULTS.glob(f"*/{results.ARCHIVES}"):
        assert path.stat().st_size < 15 * 2**20
        assert {row.run for row in islice(archive.read(path), 500)} <= {run["run"] for run in archive.runs(path)}
        assert all(run.get("command") for run in archive.runs(path))


def test_the_table_is_rebuilt_from_its_archives(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "tables" / "shipped.db"
    out.parent.mkdir()
    ship.main(argparse.Namespace(folder=[folder], out=out))
    with Table.open(out) as shipped, Table.open(tmp_path / "some.db") as whole:
        problems = {row.problem: row.device for row in whole.measurements()}
        assert len(problems) == TAKEN
        assert all(shipped.verdicts(*pair) == whole.verdicts(*pair) for pair in problems.items())
        (runs,) = {tuple(sorted(run)) for run in shipped.provenance()}
        assert {"command", "timings", "table"} <= set(runs)
        assert [len(run["timings"]) for run in shipped.provenance()] == [2] * len(shipped.provenance())
        assert shipped.packed
        assert all(shipped.record(*pair) == with_expectations(whole.record(*pair), *pair) for pair in problems.items())
    assert (out.parent / manifest.NAME).read_text() == manifest.text(out.parent)
    before = out.read_bytes()
    ship.main(argparse.Namespace(folder=[folder], out=out))
    assert out.read_bytes() == before


def algorithm(row: Measurement, tile: int, ratio: float, status: Status = Status.OK, split_k: int = 1) -> Measurement:
    """A row of an algorithm of cuBLASLt, timed like a row of ATen."""
    config = Config.of(
        "cublaslt", "matmul", algo=66, tile=tile, stages=35, split_k=split_k, reduction=0, swizzle=0, custom=1, inner=0,
        cluster=4,
    )  # fmt: skip
    us = row.times.aten_us * ratio
    times = Times(us, us * 0.999, us * 1.001, 15, row.times.aten_us)
    return replace(row, config=config, times=times, status=status)


def test_only_the_algorithms_of_cublaslt_that_matter_are_shipped(folder: Path) -> None:
    row = next(row for row in archive.read(next(folder.glob(results.ARCHIVES))) if row.config == ATEN and row.times)
    assert row.times is not None
    estimate, wrong = (algorithm(row, 9, 0.3, Status.SLOW), replace(row, config=algorithm(row, 10, 1.0).config))
    wrong = replace(wrong, status=Status.WRONG, times=None, detail="")
    failed = replace(wrong, config=algorithm(row, 11, 1.0).config, status=Status.ERROR)

    def left(*rows: Measurement) -> list[object]:
        kept = ship.fewest([row, estimate, wrong, failed, *rows])
        verdicts = [one._replace(ties=one.ties[:1]) for one in decide_all([row, *rows])]
        assert [one._replace(ties=one.ties[:1]) for one in decide_all(kept)] == verdicts
        return [one.config.values.get("tile") for one in kept]

    assert left(*(algorithm(row, tile, 1 - tile / 10) for tile in range(1, 6))) == [None, 10, 5]
    assert left(algorithm(row, 1, 1.3), algorithm(row, 2, 1.4)) == [
        None,
        10,
        1,
    ]  # ATen wins: it says that some were tried.
    assert left(algorithm(row, 1, 0.700, split_k=2), algorithm(row, 2, 0.702)) == [None, 10, 1, 2]
    assert left(algorithm(row, 1, 1.3, Status.SLOW)) == [None, 10, 9]


def test_what_no_graph_asks_for_is_not_shipped() -> None:
    row = Problem.gemm("addmm", m=1, n=64, k=64)
    assert ship.asked(row)
    assert ship.asked(Problem.gemm("addmm", m=2, n=64, k=64, bias="full"))
    assert ship.asked(Problem.gemm("mm", m=2, n=64, k=64, fusion="pointwise"))
    assert not ship.asked(replace(row, bias=Bias("full", "bf16", 8)))
    assert ship.asked(replace(row, fusion="pointwise"))
    assert not ship.asked(Problem.gemm("addmm", m=2, n=64, k=64, dtype="fp32", fusion="pointwise"))
    assert ship.asked(Problem.gemm("addmm", m=2, n=64, k=64, dtype="fp32", fusion="pointwise:math:kept"))
    with Table.open(SHIPPED) as shipped:
        assert all(ship.asked(problem) for problem, _ in shipped.pairs())


def test_a_table_that_does_not_fit_is_not_shipped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "MOST_BYTES", 4096)
    with pytest.raises(SystemExit, match="larger than 4096 bytes"):
        ship.main(argparse.Namespace(folder=[folder], out=tmp_path / "small.db"))
    assert not (tmp_path / "small.db").exists()


def test_the_report_gives_the_figures_of_the_rows(folder: Path, tmp_path: Path) -> None:
    found = report.report(report.read(folder), folder)
    json.dumps(found)
    with Table.open(tmp_path / "some.db") as whole:
        pairs = {row.problem: row.device for row in whole.measurements()}
        verdicts = [verdict for pair in pairs.items() if (verdict := whole.verdict(*pair))]
    mixed = [verdict.speedup for verdict in verdicts if verdict.problem.op == "mixed_mm"]
    figure = next(one for one in found["figures"] if one["problems"] == "mixed_mm, all M")
    assert figure["number"] == len(mixed) > 0
    assert figure["speedup"] == pytest.approx(math.prod(mixed) ** (1 / len(mixed)))
    assert figure["worst"] == min(mixed)
    assert sum(count for *_, count in found["picks"]) == sum(one["number"] for one in found["classes"]) == TAKEN
    text = report.markdown(found)
    assert f"| mixed_mm, all M | {len(mixed)} | {figure['speedup']:.3f}x | 1.80x |" in text


def test_builds_one_after_the_other_cost_what_all_of_them_took(folder: Path) -> None:
    one = {"measured": 10, "rows": 900, "seconds": 5.0, "lane_seconds": 16.0, "busy_seconds": 8.0}
    idle = {"measured": 0, "rows": 0, "seconds": 1.0, "lane_seconds": 0.0, "busy_seconds": None}
    (folder / "build.json").write_text(json.dumps([one, idle, one]))
    found = report.report(report.read(folder), folder)
    assert found["build"]["gpu_seconds_per_problem"] == pytest.approx(32 / TAKEN)  # The second confirmed some again.
    assert found["build"]["busy_share"] == pytest.approx(0.5)
    assert "gpu_seconds_per_problem 2.667" in report.markdown(found)
    assert report.cost([idle], TAKEN) is None
    assert report.cost([one], 0) is None


def test_picks_that_were_not_timed_as_emitted_code_are_counted(folder: Path) -> None:
    found = report.read(folder)
    for verdict in found.verdicts:
        rows = [row for row in report.rows_of(folder) if row.problem == verdict.problem]
        emitted = any(row.config == verdict.pick and row.detail == "emitted" for row in rows)
        assert bool(report.unemitted(verdict, rows)) == (verdict.pick.backend != "aten" and not emitted)
        assert report.unemitted(verdict, [replace(row, detail="") for row in rows]) or verdict.pick.backend == "aten"
    assert any(verdict.pick.backend != "aten" for verdict in found.verdicts)


def line(stratum: str, problem: str, us: dict[str, float], **rest: Any) -> dict[str, Any]:
    ways = {name: {"seconds": 1.0, "error": 0.001} for name in us}
    times = {name: [0.99 * value, value, 1.01 * value] for name, value in us.items()}
    return {"stratum": stratum, "problem": problem, "tolerance": 0.01, "ways": ways, "us": times, **rest}


def test_strata_count_by_their_share_of_the_table() -> None:
    about = {"population": dict.fromkeys(STRATA, 0), "date": "now", "number": 1, "seed": 1}
    about["population"] |= {"mixed_mm, M <= 64": 300, "mixed_mm, M > 64": 100}
    wrong = line("mixed_mm, M > 64", "b", {"default": 1.0, "autotune": 1.0, "gemmdb": 100.0})
    wrong["ways"]["gemmdb"]["error"] = 0.5
    large = "mixed_mm m=1 n=14336 k=4096 a=bf16:row:8 b=int8:col:16 out=bf16 bias=none scalars=unit fusion=scale "
    large += "fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0"
    us = {"default": 16.0, "autotune": 8.0, "gemmdb": 4.0, "floor": 3.0, "linear": 40.0}
    found = peers_report.summary([
        about,
        line("mixed_mm, M <= 64", large, us),
        line("mixed_mm, M > 64", "b", {"default": 10.0, "autotune": 10.0, "gemmdb": 10.0}),
        wrong,
        {"stratum": "int_mm", "problem": "c", "failure": "the process ended with code -11"},
    ])  # fmt: skip
    figures = {one["problems"]: one for one in found["figures"]}
    assert figures["mixed_mm, all M"]["autotune"] == pytest.approx(2 ** (300 / 400))
    assert figures["mixed_mm, M <= 64"]["default"] == pytest.approx(4.0)
    assert "int_mm, with and without scale" not in figures
    (floor,) = found["floors"]
    assert floor["problems"] == "mixed_mm, M <= 16, weight >= 48 MB"
    assert floor["share"] == pytest.approx(0.75)
    assert found["linear"]["gain"] == pytest.approx(10.0)
    assert found["left_out"] == ["b: gemmdb: error 0.5", "c: the process ended with code -11"]
    assert "| mixed_mm, all M | 2 | 1.682x |  | 1.40x | 2.828x |" in "\n".join(peers_report.markdown(found))
    assert peers_report.summary([about]) is None


def test_a_figure_says_how_far_another_sample_could_be() -> None:
    about = {"population": {**dict.fromkeys(STRATA, 0), "int_mm": 9}, "date": "now", "number": 1, "seed": 1}
    drawn = [
        line("int_mm", str(us), {"default": 1.0, "autotune": us, "gemmdb": 1.0}) for us in (1.0, math.e, math.e**2)
    ]
    (figure,) = peers_report.summary([about, *drawn])["figures"]
    assert figure["default_interval"] == [1.0, 1.0]
    error = 1.959964 / math.sqrt(3)
    assert figure["autotune_interval"] == pytest.approx([math.exp(1 - error), math.exp(1 + error)])


def test_a_sample_is_the_same_every_time_and_balanced_from_the_start() -> None:
    strata = {name: [Problem.gemm("mm", m=m, n=n, k=8) for m in range(1, 60)] for n, name in ((8, "one"), (16, "two"))}
    drawn = peers.draw(strata, 40, 7)
    assert drawn == peers.draw(strata, 40, 7) != peers.draw(strata, 40, 8)
    assert len(set(drawn)) == 80
    assert [name for name, _ in drawn[:4]] == ["one", "two", "one", "two"]
    assert len(peers.draw({"few": strata["one"][:3]}, 40, 7)) == 3


def test_the_usual_spelling_is_the_one_that_inductors_pattern_takes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.utils import counters

    from benchmarks.h200 import peers_worker
    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.tolerance import tolerance

    problem = Problem.gemm("mixed_mm", m=4, n=64, k=128, fusion="scale")
    made = operands(problem, torch.device("cpu"), 1)
    taken = {}
    for name, (make, how) in peers_worker.ways(problem, tmp_path / "none.db").items():
        if name in ("default", "linear"):
            torch._dynamo.reset()
            counters.clear()
            module = make(made)
            result = torch.compile(module, **how)(*module.inputs)
            taken[name] = counters["inductor"]["woq_matcher_count"]
            assert reference(problem, made).error(result.flatten(0, -2)) <= tolerance(problem)
    assert taken == {"default": 1, "linear": 1}  # On a GPU, the default spells a cast before the transposition.
    assert "linear" not in peers_worker.ways(problem.resized(64, 64, 128), tmp_path / "none.db")


def test_rows_of_other_sources_and_of_illegal_configs_are_not_shipped() -> None:
    batch = Problem.gemm("bmm", m=8, n=64, k=64, batch=4)
    kit, protocol = Kit(), Protocol("graph", "cold", 20, 30, version=3)
    new, old = (replace(kit.new, source=source) for source in (gpu.make("batch").spec.digest(), "0" * 16))
    row = kit.row(gpu.make("batch"), problem=batch, device=H200, protocol=protocol, toolchain=new)
    assert ship.holds(row)
    assert not ship.holds(replace(row, toolchain=old))
    assert not ship.holds(replace(row, config=gpu.make("batch", stages=8, block_n=256, block_m=128)))


def test_rows_of_kernels_that_did_not_wait_are_not_shipped() -> None:
    problem = Problem.gemm("mixed_mm", m=64, n=4096, k=4096, weight_dtype="int4", packing="low-first", zeros="none")
    kit, protocol = Kit(), Protocol("graph", "cold", 20, 30, version=3)
    configs = [gpu.make("int4", **changes) for changes in ({}, {"warps": 2}, {"scaled": "sums"}, {"order": "memory"})]
    row = kit.row(configs[0], problem=problem, device=H200, protocol=protocol)
    for source, shipped in ((configs[0].spec.digest(), [True] * 4), (WITHOUT_WAIT[-1], [False, True, True, True])):
        at = replace(row, toolchain=replace(kit.new, source=source))
        assert [ship.holds(replace(at, config=one)) for one in configs] == shipped


def test_another_table_is_packed_anew_when_the_cost_model_expects_other_times(tmp_path, monkeypatch):
    whole, path = SHIPPED.with_name("sm80-nvidia-a100-sxm4-80gb.db"), tmp_path / "a100.db"
    shutil.copyfile(whole, path)
    before = path.read_bytes()
    ship.pack_others(tmp_path)
    assert path.read_bytes() == before
    monkeypatch.setattr(expected, "VERSION", -1)
    expected._stamp.cache_clear()
    ship.pack_others(tmp_path)
    with closing(Table.open(path)) as table, closing(Table.open(whole)) as old:
        assert [ship.is_current(one) for one in (table, old)] == [True, False]
        assert list(table.pairs()) == list(old.pairs())
        for problem, device in list(old.pairs())[::50]:
            assert table.verdicts(problem, device) == old.verdicts(problem, device)
            times = [[(one.config, one.code) for group in known.record(problem, device).groups for one in group.times]
                     for known in (table, old)]  # fmt: skip
            assert times[0] == times[1]
    expected._stamp.cache_clear()
