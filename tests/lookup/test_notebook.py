"""What a notebook shows of an answer, of stats and of a summary. Nothing of a table becomes markup."""

import json

from gemmdb.devices import detect
from gemmdb.hit import Hit
from gemmdb.inductor.observe.stats import MAX_SHOWN, Stats
from gemmdb.inductor.observe.summary import Product, Summary
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem

HOSTILE = "/tmp/<script>alert(1)</script>.db"


def test_an_answer_is_a_table_of_its_facts():
    hit = Hit("exact", ATEN, 12.341, 1.5, HOSTILE)
    shown = hit._repr_html_()
    assert "<th>over ATen</th><td>1.50x</td>" in shown
    assert "<td>12.34 us</td>" in shown
    assert "<script>" not in shown


def test_stats_are_a_dict_that_is_shown_as_a_table():
    problem = Problem.gemm("mm", m=16, n=4096, k=4096)
    entry = {
        "problem": problem.text, "device": detect.cpu().text, "rung": "exact", "config": ATEN.text,
        "expected_us": 1234.5, "speedup_vs_aten": 1.0,
        "ranges": {"m": (2, None)}, "note": "<b>it is wide</b>; exact: no", "count": 3,
        "outcome": "ATen (measured best)", "why": "<b>it is wide</b>",
    }  # fmt: skip
    odd = {**entry, "problem": "<i>", "config": "", "expected_us": None, "speedup_vs_aten": None, "ranges": {}}
    found = {"products": [entry, odd], "rungs": {"exact": 6}, "uncovered": {"<u>": 2}, "errors": ["<script>"]}
    stats = Stats(found)
    assert json.loads(json.dumps(stats)) == json.loads(json.dumps(found))
    shown = stats._repr_html_()
    assert (
        "<td>3</td><td>ATen (measured best)</td><td>aten:default</td><td>1,234.50 us</td><td>no difference</td>"
        "<td>mm 16x4096x4096 bf16 (m 2..)</td><td>&lt;b&gt;it is wide&lt;/b&gt;</td>"
    ) in shown
    assert shown.startswith("<p>gemmdb: 6 ATen (measured best)</p>")
    assert "2 x &lt;u&gt;" in shown
    assert not any(tag in shown for tag in ("<b>", "<i>", "<u>", "<script>"))
    assert "<table>" not in Stats({**found, "products": [], "rungs": {}})._repr_html_()
    assert "<p>and 2 more</p>" in Stats({**found, "products": [entry] * (MAX_SHOWN + 2)})._repr_html_()


def test_a_summary_is_shown_as_it_is_printed():
    of = Summary(1, gains=[Product("mm", 2, "triton:gemv", 3.0, "<b>")], errors=["<script>"])
    shown = of._repr_html_()
    assert shown.startswith("<pre>")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
