"""What an op adds to the key tells its GEMMs apart in a file, and a text without sense is refused."""

from __future__ import annotations

import pytest
from kit.tables import edit

from gemmdb import Config, Problem, TableError
from gemmdb.generators.files import archive
from gemmdb.generators.files.diff import diff
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.verify import verify
from gemmdb.kernels.config import ATEN
from gemmdb.key import canonical
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

BMM = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
_FP8 = {"block_m": 64, "block_n": 64, "block_k": 128, "group_m": 8, "stages": 3, "warps": 4}
SCALED, MAPPED = Config.of("triton", "inductor_mm", **_FP8), Config.of("triton", "inductor_scaled_tma", **_FP8)


def bmm(batch: int) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=16, n=64, k=64)


def scaled(scales: str, fast: bool = False) -> Problem:
    return Problem.gemm("scaled_mm", m=16, n=64, k=64, scales=scales, fast_accum=fast)


CASES = {
    "bmm": ({bmm(8): BMM, bmm(64): ATEN}, bmm(9), BMM),
    "scaled_mm": ({scaled("row"): MAPPED, scaled("tensor"): SCALED, scaled("row", True): ATEN}, scaled("tensor", True),
                  MAPPED),
}  # fmt: skip
"""By op: problems that differ only in what it adds to the key, with the winner of each; a problem that no row is about;
a config that no other op takes."""


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def rows(kit, case):
    """A row of ATen for each problem, and one of a config that is twice as fast, or half as fast where ATen wins."""
    winners, _, alone = case
    found = [kit.row(problem=problem, device=kit.other) for problem in winners]
    for problem, config in winners.items():
        us = 20.0 if config == ATEN else 5.0
        found.append(kit.row(alone if config == ATEN else config, us, problem=problem, device=kit.other))
    return found


def test_each_has_its_own_verdict(kit, case, tmp_path):
    winners, absent, _ = case
    path = kit.write(tmp_path / "a.db", rows(kit, case))
    assert verify(path) == []
    with Table.open(path) as table:
        found = {problem: table.verdict(problem, kit.other) for problem in winners}
        assert {problem: verdict.pick for problem, verdict in found.items()} == winners
        assert all(verdict.problem == problem for problem, verdict in found.items())
        assert table.verdict(absent, kit.other) is None
        (entry,) = (one for one in table.summary() if one["device"] == kit.other.sku)
        assert entry["problems"] == {absent.op: len(winners)}
        assert {problem.op for problem in table.families()} == {absent.op}


def test_merging_and_archiving_keep_them_apart(kit, case, tmp_path):
    every, (first, *others) = rows(kit, case), case[0]
    one = kit.write(tmp_path / "one.db", [row for row in every if row.problem == first])
    two = kit.write(tmp_path / "two.db", [row for row in every if row.problem != first])
    whole = kit.write(tmp_path / "whole.db", every)
    merge([one, two], tmp_path / "merged.db")
    assert kit.content(tmp_path / "merged.db") == kit.content(whole)
    found = diff(one, two)
    assert [text for text, _ in found.only_a] == [first.text]
    assert {text for text, _ in found.only_b} == {problem.text for problem in others}
    archive.restore(archive.write(whole, tmp_path / "parts"), tmp_path / "again.db")
    with Store.open(tmp_path / "again.db") as store:
        store.refresh()
    assert kit.content(tmp_path / "again.db") == kit.content(whole)


def test_a_text_that_is_no_gemm_is_refused(kit, tmp_path):
    """The key stays that of the text, as whoever made the file would see to."""
    path = kit.write(tmp_path / "a.db", rows(kit, CASES["bmm"]))
    text = bmm(8).text.replace("batch=8", "batch=99999999999")
    key = canonical.key(text)
    edit(
        path,
        ("UPDATE problem SET id = ?, text = ? WHERE id = ?", (key, text, bmm(8).key)),
        ("UPDATE measurement SET problem = ? WHERE problem = ?", (key, bmm(8).key)),
    )
    with Table.open(path) as table, pytest.raises(TableError):
        list(table.measurements())
    assert verify(path)


def test_a_config_of_one_op_solves_no_other(kit, case, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row(device=kit.other), kit.row(case[2], 5.0, device=kit.other)])
    refused = f"triton:{case[2].kernel} does not solve mm"
    with Table.open(path) as table, pytest.raises(TableError, match=refused):
        table.verdict(kit.problem, kit.other)
