"""The data of a running program's report."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from kit.devices import H200

from gemmdb.key.problem import Problem
from gemmdb.report import program, save


def product(problem: str, **more: Any) -> dict[str, Any]:
    """An entry of `stats()`."""
    given = {
        "problem": problem, "rung": "exact", "config": "aten:default", "expected_us": None, "speedup_vs_aten": None,
        "table": "", "device": H200.text, "note": "", "count": 1,
    }  # fmt: skip
    return {**given, **more}


def test_products_are_weighted_by_their_occurrences() -> None:
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
    found = program.of_stats(stats, "x")
    by_op = {one.problem.op: one for one in found.products}
    assert set(by_op) == {"mm", "int_mm"}
    assert (by_op["mm"].us, by_op["mm"].gain, by_op["mm"].saving) == (10.0, 1.5, None)
    assert (by_op["int_mm"].rung, by_op["int_mm"].gain, by_op["int_mm"].why) == ("miss", 1.0, "no table answers")
    assert by_op["int_mm"].us > 1
    assert found.aten_us - found.total_us == pytest.approx(4 * 10.0 * 0.5)
    assert found.may_save_us > 0
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    kernels = {one["op"]: one["kernel"] for one in document["products"]}
    assert kernels == {"mm": "inductor:search", "int_mm": "aten:default"}
    assert document["uncovered"] == [{"name": "baddbmm", "count": 2, "calls": 2}]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="plotly is not installed: gemmdb[report]")
def test_a_program_writes_its_page(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gemmdb.inductor import reset_stats

    reset_stats()
    run = torch.compile(torch.nn.Linear(24, 40).eval(), backend="gemmdb")
    with torch.no_grad():
        run(torch.randn(6, 24))
    save(tmp_path / "page.html", "a </script> name")
    text = (tmp_path / "page.html").read_text()
    found = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert found["title"] == "a </script> name"
    assert [(one["op"], one["m"], one["n"], one["k"]) for one in found["products"]] == [("addmm", 6, 40, 24)]
