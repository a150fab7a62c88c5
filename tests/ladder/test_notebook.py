"""What a notebook shows of an answer and of a summary. Nothing of a table becomes markup."""

from gemmdb.hit import Hit
from gemmdb.inductor.summary_text import Product, Summary
from gemmdb.kernels.config import ATEN

HOSTILE = "/tmp/<script>alert(1)</script>.db"


def test_an_answer_is_a_table_of_its_facts():
    hit = Hit("exact", ATEN, 12.341, 1.5, HOSTILE)
    shown = hit._repr_html_()
    assert "<th>over ATen</th><td>1.50x</td>" in shown
    assert "<td>12.34 us</td>" in shown
    assert "<script>" not in shown


def test_a_summary_is_shown_as_it_is_printed():
    of = Summary(1, gains=[Product("mm", 2, "triton:gemv", 3.0, "<b>")], errors=["<script>"])
    shown = of._repr_html_()
    assert shown.startswith("<pre>")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
