"""Rung `model` on a real GPU: what it serves is right and faster, and on an arch that is here a build measures."""

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb.devices import detect
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.settings import Policy
from gemmdb.table.reader import Table

pytestmark = pytest.mark.usefixtures("clean")
POLICY = Policy(near=False)
SIZES = [(1, 6400, 3328), (16, 6400, 3328), (64, 3328, 6400)]
"""N and K that no table has."""


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_a_weight_only_gemm_off_the_table_is_served_by_the_model_and_right(m: int, n: int, k: int) -> None:
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    weight = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    scale = torch.rand(n, device="cuda", dtype=torch.float16) * 0.01
    gemmdb.inductor.enable(on_miss="aten", policy=replace(POLICY, compile_cost=1))
    found = torch.compile(lambda a: torch.mm(a, weight.t().to(a.dtype)) * scale)(x)
    wanted = (x.double() @ weight.t().double()) * scale.double()
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (lookup,) = gemmdb.inductor.stats()["products"]
    assert (lookup["rung"], lookup["backend"]) == ("model", "triton")


def test_a_build_with_modelled_measures_where_the_gpu_is(tmp_path: Path) -> None:
    shapes, gpu = tmp_path / "one.json", detect.cuda()
    assert gpu is not None
    shapes.write_text('[{"op": "mixed_mm", "m": 16, "n": 1024, "k": 1024, "fusion": "scale"}]')
    report = build(BuildRequest(arch=gpu.arch, shapes=str(shapes), out=tmp_path / "t.db", modelled=True))
    assert not report.modelled
    with Table.open(report.out) as table:
        assert {row.protocol.clock for row in table.measurements()} == {"graph"}
