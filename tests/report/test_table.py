"""The document of a table's page: the shipped H200 table, and tables of a few rows."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from kit.devices import H200
from kit.lab import CPU, cpp, problem, rows
from kit.strategies import problems

from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.report import rows as reported
from gemmdb.report import table
from gemmdb.report.rows import LAUNCH_US, floor_us, peak
from gemmdb.settings import shipped_tables
from gemmdb.table.measurement import Measurement
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

FAST, OTHER = cpp(threads_m=1), cpp(threads_m=2)
RUN = {"command": ["gemmdb", "build"], "started": "2026-01-02T03:04:05+00:00", "request": {"shapes": "x"}}


def written(path: Path, *found: Measurement, run: dict[str, object] = RUN) -> Path:
    with Store.open(path) as store:
        store.begin_run(run)
        store.add(found)
        store.refresh()
    return path


def rows_of(path: Path) -> list[reported.Row]:
    with Table.open(path) as opened:
        return list(reported.rows(opened))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """16 rows twice as fast as ATen, 32 rows where nothing beats it, and 16 rows with a hot cache."""
    return written(
        tmp_path / "small.db",
        *rows(problem(16), {FAST: 0.5, OTHER: 0.502}),
        *rows(problem(32), {FAST: 1.5}, aten_us=200.0),
        *rows(problem(16), {FAST: 0.8}, l2="hot"),
    )


def test_the_rows_are_what_lookups_get(small: Path) -> None:
    listed = {(row.verdict.problem.m, row.verdict.protocol.l2): row for row in rows_of(small)}
    assert set(listed) == {(16, "cold"), (16, "hot"), (32, "cold")}
    fast = listed[16, "cold"]
    assert (fast.gain, fast.verdict.pick.backend, len(fast.verdict.ties)) == (2.0, "cpp", 2)
    assert fast.interval[0] < 2.0 < fast.interval[1]
    assert listed[32, "cold"].interval == (1.0, 1.0)
    found = table.document(small)
    assert found["backends"] == {"cpp": 2, "aten": 1}
    assert found["gain"] == pytest.approx((2.0 * 1.25) ** (1 / 3))
    assert (found["beaten"], found["problems"], found["partial"]) == (2, 2, False)


def test_a_gain_within_its_spread_beats_nothing(tmp_path: Path) -> None:
    noisy = written(tmp_path / "noisy.db", *rows(problem(16), {FAST: 0.97}, spread=0.04))
    assert all(row.interval[0] <= 1 for row in rows_of(noisy))
    assert table.document(noisy)["beaten"] == 0


def test_the_newest_toolchain_speaks(tmp_path: Path) -> None:
    old = rows(problem(16), {FAST: 0.5}, torch="2.9.0", run="old")
    new = rows(problem(16), {FAST: 0.25}, torch="2.13.0", run="new")
    (row,) = rows_of(written(tmp_path / "both.db", *old, *new))
    assert (row.gain, row.verdict.toolchain.torch) == (4.0, "2.13.0")


def test_a_large_table_gives_a_part_and_says_so(small: Path) -> None:
    found = table.document(small, limit=2)
    assert (found["verdicts"], found["partial"]) == (2, True)


def test_an_empty_table_has_a_report(tmp_path: Path) -> None:
    found = table.document(written(tmp_path / "empty.db"))
    assert (found["verdicts"], found["gain"], found["spread"], found["columns"]) == (0, 1.0, 0.0, {})


def test_a_document_can_be_read_back(small: Path) -> None:
    found = json.loads(json.dumps(table.document(small), allow_nan=False))
    columns, texts = found["columns"], found["texts"]
    assert {len(column) for column in columns.values()} == {3}
    for place, row in enumerate(rows_of(small)):
        assert texts[columns["op"][place]] == "mm"
        text = f"mm m={columns['m'][place]} n=256 k=256 {texts[columns['family'][place]]}"
        assert Problem.parse(text) == row.verdict.problem
        assert texts[columns["pick"][place]] == row.verdict.pick.text
        assert [texts[tie] for tie in columns["ties"][place]] == [tie.text for tie in row.verdict.ties[1:]]
    assert (found["runs"][0]["day"], found["runs"][0]["shapes"]) == ("2026-01-02", "x")


def test_a_run_that_nests_deeply_is_cut() -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"x": deep}
    assert "too deeply" in table._run({"run": "r", "y": deep})["text"]
    assert len(table._run({"z": "a" * 10_000})["text"]) < 4_000


def test_the_shipped_table() -> None:
    path = shipped_tables() / "sm90-nvidia-h200.db"
    found, listed = table.document(path), rows_of(path)
    manifest = json.loads((path.parent / "manifest.json").read_text())["tables"]
    device = next(one for one in manifest if one["file"] == path.name)["devices"][0]
    assert (found["problems"], found["measurements"]) == (sum(device["problems"].values()), device["measurements"])
    assert len(listed) >= 0.99 * found["problems"]
    assert found["verdicts"] == min(len(listed), table.MAX_VERDICTS)
    assert found["partial"] == (len(listed) > table.MAX_VERDICTS)
    assert 1.2 < found["gain"] < 2.5
    assert {"triton", "cutlass", "cublaslt", "aten"} == set(found["backends"])
    beyond = sum(row.verdict.expected_us < 0.75 * row.floor_us for row in listed)
    assert beyond < 0.01 * len(listed), "the floor is no floor"
    verdicts = [row.verdict for row in listed]
    with Table.open(path) as opened:
        for problem, device in islice(opened.decided(), 50):
            verdict = opened.verdict(problem, device)
            assert verdict is None or verdict in verdicts


@settings(max_examples=60, deadline=None)
@given(problems)
def test_the_floor_is_positive_and_grows_with_the_work(one: Problem) -> None:
    assert floor_us(one, H200) >= LAUNCH_US
    if not one.spec.batched:
        assert floor_us(one.resized(one.m // 2, one.n, one.k), H200) <= floor_us(one, H200)
    assert peak(one, CPU)[1] > 0
    assert math.isfinite(floor_us(one, CPU))


@settings(max_examples=60, deadline=None)
@given(problems)
def test_short_names_are_short_and_have_the_sizes(one: Problem) -> None:
    name = names.short(one)
    assert len(name) < len(one.text)
    assert f"{one.m}x{one.n}x{one.k}" in name
    assert name.startswith(one.op)


def test_short_names() -> None:
    one = Problem.gemm("addmm", m=784, n=1536, k=384, constant_weight=True, fusion="pointwise")
    assert names.short(one) == "addmm 784x1536x384 bf16 +bias +pointwise, constant"
    assert names.short(Problem.gemm("mixed_mm", m=1, n=2, k=3)) == "mixed_mm 1x2x3 bf16 x int8"
    assert names.short(Problem.gemm("bmm", m=1, n=2, k=3, batch=8)) == "bmm 8 of 1x2x3 bf16"
    assert names.kernel(ATEN) == "aten:default"
