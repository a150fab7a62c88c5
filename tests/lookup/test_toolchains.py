"""What of a table measured on torch 2.11 with triton 3.6 and CUDA 13.0 holds on later software, and what needs more.
Rows of our own kernels hold while the source of the kernel does."""

from dataclasses import replace
from pathlib import Path

import pytest
from kit.gpu import make

from gemmdb import lookup
from gemmdb.hit import Hit
from gemmdb.kernels import cutlass, inductor
from gemmdb.kernels import triton as kernels_triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.settings import Policy, data_home, shipped_tables
from gemmdb.table.reader import Table

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)
MEASURED = Toolchain("2.11.0", "3.6.0", "13.0", "4.2.0.0", "580.1", "0.1.0")
LATER = Toolchain("2.15.0", "3.9.0", "13.2", "4.2.0.0", "590.2", "0.3.0")
TILE = make("tile", block_k=128)
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=128, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="cooperative",
    split_k=1, swizzle=1, raster="auto", swap=0,
)  # fmt: skip
PADDED = Config.of("aten", "padded", multiple=8)
TEMPLATE = Config.of("triton", "inductor_mm", block_m=64, block_n=64, block_k=64, group_m=8, warps=4, stages=3)


def answer(lab, config, source, running, ratio):
    """What is served of a table with ATen and one config, and whether that counts as verified."""
    problem = lab.problem(m=256, n=4096, k=4093 if config == PADDED else 4096, dtype="bf16")
    rows = [
        replace(row, toolchain=replace(MEASURED, source=source if row.config == config else ""))
        for row in lab.rows(problem, {config: ratio}, device=GPU)
    ]
    hit = lookup.answer(lab.query(problem, GPU), lab.catalog(rows), Policy(compile_cost=10), running)
    return hit.config, hit.evidence["verified"]


@pytest.fixture
def template(monkeypatch):
    """The digest of Inductor's template as the installed torch has it."""
    monkeypatch.setattr(inductor, "digest", lambda file: "0ddad0df156c4100")
    return "0ddad0df156c4100"


@pytest.mark.parametrize(
    ("change", "backends"),
    [
        ({}, "aten triton cutlass"),
        ({"driver": "", "gemmdb": "9.0"}, "aten triton cutlass"),
        ({"triton": "4.0.0"}, "aten cutlass"),
        ({"cutlass": "4.3.0.0"}, "aten triton"),
        ({"cutlass": ""}, "aten triton cutlass"),
        ({"cuda": "12.8"}, ""),
        ({"cuda": "14.0"}, ""),
    ],
)
def test_each_kind_of_kernel_has_its_own_conditions(lab, template, change, backends):
    running = replace(LATER, **change)
    for config, source in (
        (PADDED, ""),
        (TILE, kernels_triton.digest("tile")),
        (TEMPLATE, template),
        (CUTLASS, cutlass.digest("gemm")),
    ):
        holds = config.backend in backends
        assert answer(lab, config, source, running, 0.9) == (config, holds), config
        # A gain of 4% is above the least gain, and below that of what is not verified.
        assert answer(lab, config, source, running, 1 / 1.04) == (config if holds else ATEN, holds), config


@pytest.mark.parametrize("config", [TILE, TEMPLATE, CUTLASS], ids=lambda config: config.kernel)
def test_another_source_of_the_kernel_is_not_verified(lab, template, config):
    assert answer(lab, config, "0123456789abcdef", LATER, 0.9) == (config, False)
    assert answer(lab, config, "0123456789abcdef", LATER, 1 / 1.04) == (ATEN, False)


FORMER = next(old for old, new in TILE.spec.equivalent.items() if new == kernels_triton.digest("tile"))


def served(lab, source, m, ratio, running=LATER):
    """What a row of TILE at 16 rows answers at `m` rows, measured with that source of the kernel."""
    problem = lab.problem(m=16, n=4096, k=4096, dtype="bf16")
    rows = [
        replace(row, toolchain=replace(MEASURED, source=source if row.config == TILE else ""))
        for row in lab.rows(problem, {TILE: ratio}, device=GPU)
    ]
    policy = Policy(near_loss=0.2, model=False, confirm=True)
    hit = lookup.answer(lab.query(problem.resized(m, 4096, 4096), GPU), lab.catalog(rows), policy, running)
    assert hit.rung == ("exact" if m == 16 else "near")
    return hit.config, hit.evidence["verified"]


@pytest.mark.parametrize("m", [16, 24])
def test_rows_and_neighbours_are_verified_by_the_source_of_the_kernel(lab, m):
    for source in ("", FORMER, kernels_triton.digest("tile")):
        assert served(lab, source, m, 0.9) == (TILE, True), source
    assert served(lab, "0123456789abcdef", m, 0.97) == (ATEN, False)
    assert served(lab, "0123456789abcdef", m, 0.8) == (TILE, False)
    assert served(lab, kernels_triton.digest("tile"), m, 0.8, replace(LATER, triton="4.0.0")) == (TILE, False)


@pytest.mark.parametrize("path", sorted(shipped_tables().glob("*.db")), ids=lambda path: path.name)
def test_every_kernel_source_in_a_shipped_table_is_the_present_one(path):
    with Table.open(path, immutable=True) as table:
        records = [found for pair in table.pairs() if (found := table.record(*pair))]
    entries = [one.entry for record in records for group in record.groups for one in group.times]
    pairs = {(entry.config.kernel, toolchain.source): entry.config for entry in entries
             if entry.config.backend == "triton" for toolchain in entry.toolchains}  # fmt: skip
    assert pairs
    # Inductor's templates are those of the torch that the rows were measured with, whatever is installed here.
    theirs = {pair: config for pair, config in pairs.items() if config.spec.emitted}
    assert all(source for (_, source), config in theirs.items() if config.spec.digest)
    ours = {pair: config for pair, config in pairs.items() if pair not in theirs}
    assert [pair for pair, config in ours.items() if not pair[1] or not config.is_current(pair[1])] == []


@pytest.mark.parametrize(
    ("own", "verified", "klass", "wanted"),
    [(False, False, "", True), (True, False, "", False), (True, False, "cpu-torch1.0", True), (False, True, "", False)],
)
def test_rows_that_a_build_measures_again_are_outdated(own, verified, klass, wanted):
    """A build keeps rows of the same class in its own table, whatever the source of their kernels."""
    pytest.importorskip("torch")
    running = installed("cpu")
    path = data_home() / "t.db" if own else Path("/shipped/t.db")
    evidence = {"verified": verified, "class": klass or running.klass}
    assert lookup.outdated(Hit("exact", ATEN, 10.0, 1.0, str(path), evidence), "cpu") is wanted
