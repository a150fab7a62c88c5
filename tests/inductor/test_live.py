"""`on_miss="live"`: what Inductor timed is kept, and answers from then on."""

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

import gemmdb.inductor
from gemmdb.settings import Settings
from gemmdb.table import Table


@pytest.fixture
def compile_live(kit):
    """A function that compiles a linear layer as a new process would, and returns gemmdb's stats."""
    model, x = nn.Linear(64, 40).eval(), torch.randn(8, 64)

    def run(on_miss="live"):
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(on_miss=on_miss)
        with torch.no_grad(), inductor_config.patch(freezing=True, autotune_local_cache=False):
            kit.close(kit.compiled(model, x), model(x))
        return gemmdb.inductor.stats()

    return run


def test_a_product_is_searched_once(compile_live):
    first, second = compile_live(), compile_live()
    assert (first["rungs"], first["benchmarked"]) == ({"live": 1}, 1)
    assert (second["rungs"], second["benchmarked"]) == ({"exact": 1}, 0)
    (product,) = second["products"]
    assert "l2=hot" in product["evidence"]["protocol"]
    assert product["evidence"]["instead_of"] == "cold"


def test_other_policies_do_not_take_hot_timings_for_cold_ones(compile_live):
    compile_live()
    assert compile_live("aten")["rungs"] == {"aten": 1}


def test_a_single_number_is_stored_with_an_interval(compile_live):
    compile_live()
    with Table.open(Settings.read().user_table) as table:
        rows = list(table.measurements())
    assert {row.config.name for row in rows} == {"aten:default", "cpp:packed_gemm"}
    assert all(row.times.spread == pytest.approx(0.05) for row in rows)
