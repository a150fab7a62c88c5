"""The data of a workload's and of a comparison's report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import report_files
from kit.devices import H200
from kit.lab import CPU, Lab, cpp, problem, rows

from gemmdb.errors import InputError
from gemmdb.inductor.entry.comparison import Comparison
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.outcome import NO_KERNEL, Kind
from gemmdb.report import documents, workload
from gemmdb.report.documents import comparison
from gemmdb.report.load import BusyTimes
from gemmdb.report.workload import of_workload
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import DISTURBED
from gemmdb.workload.entries import Entry, Workload, read

FAST = cpp(threads_m=1, threads_n=2, threads_k=1)
LEAVES = st.text(max_size=5) | st.floats() | st.integers() | st.booleans() | st.none()
PRODUCT = st.fixed_dictionaries(
    {"problem": st.text(max_size=5), "config": st.text(max_size=5)},
    optional=dict.fromkeys(("count", "expected_us", "speedup_vs_aten", "rung", "note", "outcome"), LEAVES),
)
FOUND = st.fixed_dictionaries(
    {"default_us": st.just(1.0) | LEAVES, "gemmdb_us": st.just(2.0) | LEAVES},
    optional={
        "error": LEAVES,
        "together_us": LEAVES,
        "products": st.lists(PRODUCT, max_size=3) | LEAVES,
        "configs": st.dictionaries(st.text(max_size=5), LEAVES) | LEAVES,
        "slower": st.dictionaries(st.text(max_size=5), LEAVES) | LEAVES,
    },
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def test_the_reason_is_of_the_step_that_answers(lab: Lab) -> None:
    """The kernel is fast at the hint, but for fixed rows alone, and ATen is served for the range."""
    catalog = lab.catalog(rows(problem(16), {FAST: 0.5}))
    found = of_workload(Workload((Entry(problem(16), device=CPU.text, ranges=(("m", 2, 64),)),), {}), "w", catalog)
    (one,) = found.products
    assert (one.hit.config, one.gain) == (ATEN, 1.0)
    assert one.reason == f"ATen for the range: {NO_KERNEL}"


def test_gemms_have_rung_gain_and_weight(lab: Lab) -> None:
    catalog = lab.catalog(rows(problem(16), {FAST: 0.5}), rows(problem(64), {FAST: 1.5}))
    missed = Problem.gemm("mm", m=7, n=33, k=9, dtype="fp32")
    entries = (
        Entry(problem(16), calls=10, device=CPU.text),
        Entry(problem(64), count=2, device=CPU.text),
        Entry(missed, calls=1, device=CPU.text),
    )
    found = of_workload(Workload(entries, {"baddbmm": (3, 4)}), "w", catalog)
    by_m = {one.entry.problem.m: one for one in found.products}
    assert [by_m[m].rung for m in (16, 64, 7)] == ["exact", "exact", "miss"]
    assert (by_m[16].gain, by_m[16].total_us, by_m[16].aten_us) == pytest.approx((2.0, 500.0, 1000.0))
    assert by_m[64].calls == 2, "without counted calls, each occurrence is one"
    assert by_m[64].gain == 1.0
    assert by_m[64].reason
    assert by_m[7].reason.startswith("ATen is the only kernel for it: gemmdb's CPU kernels need constant weights")
    assert "exact" in by_m[7].reason
    outcomes = {one["m"]: one["outcome"] for one in found.document()["products"]}
    assert (outcomes[16], outcomes[64], outcomes[7]) == ("table", "ATen (measured best)", "ATen (refused)")
    assert by_m[7].outcome.reason.startswith("gemmdb's CPU kernels need constant weights")
    assert by_m[7].may_save_us is None, "nothing is known of a CPU"
    assert found.aten_us - found.total_us == pytest.approx(500.0)
    assert found.gain == pytest.approx(found.aten_us / found.total_us)
    assert found.uncovered == (("baddbmm", 3, 4),)
    assert [one.total_us for one in found.products] == sorted((one.total_us for one in found.products), reverse=True)


def test_what_a_build_may_save_is_estimated_for_misses_on_a_gpu(lab: Lab) -> None:
    large = Problem.gemm("int_mm", m=64, n=8192, k=8192)
    entries = (Entry(large, calls=1000, device=H200.text), Entry(problem(16), calls=1, device=CPU.text))
    found = of_workload(Workload(entries, {}), "w", lab.catalog(rows(problem(16), {FAST: 0.5})))
    estimates = {one.entry.problem.op: one.may_save_us for one in found.products}
    if found.products[0].rung == "miss":
        assert estimates["int_mm"] is not None
        assert estimates["int_mm"] > 0
    assert estimates["mm"] is None, "an answer needs no build"
    assert found.may_save_us == sum(us or 0.0 for us in estimates.values())
    document = found.document()
    assert len(document["products"]) == 2
    json.dumps(document, allow_nan=False)


def test_a_range_that_is_split_names_its_kernels_and_what_runs_at_the_recorded_size(tmp_path: Path) -> None:
    """ATen serves some sizes, perhaps the recorded one, and another kernel the rest of the range."""
    catalog = Catalog.load(Settings((), tmp_path / "none.db", "aten"))
    asked = [Problem.gemm("mm", m=16, n=n, k=k) for n in (4096, 6144, 28672) for k in (4096, 14336)]
    called = (((("m", 16),), 1),)
    entries = tuple(Entry(one, device=H200.text, ranges=(("m", 1, 64),), seen=called) for one in asked)
    found = of_workload(Workload(entries, {}), "w", catalog)
    split = [place for place, one in enumerate(found.products) if one.hit and one.hit.branches]
    assert {found.products[place].runs_kernel for place in split} == {True, False}
    for place in split:
        drawn, kernel_runs = found.document()["products"][place], found.products[place].runs_kernel
        assert (drawn["outcome"] in ("table", "near")) == kernel_runs
        assert (drawn["aten"], drawn["reason"]) == (not kernel_runs, "")
        assert " / " in drawn["kernel"]
    catalog.close()


def test_a_time_of_a_busy_machine_is_marked(lab: Lab) -> None:
    quiet, busy = (list(rows(problem(m), {FAST: 0.5})) for m in (16, 32))
    catalog = lab.catalog([*quiet, *(replace(row, detail=DISTURBED) for row in busy)])
    entries = tuple(Entry(problem(m), device=CPU.text) for m in (16, 32))
    found = of_workload(Workload(entries, {}), "w", catalog).document()["products"]
    assert {one["m"]: one["busy"] for one in found} == {16: False, 32: True}
    times = BusyTimes()
    assert not times.has("/no/such.db", problem(16), CPU, FAST.text)
    assert not times.has("", problem(16), CPU, FAST.text)
    with times:
        assert times.has(str(lab.opened[0].path), problem(32), CPU, FAST.text)
        assert not times.has(str(lab.opened[0].path), problem(32), CPU, "inductor:search")


def printed() -> dict[str, Any]:
    """What `gemmdb compare --json` prints."""
    texts = [problem(16).text, problem(32).text]
    products = tuple(
        {"problem": text, "config": config, "rung": "exact", "expected_us": us, "speedup_vs_aten": gain, "count": n,
         "note": ""}
        for text, config, us, gain, n in ((texts[0], FAST.text, 5.0, 2.0, 3), (texts[1], "aten:default", 7.0, 1.0, 1))
    )  # fmt: skip
    configs = {one["problem"]: one["config"] for one in products}
    found = Comparison(100.0, 80.0, 0.0, configs, {texts[0]: 4.0}, 0.0, products)
    return dict(json.loads(json.dumps(asdict(found))))


def drawn(**changed: Any) -> dict[str, Any]:
    return comparison({**printed(), **changed}, Path("c.json"))


def test_a_comparison_gemm_by_gemm() -> None:
    found = drawn()
    wanted = {"default_us": 100.0, "gemmdb_us": 80.0, "speedup": 1.25, "error": 0.0, "interval": None}
    assert wanted.items() <= found.items()
    first, second = found["products"]
    wanted = {"name": "mm 16x256x256 bf16, constant", "count": 3, "us": 5.0, "aten_us": 10.0, "lost_us": 4.0}
    assert wanted.items() <= first.items()
    assert (second["us"], second["aten_us"], second["aten"]) == (7.0, 7.0, True)
    older = drawn(products=None)["products"]
    assert [(one["us"], one["aten_us"]) for one in older] == [(None, None)] * 2, "older versions printed no times"


def test_a_comparison_has_the_outcomes_that_were_printed() -> None:
    """They follow from the evidence, which is not printed. Older versions printed no outcome."""
    products = printed()["products"]
    products[1]["outcome"] = "ATen (refused)"
    assert [one["outcome"] for one in drawn(products=products)["products"]] == ["table", "ATen (refused)"]
    products[1]["outcome"] = "something else"
    assert drawn(products=products)["products"][1]["outcome"] == "ATen (measured best)"


@given(FOUND)
def test_any_object_is_a_comparison_or_is_refused(found: dict[str, Any]) -> None:
    try:
        document = json.loads(json.dumps(comparison(found, Path("c.json")), allow_nan=False))
    except InputError:
        return
    assert document["default_us"] > 0
    assert all(one["count"] >= 1 and one["lost_us"] >= 0 for one in document["products"])


def test_a_large_workload_shows_the_gemms_of_most_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MAX_PRODUCTS", 2)
    asked = tuple(Entry(problem(m), calls=m, device=CPU.text) for m in (1, 2, 3))
    report = of_workload(Workload(asked, {}), "w", lab.catalog(rows(problem(1), {FAST: 0.5})))
    document = report.document()
    assert [one["calls"] for one in document["products"]] == [one.calls for one in report.products[:2]]
    assert document["smaller"] == 1
    assert document["total_us"] == pytest.approx(sum(one.total_us for one in report.products))


def test_the_interval_of_a_comparison_is_told_where_there_is_one() -> None:
    found = drawn(interval=[1.1, 1.4], verdict="faster")
    assert (found["interval"], found["verdict"]) == ((1.1, 1.4), "faster")
    assert [drawn(interval=value)["interval"] for value in (None, [1.0], [1.0, "2"], 3)] == [None] * 4


@pytest.mark.parametrize(
    "change",
    [
        {"default_us": 0}, {"default_us": "1"}, {"gemmdb_us": None}, {"gemmdb_us": 1e300}, {"gemmdb_us": True},
        {"slower": []}, {"configs": 3, "products": None}, {"products": [{"problem": 3, "config": "x"}]},
    ],
)  # fmt: skip
def test_a_malformed_comparison_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        drawn(**change)


def test_the_kind_of_a_file_is_found_in_it(lab: Lab, tmp_path: Path) -> None:
    catalog = lab.catalog(rows(problem(16), {FAST: 0.5}))
    (tmp_path / "c.json").write_text(json.dumps(printed(), indent=1))
    (tmp_path / "w.jsonl").write_text(Entry(problem(16), device=CPU.text).line)
    found = [
        documents.document(path, catalog)["kind"]
        for path in (lab.opened[0].path, tmp_path / "w.jsonl", tmp_path / "c.json")
    ]
    assert found == ["table", "workload", "comparison"]


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "[1]", "{}", "3", "[" * 100_000, "\0", '{"default_us": 1}'])
def test_any_other_file_is_refused(lab: Lab, tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError):
        documents.document(path, lab.catalog(rows(problem(16), {FAST: 0.5})))


def test_the_page_of_the_pictures_has_each_outcome_of_a_lookup(tmp_path: Path) -> None:
    """A GEMM with an epilogue whose rows without one say ATen was called refused, and nothing was advised."""
    with contextlib.closing(report_files.catalog(tmp_path)) as catalog:
        found = of_workload(read(report_files.workload(tmp_path)), "w", catalog).products
    assert {one.outcome.kind for one in found} == set(Kind) - {Kind.TUNED, Kind.NOT_HANDLED}
    (predicted,) = [one for one in found if one.outcome.kind is Kind.ATEN_PREDICTED]
    assert predicted.outcome.reason == "mm fusion=none: ATen, but these rows do not tell what fusing saves"
