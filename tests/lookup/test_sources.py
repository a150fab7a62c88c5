"""Rows of our own kernels hold while the source of the kernel does."""

from dataclasses import replace

import pytest

from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import answer
from gemmdb.settings import Policy, shipped_tables
from gemmdb.table.reader import Table

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)
RUNNING = Toolchain(torch="2.11.0", triton="3.6.0", cuda="13.0")
TILE = Config.of(
    "triton", "tile", block_m=16, block_n=64, block_k=128, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
FORMER = next(old for old, new in TILE.spec.equivalent.items() if new == triton.digest("tile"))


def served(lab, source, m=16, ratio=0.97):
    problem = lab.problem(n=4096, k=4096, dtype="bf16", m=16)
    rows = [
        replace(row, toolchain=replace(RUNNING, source=source if row.config == TILE else ""))
        for row in lab.rows(problem, {TILE: ratio}, device=GPU)
    ]
    policy = Policy(near_loss=0.2, model=False, confirm=True)
    return answer(lab.query(problem.resized(m, 4096, 4096), GPU), lab.catalog(rows), policy, RUNNING)


@pytest.mark.parametrize("m", [16, 24])
@pytest.mark.parametrize("source", ["", FORMER, triton.digest("tile")])
def test_rows_of_the_present_kernel_are_verified(lab, source, m):
    hit = served(lab, source, m, ratio=0.9)
    assert (hit.config, hit.evidence["verified"]) == (TILE, True)


@pytest.mark.parametrize("m", [16, 24])
def test_rows_of_another_kernel_need_the_gain_of_unverified_ones(lab, m):
    hit = served(lab, "0123456789abcdef", m)
    assert (hit.config, hit.evidence["verified"]) == (ATEN, False)
    hit = served(lab, "0123456789abcdef", m, ratio=0.8)
    assert (hit.config, hit.evidence["verified"]) == (TILE, False)


def test_a_row_of_another_template_does_not_hold():
    assert not TILE.is_current(triton.digest("gemv"))


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
