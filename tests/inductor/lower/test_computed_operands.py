"""Operands that the program computes: their order is Inductor's own, and a GEMM of another layout than the graph
pass saw is decided again, by what is certain without timing anything."""

import pytest

torch = pytest.importorskip("torch")

from kit.sessions import FakeSession
from torch._dynamo.exc import BackendCompilerFailed

import gemmdb.inductor
from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.lower.adapter import state
from gemmdb.kernels.config import ATEN
from gemmdb.lookup import lowering
from gemmdb.settings import Policy

PADDED = Config.of("aten", "padded", multiple=8)
COL = " b=fp32:col:"


def same(x, w, s):
    """The graph pass and Inductor give the weight the order of `w.t()`."""
    return x @ (w.t() * s)


def other(x, w, s):
    """The graph has a row-major weight. Inductor stores it in the order in which it reads `w`."""
    return x @ (w.t().contiguous() * s)


def other_biased(x, w, s):
    return torch.addmm(s, x, w.t().contiguous() * s)


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    """The rules say that padding is for GPUs, and that ATen is all there is for two inputs; Inductor can carry it out
    here as well."""
    monkeypatch.setattr(state, "may_be_weight", lambda given: True)
    for rules in (legality, lowering):
        monkeypatch.setattr(rules, "rejection", lambda config, query, rows=None: None)


@pytest.fixture
def asked(kit):
    """The one GEMM of a program in the journal, compiled with a session; its result is right."""

    def run(model, using):
        x, w, s = torch.randn(5, 13), torch.randn(24, 13), torch.rand(24)
        enable.install()
        with active.use(using):
            kit.close(kit.compiled(model, x, w, s), model(x, w, s))
        assert gemmdb.inductor.stats()["errors"] == []
        (product,) = gemmdb.inductor.stats()["products"]
        return product

    return run


def by_order(**rungs):
    """A lookup that answers a padded GEMM, on a rung for each order of B."""

    def find(query):
        rung = rungs.get(query.problem.b.layout.order)
        return Hit(rung, PADDED, 50.0, 2.0, "table.db") if rung else None

    return find


def test_a_computed_operand_keeps_the_order_that_inductor_gives_it(asked):
    product = asked(same, FakeSession(by_order(col="exact"), Policy(), None))
    assert (product["rung"], product["config"], product["note"]) == ("exact", PADDED.text, "")
    assert COL in product["problem"]


@pytest.mark.parametrize("model", [other, other_biased])
@pytest.mark.parametrize("rung", ["exact", "forced"])
def test_what_is_measured_is_served_for_the_layout_that_it_became(asked, rung, model):
    product = asked(model, FakeSession(by_order(row="near", col=rung), Policy(), None))
    assert (product["rung"], product["config"]) == (rung, PADDED.text)
    assert COL in product["problem"]


def test_a_forced_config_stays_so(asked):
    with gemmdb.inductor.force(PADDED):
        product = asked(other, active.current())
    assert (product["rung"], product["config"]) == ("forced", PADDED.text)


@pytest.mark.parametrize("certain", [True, False])
def test_what_would_have_to_be_confirmed_is_not_served(asked, certain):
    find = by_order(row="exact", col="near")
    sure = find if certain else by_order()
    using = FakeSession(find, Policy(), None, certain=sure, why="no row")
    product = asked(other, using)
    assert COL in product["problem"]
    if certain:
        assert (product["rung"], product["config"]) == ("near", PADDED.text)
    else:
        assert (product["rung"], product["config"], product["speedup_vs_aten"]) == ("aten", ATEN.text, None)
        assert "layout changed during lowering" in product["note"]
        assert product["note"].endswith("no row")


def test_what_would_have_to_be_tuned_is_aten(asked):
    product = asked(other, FakeSession(by_order(row="exact"), Policy(on_miss="live"), None))
    assert (product["rung"], product["config"]) == ("aten", ATEN.text)


def test_kernels_for_parts_of_a_range_are_not_served(asked):
    def find(query):
        hit = by_order(row="exact", col="exact")(query)
        many = query.problem.b.layout.order == "col"
        return Hit(hit.rung, PADDED, 50.0, 2.0, "table.db", {}, ((8, PADDED), (None, ATEN))) if many else hit

    product = asked(other, FakeSession(find, Policy(), None))
    assert (product["config"], product["speedup_vs_aten"]) == (ATEN.text, 1.0)
    assert product["note"] == "several kernels share its rows"


def test_in_strict_mode_a_miss_fails_the_compile(asked):
    strict = FakeSession(by_order(row="exact"), Policy(on_miss="error"), None)
    with pytest.raises(BackendCompilerFailed, match=r"no table answers for mm .*b=fp32:col"):
        asked(other, strict)


def test_a_comparison_takes_the_kernel_from_the_gemm_that_it_became(asked):
    served = FakeSession(by_order(row="exact", col="exact"), Policy(), None)
    text = asked(other, served)["problem"]
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    product = asked(other, served.with_aten_for([text]))
    assert (product["rung"], product["config"]) == ("forced", ATEN.text)
