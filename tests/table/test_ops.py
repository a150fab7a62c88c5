"""What an op adds to the key tells its products apart in a file, and a text without sense is refused: each op alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

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


@dataclass(frozen=True)
class Case:
    """Problems of one op that differ only in what the op adds to the key, with the winner of each; a problem that no
    row is about; a config that no other op takes."""

    winners: Mapping[Problem, Config]
    absent: Problem
    alone: Config

    @property
    def first(self) -> Problem:
        """The problem whose text the tests spoil."""
        return next(iter(self.winners))


def _bmm(batch: int) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=16, n=64, k=64)


def _scaled(scales: str, fast: bool = False) -> Problem:
    return Problem.gemm("scaled_mm", m=16, n=64, k=64, scales=scales, fast_accum=fast)


CASES = {
    "bmm": Case({_bmm(8): BMM, _bmm(64): ATEN}, _bmm(9), BMM),
    "scaled_mm": Case(
        {_scaled("row"): MAPPED, _scaled("tensor"): SCALED, _scaled("row", fast=True): ATEN},
        _scaled("tensor", fast=True), MAPPED,
    ),
}  # fmt: skip
SPOILT = [
    *(("bmm", "batch=8", f"batch={batch}") for batch in ("99999999999", "2147483648", "-1", "08", "", "x")),
    ("scaled_mm", "scales=row", "scales=column"),
    ("scaled_mm", "scales=row", "scales="),
    ("scaled_mm", " scales=row fast=0", ""),
    ("scaled_mm", "fast=0", "fast=7"),
    ("scaled_mm", "a=fp8_e4m3", "a=fp8_e4m3fnuz"),
    ("scaled_mm", "b=fp8_e4m3:col", "b=fp8_e4m3:row"),
    ("scaled_mm", "out=bf16", "out=fp8_e4m3"),
]


def rows(kit, case):
    """A row of ATen for each problem, and one of a config that is twice as fast, or half as fast where ATen wins."""
    found = [kit.row(problem=problem, device=kit.other) for problem in case.winners]
    for problem, config in case.winners.items():
        us = 20.0 if config == ATEN else 5.0
        found.append(kit.row(case.alone if config == ATEN else config, us, problem=problem, device=kit.other))
    return found


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_each_problem_has_its_own_verdict(kit, case, tmp_path):
    path = kit.write(tmp_path / "a.db", rows(kit, case))
    assert verify(path) == []
    with Table.open(path) as table:
        found = {problem: table.verdict(problem, kit.other) for problem in case.winners}
        assert {problem: verdict.pick for problem, verdict in found.items()} == case.winners
        assert all(verdict.problem == problem for problem, verdict in found.items())
        assert table.verdict(case.absent, kit.other) is None
        (entry,) = (one for one in table.summary() if one["device"] == kit.other.sku)
        assert entry["problems"] == {case.first.op: len(case.winners)}
        assert {problem.op for problem in table.families()} == {case.first.op}


def test_merging_and_archiving_keep_them_apart(kit, case, tmp_path):
    every = rows(kit, case)
    one = kit.write(tmp_path / "one.db", [row for row in every if row.problem == case.first])
    two = kit.write(tmp_path / "two.db", [row for row in every if row.problem != case.first])
    whole = kit.write(tmp_path / "whole.db", every)
    merge([one, two], tmp_path / "merged.db")
    assert kit.content(tmp_path / "merged.db") == kit.content(whole)
    found = diff(one, two)
    assert [text for text, _ in found.only_a] == [case.first.text]
    assert {text for text, _ in found.only_b} == {problem.text for problem in case.winners if problem != case.first}
    archive.restore(archive.write(whole, tmp_path / "parts"), tmp_path / "again.db")
    with Store.open(tmp_path / "again.db") as store:
        store.refresh()
    assert kit.content(tmp_path / "again.db") == kit.content(whole)


@pytest.mark.parametrize(("op", "before", "after"), SPOILT)
def test_a_text_that_is_no_product_is_refused(kit, tmp_path, op, before, after):
    case = CASES[op]
    path = kit.write(tmp_path / "a.db", rows(kit, case))
    assert before in case.first.text
    with sqlite3.connect(path) as db:
        # The key stays that of the text, as whoever made the file would see to.
        text = case.first.text.replace(before, after)
        key = canonical.key(text)
        db.execute("UPDATE problem SET id = ?, text = ? WHERE id = ?", (key, text, case.first.key))
        db.execute("UPDATE measurement SET problem = ? WHERE problem = ?", (key, case.first.key))
    with Table.open(path) as table, pytest.raises(TableError):
        list(table.measurements())
    assert verify(path)


def test_a_config_of_one_op_solves_no_other(kit, case, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row(device=kit.other), kit.row(case.alone, 5.0, device=kit.other)])
    refused = f"triton:{case.alone.kernel} does not solve mm"
    with Table.open(path) as table, pytest.raises(TableError, match=refused):
        table.verdict(kit.problem, kit.other)
