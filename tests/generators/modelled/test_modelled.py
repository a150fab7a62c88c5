"""`build --modelled`: tables for GPUs that are not here. Times are the model's; everything else is the real thing."""

import json
from pathlib import Path

import pytest

from gemmdb import lookup
from gemmdb.devices import registry
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files.verify import verify
from gemmdb.generators.modelled import PROTOCOL, cross_compile, space
from gemmdb.generators.modelled.table import MAX_CONFIGS
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.settings import Policy, Settings, shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table

ARCHS = ("sm80", "sm89", "sm100")
SHAPES = [
    {"op": ["mm", "addmm", "mixed_mm"], "m": [1, 64], "n": 1024, "k": 4096},
    {"op": "int_mm", "m": 64, "n": 1024, "k": 4096, "fusion": "scale"},
    {"op": "mm", "m": 16, "n": 1024, "k": 4096, "dtype": "fp32"},
]


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    """A modelled build of a few problems of every op."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps(SHAPES))
    return lambda arch: BuildRequest(arch=arch, shapes=str(shapes), out=tmp_path / "t.db", modelled=True)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_row_is_marked_legal_and_has_a_time(request_of, arch):
    report = build(request_of(arch))
    assert (report.device.arch, report.problems, report.measured, report.modelled) == (arch, 7, 7, True)
    assert any("modelled, not measured" in line for line in report.warnings)
    assert any("1 problem is left out" in line for line in report.warnings)
    assert list(verify(report.out)) == []
    with Table.open(report.out) as table:
        (summary,) = table.summary()
        assert (summary["arch"], summary["origin"]) == (arch, "modelled")
        assert summary["problems"] == {"addmm": 2, "int_mm": 1, "mixed_mm": 2, "mm": 2}
        (run,) = table.provenance()
        assert run["model"]["fitted"]["devices"] == ["NVIDIA H200"]
        rows = list(table.measurements())
    assert {row.protocol for row in rows} == {PROTOCOL}
    assert len([row for row in rows if row.config == ATEN]) == 7
    for row in rows:
        assert row.config.rejection(row.problem, report.device) is None
        if arch != "sm100":
            assert row.config.values.get("load") != "tma"
            assert row.config.kernel != "persistent"


def test_a_second_build_adds_nothing_and_lookup_and_explain_say_that_it_is_modelled(request_of):
    report = build(request_of("sm80"))
    again = build(request_of("sm80"))
    assert (again.before, again.measured, again.rows) == (7, 0, 0)
    with Table.open(report.out) as table:
        assert len(table.provenance()) == 1
    catalog = Catalog.load(Settings((), report.out.parent / "user.db", "aten"), tables=[report.out])
    query = Query(Problem.gemm("mixed_mm", m=64, n=1024, k=4096), report.device)
    hit = lookup.answer(query, catalog, Policy())
    assert (hit.rung, hit.evidence["modelled"], hit.table) == ("model", True, str(report.out))
    exact, *_, model = lookup.explain(query, catalog, Policy())
    assert exact.hit is None
    assert "modelled, not measured" in model.reason
    catalog.close()


@pytest.mark.parametrize("arch", ARCHS)
def test_candidates_are_ranked_and_within_the_arch(arch):
    device = registry.find(arch)
    for op in ("mm", "mixed_mm", "int_mm"):
        ranked = space.rank(Problem.gemm(op, m=64, n=4096, k=4096), device)
        assert len(ranked) > MAX_CONFIGS
        assert [one.us for one in ranked] == sorted(one.us for one in ranked)
        assert len({one.config for one in ranked}) == len(ranked)


def test_what_a_compiled_kernel_takes_counts():
    problem, device = Problem.gemm("mixed_mm", m=16, n=28672, k=8192), registry.find("sm80")
    first = space.rank(problem, device)[0]
    setting = space.setting_of(problem, device)
    greedy = space.compiled(first, setting, 255, int(device.figures["smem_bytes"]) - 2048)
    assert greedy.us > first.us


@pytest.mark.parametrize("name", ["sm80-nvidia-a100-sxm4-80gb", "sm89-nvidia-l4", "sm100-nvidia-b200"])
def test_the_shipped_modelled_tables_are_small_compiled_and_answer_as_a_model(name, tmp_path):
    path = shipped_tables() / f"{name}.db"
    assert path.stat().st_size < 1.5 * 2**20
    with Table.open(path, immutable=True) as table:
        (summary,) = table.summary()
        (device,) = table.devices()
        assert [run["compiled"] for run in table.provenance()] == [True]
        assert {one.protocol for pair in table.decided() for one in table.verdicts(*pair)} == {PROTOCOL}
        groups = [group for pair in table.pairs() if (one := table.record(*pair)) for group in one.groups]
        assert all(group.modelled for group in groups)
    assert summary["origin"] == "modelled"
    assert min(summary["problems"][op] for op in ("mm", "addmm", "int_mm", "mixed_mm")) >= 150
    catalog = Catalog.load(Settings((), tmp_path / "user.db", "aten"))
    problem = Problem.gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale")
    hit = lookup.answer(Query(problem, catalog.resolve(device.arch)), catalog, Policy())
    assert (hit.rung, hit.backend, Path(hit.table).name) == ("model", "triton", path.name)
    catalog.close()


@pytest.mark.skipif(not cross_compile.available(), reason="needs triton, which compiles without a GPU")
def test_cross_compiling_tells_registers_shared_memory_and_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem, device = Problem.gemm("mixed_mm", m=16, n=4096, k=4096), registry.find("sm80")
    config = space.rank(problem, device)[0].config
    fits = cross_compile.CrossCompiler(80, int(device.figures["smem_bytes"])).resources(problem, config)
    assert fits.rejected is None
    assert 16 <= fits.registers <= 255
    assert 0 < fits.shared <= 163 * 1024
    tight = cross_compile.CrossCompiler(80, fits.shared - 1).resources(problem, config)
    assert "bytes of shared memory" in tight.rejected.reason
