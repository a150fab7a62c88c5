"""The data of a running program's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.devices import H200

from gemmdb import outcome
from gemmdb.inductor.observe import report as reporting
from gemmdb.key.problem import Problem
from gemmdb.report import workload


def product(problem: str, **more: Any) -> dict[str, Any]:
    """An entry of `stats()`."""
    given = {
        "problem": problem, "rung": "exact", "config": "aten:default", "expected_us": None, "speedup_vs_aten": None,
        "table": "", "device": H200.text, "note": "", "count": 1,
    }  # fmt: skip
    entry = {**given, **more}
    served = outcome.of(entry["rung"], entry["config"], entry["note"], entry.get("evidence", {}))
    return {**entry, **served.document()}


def test_gemms_are_weighted_by_their_occurrences() -> None:
    fast = Problem.gemm("mm", m=1, n=4096, k=4096).text
    missed = Problem.gemm("int_mm", m=64, n=8192, k=8192).text
    stats = {
        "products": [
            product(fast, config="inductor:search", expected_us=10.0, speedup_vs_aten=1.5, count=4),
            product(missed, rung="aten", note="no table answers"),
            product("not a problem"),
        ],
        "uncovered": {"baddbmm": 2},
    }
    found = reporting.of_stats(stats, "x", 2)
    by_op = {one.problem.op: one for one in found.products}
    assert set(by_op) == {"mm", "int_mm"}
    assert (by_op["mm"].us, by_op["mm"].gain, by_op["mm"].saving) == (10.0, 1.5, None)
    assert (by_op["int_mm"].rung, by_op["int_mm"].gain, by_op["int_mm"].why) == ("miss", 1.0, "no table answers")
    assert by_op["int_mm"].us > 1
    assert found.aten_us - found.total_us == pytest.approx(4 * 10.0 * 0.5)
    assert found.may_save_us > 0
    document = json.loads(json.dumps(workload.program_document(found), allow_nan=False))
    kernels = {one["op"]: one["kernel"] for one in document["products"]}
    assert kernels == {"mm": "inductor:search", "int_mm": "aten:default"}
    outcomes = {one["op"]: (one["outcome"], one["why"]) for one in document["products"]}
    assert outcomes == {"mm": ("table", ""), "int_mm": ("ATen (nothing known)", "no table answers")}
    assert document["uncovered"] == [{"name": "baddbmm", "count": 2, "calls": 2}]


def test_a_report_says_what_gained_and_why_aten_runs() -> None:
    m1, m8, m64 = (Problem.gemm("mm", m=m, n=4096, k=4096).text for m in (1, 8, 64))
    held = {"held_back": {"config": "triton:tile block_k=64 block_m=16 block_n=64 dequant=cast group_m=8 load=pointer"
            " reduce=none split_k=1 stages=3 swap=0 warps=4", "gain": 0.01, "needed": 0.02}}  # fmt: skip
    fast = product(m1, config="triton:gemv block_k=1", expected_us=10.0, speedup_vs_aten=1.5, count=4)
    stats = {
        "products": [
            {**fast, "evidence": {"spread": 0.1}},
            product(m8, expected_us=30.0, speedup_vs_aten=1.0, evidence=held),
            product(m64, rung="aten", note="no table answers"),
        ],
        "uncovered": {"baddbmm": 2},
        "errors": ["lookup: x"],
    }
    found = reporting.of_stats(stats, "mine", 3)
    assert found.gain.value == pytest.approx(found.aten_us / found.total_us)
    assert found.gain.low < found.gain.value < found.gain.high
    text = str(found)
    lines = text.splitlines()
    assert lines[0] == "gemmdb: mine: 3 graphs with 6 GEMMs"
    (mine,) = [line for line in lines if "mm 1x4096x4096" in line]
    assert mine.split()[1:7] == ["4", "10.0", "us", "1.50x", "table", "triton:gemv"]
    (aten,) = [line for line in lines if "mm 8x4096x4096" in line]
    assert aten.endswith("triton:tile 16x64x64 gains only 1.0% (2.0% is needed)")
    (missed,) = [line for line in lines if "mm 64x4096x4096" in line]
    assert (missed.split()[2][0], missed.endswith("no table answers")) == ("~", True)
    shares = [float(line.split("%")[0]) for line in lines if "x4096x4096" in line]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert "gemmdb tune" in text
    assert "not handled by gemmdb: 2 x baddbmm" in text
    assert "failure inside gemmdb" in text
    assert "&lt;" in reporting.of_stats(stats, "<b>", 3)._repr_html_()


def test_a_reason_that_gemms_share_stands_once() -> None:
    why = "the weight is no constant"
    note = f"ATen is the only kernel for it: {why}; exact: no"
    alone = [product(Problem.gemm("mm", m=m, n=64, k=64).text, rung="aten", note=note) for m in (1, 2)]
    other = product(Problem.gemm("mm", m=3, n=64, k=64).text, rung="aten", note="no table answers this one")
    lines = str(reporting.of_stats({"products": [*alone, other], "uncovered": {}}, "x", 1)).splitlines()
    ends = {line.split("mm ")[1].split()[0]: line.split("bf16", 1)[1].strip() for line in lines if "x64x64" in line}
    assert ends == {"1x64x64": "(1)", "2x64x64": "(1)", "3x64x64": "no table answers this one"}
    assert f"(1) {why}" in lines


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"rung": "aten", "note": "no verdict"},
            "expected over ATen: nothing is known, no table has times of these GEMMs",
        ),
        ({"expected_us": 10.0, "speedup_vs_aten": 1.0}, "expected over ATen: no gain, ATen runs every GEMM (20.0 us"),
    ],
)
def test_a_gain_of_nothing_is_no_number(known: dict[str, Any], said: str) -> None:
    asked = product(Problem.gemm("mm", m=8, n=64, k=64).text, count=2, **known)
    text = str(reporting.of_stats({"products": [asked], "uncovered": {}}, "x", 1))
    assert text.splitlines()[1].startswith(said)


def test_a_report_of_nothing() -> None:
    found = reporting.of_stats({"products": [], "uncovered": {}}, "mine")
    assert (found.gain.value, found.total_us) == (1.0, 0)
    assert str(found) == "gemmdb: mine: no GEMM that gemmdb handles was compiled"


def test_many_gemms_are_counted() -> None:
    asked = [product(Problem.gemm("mm", m=m, n=64, k=64).text, expected_us=1.0, speedup_vs_aten=1.0)
             for m in range(1, 41)]  # fmt: skip
    text = str(reporting.of_stats({"products": asked, "uncovered": {}}, "x", 1))
    assert text.splitlines()[-1] == "and 10 more GEMMs, 25.0% together"


def test_a_model_is_reported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import gemmdb.inductor

    gemmdb.inductor.reset_stats()
    run = torch.compile(torch.nn.Linear(24, 40).eval(), backend="gemmdb")
    with torch.no_grad():
        run(torch.randn(6, 24))
    found = gemmdb.inductor.report(name="a </script> name")
    assert isinstance(found, gemmdb.inductor.Report)
    assert (found.graphs, [one.problem.op for one in found.products]) == (1, ["addmm"])
    assert "addmm 6x40x24 fp32 +bias" in str(found)
    gemmdb.inductor.report(tmp_path / "page.html", "a </script> name")
    text = (tmp_path / "page.html").read_text()
    drawn = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert drawn["title"] == "a </script> name"
    assert [(one["op"], one["m"], one["n"], one["k"]) for one in drawn["products"]] == [("addmm", 6, 40, 24)]
