"""fp8 GEMMs with scales are timed with cuBLASLt's algorithms: their operands, and what is served for which kind. There
is no GPU here: times are invented."""

import contextlib

import pytest
import torch
from kit.algorithms import FIRST, SECOND, searched, session
from kit.horizontal import decided, traced
from kit.sessions import stored

from gemmdb.inductor.benchmark import algorithm_jobs as jobs
from gemmdb.inductor.benchmark import algorithm_rules
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Settings
from gemmdb.table.reader import Table

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(autouse=True)
def lowered(monkeypatch):
    """Inductor's lowering of _scaled_mm is ours in a compile."""
    monkeypatch.setattr("gemmdb.inductor.lower.adapter.state.lowers", lambda target: True)


def graph_of(function, *scales, k=1024):
    x, w = (torch.empty(size, k, dtype=torch.float8_e4m3fn) for size in (768, 512))
    return traced(function, x, w, torch.empty(512, dtype=torch.bfloat16), *scales)


def plain(x, w, b, s, t):
    return torch._scaled_mm(x, w.t(), s, t, out_dtype=torch.float32)


def fast(x, w, b, s, t):
    return torch._scaled_mm(x, w.t(), s, t, out_dtype=torch.float32, use_fast_accum=True)


def biased(x, w, b, s, t):
    return torch._scaled_mm(x, w.t(), s, t, bias=b, out_dtype=torch.bfloat16, use_fast_accum=True)


def test_the_operands_have_scales():
    ((node, decision),) = decided(graph_of(biased, torch.empty(768, 1), torch.empty(1, 512)), session())
    found = jobs.operands_of(node, decision)
    assert [tuple(fake.shape) for fake in found.fakes] == [(768, 1024), (1024, 512), (512,), (768, 1), (1, 512)]
    assert found.warm == (True, False, False, False, False)
    assert (found.shape.bias, found.shape.scales, found.shape.fast) == ("bf16", "row", True)
    ((node, decision),) = decided(graph_of(plain, torch.empty(()), torch.empty(1, 1)), session())
    found = jobs.operands_of(node, decision)
    assert [tuple(fake.shape) for fake in found.fakes] == [(768, 1024), (1024, 512), (), (1, 1)]
    assert (found.shape.bias, found.shape.scales, found.shape.fast) == ("", "tensor", False)
    assert found.shape.out.dtype == "fp32"


def test_scales_lie_as_the_library_reads_them():
    columns, blocks = torch.empty(8, 768).t(), torch.empty(4, 8).t()
    for first, second, reason in (
        (columns, blocks, ""),
        (torch.empty(768, 8), blocks, "its scale_a does not lie"),
        (columns, torch.empty(8, 4), "its scale_b does not lie"),
        (torch.empty(8 * 768 + 1)[1:].view(8, 768).t(), blocks, "its scale_a does not start"),
    ):
        ((node, decision),) = decided(graph_of(plain, first, second), session())
        assert decision.problem.scales == "block"
        with pytest.raises(Untimed, match=reason) if reason else contextlib.nullcontext():
            jobs.operands_of(node, decision)


def test_a_weight_that_the_program_casts_is_not_cold():
    def cast(x, w, b, s, t):
        return torch._scaled_mm(x, (w.float() * 2).to(x.dtype).t(), s, t, out_dtype=torch.bfloat16)

    ((node, decision),) = decided(graph_of(cast, torch.empty(()), torch.empty(())), session())
    assert "computed the weight" in str(algorithm_rules.rejection(decision, node))


def test_what_was_found_for_one_kind_of_sums_is_not_served_for_another(clock):
    """Nor for another kind of scales: these are other problems."""
    numbers, rows = (torch.empty(()), torch.empty(())), (torch.empty(768, 1), torch.empty(1, 512))
    (first,) = searched(decided(graph_of(plain, *numbers), session(), 100.0))
    assert first.config == FIRST
    clock.us = {ATEN: 100.0, FIRST: 120.0, SECOND: 80.0}
    with Table.open(Settings.read().user_table) as table:
        tables = session(tables=(table,))
        found = [
            searched(decided(graph_of(function, *scales), tables, 100.0))[0].config
            for function, scales in ((fast, numbers), (plain, rows), (plain, numbers))
        ]
    assert found == [SECOND, SECOND, FIRST]
    assert len({row.problem for row in stored()}) == 3
