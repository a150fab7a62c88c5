"""Which GEMMs are searched for an algorithm of cuBLASLt, on which operands, and in which order. There is no GPU here:
times are invented."""

import contextlib
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kit.algorithms import FIRST, POLICY, SECOND, TILE, biased, graph_of, plain, searched, session
from kit.devices import H200
from kit.horizontal import decided, traced

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import algorithm_jobs as jobs
from gemmdb.inductor.benchmark import algorithm_rules, limits
from gemmdb.inductor.benchmark import algorithm_trial as trials
from gemmdb.inductor.benchmark.limits import BUDGET, allowed_s
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import lowering
from gemmdb.rejected import Rejected

pytestmark = pytest.mark.usefixtures("alone")


RECORDED = Path(__file__).parents[3] / "benchmarks/results/h200"
ASKED = Query(Problem.gemm("mm", m=768, n=512, k=1024), H200)

INT4 = Problem.gemm("mixed_mm", m=64, n=512, k=1024, weight_dtype="int4", group=128, zeros="none", packing="low-first")


def decision_for(problem=ASKED.problem, rung="near", config=ATEN, policy=POLICY, **rest):
    ((_, one),) = decided(graph_of(plain))
    event = replace(one.event, rung=rung, config=config.text)
    return replace(one, session=session(policy), query=Query(problem, H200), config=config, event=event, **rest)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (decision_for(), ""),
        (decision_for(rung="exact"), ""),
        (decision_for(rung="live"), ""),
        (decision_for(rung="aten"), ""),
        (decision_for(config=TILE), ""),
        (decision_for(config=TILE, rung="exact"), "a measured kernel"),
        (decision_for(rung="forced"), "forced"),
        (decision_for(policy=replace(POLICY, confirm=False)), "switched off"),
        (decision_for(Problem.gemm("mm", m=4, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("mm", m=4, n=512, k=1024), rung="exact"), "settle"),
        (decision_for(Problem.gemm("bmm", batch=8, m=64, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("int_mm", m=64, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("int_mm", m=64, n=512, k=1024, fusion="scale")), "scale"),
        (decision_for(Problem.gemm("mm", m=64, n=512, k=1021)), "multiples of 16 bytes"),
        (decision_for(Problem.gemm("addmm", m=2048, n=30522, k=768)), "output rows that start at multiples of 16"),
        (decision_for(Problem.gemm("mm", m=64, n=512, k=1024, dtype="fp32")), "bf16, fp16"),
        (decision_for(Problem.gemm("scaled_mm", m=64, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("scaled_mm", m=64, n=512, k=1024, scales="row", fast_accum=True)), ""),
        (decision_for(Problem.gemm("scaled_mm", m=64, n=512, k=1024, dtype="fp8_e5m2")), "two e5m2"),
        (decision_for(Problem.gemm("mixed_mm", m=64, n=512, k=1024)), "does not solve"),
        (decision_for(INT4), "takes no weight with groups"),
        (replace(decision_for(), config=None), "decides"),
    ],
)
def test_which_gemms_are_searched(decision, reason):
    found = algorithm_rules.rejection(decision)
    assert reason in str(found) if reason else found is None


def test_nothing_is_searched_that_inductor_searches(monkeypatch):
    monkeypatch.setattr(algorithm_rules.state, "autotuning", lambda: True)
    assert "autotunes" in str(algorithm_rules.rejection(decision_for(rung="aten")))
    assert algorithm_rules.rejection(decision_for()) is None


def test_nor_in_a_job_of_several_ranks(monkeypatch):
    monkeypatch.setattr(algorithm_rules.rules.state, "is_distributed", lambda: True)
    assert "ranks" in str(algorithm_rules.rejection(decision_for()))


def test_nor_before_the_lowering_can_carry_it_out(monkeypatch):
    monkeypatch.setattr(lowering, "_ALWAYS_LOWERED", set())
    assert "cannot be lowered" in str(algorithm_rules.rejection(decision_for()))


def test_a_weight_that_the_program_computes_is_not_cold():
    ((node, decision),) = decided(graph_of(lambda x, w, b: x @ (w * 2).t()), session())
    assert "computed the weight" in str(algorithm_rules.rejection(decision, node))


def test_the_operands_are_those_of_the_program():
    ((node, decision),) = decided(graph_of(biased), session())
    found = jobs.operands_of(node, decision)
    assert [tuple(fake.shape) for fake in found.fakes] == [(768, 1024), (1024, 512), (512,)]
    assert found.warm == (True, False, False)
    shape = found.shape
    assert (shape.a.by_rows, shape.a.leading, shape.b.by_rows, shape.b.leading) == (True, 1024, False, 1024)
    assert (shape.bias, shape.m, shape.n, shape.k) == ("bf16", 768, 512, 1024)


def test_a_bias_that_starts_anywhere_is_not_read():
    """The library might fault: a check of an algorithm does not see addresses."""
    x, w, b = (torch.empty(*sizes, dtype=torch.bfloat16) for sizes in ((768, 1024), (511, 1024), (600,)))
    for start, aligned in ((1, False), (4, False), (8, True)):
        ((node, decision),) = decided(traced(biased, x, w, b[start : start + 511]), session())
        with contextlib.nullcontext() if aligned else pytest.raises(Untimed, match="its bias"):
            jobs.operands_of(node, decision)


def test_a_single_row_has_the_stride_of_its_elements():
    x, w = torch.empty_strided((1, 64), (9999, 1)), torch.empty(64, 96)
    found = trials.Operands(Problem.gemm("mm", m=1, n=96, k=64, dtype="fp32", layout="nn"), (x, w), (True, False))
    assert (found.shape.a.leading, found.shape.b.leading) == (64, 96)


def test_the_heads_of_an_attention_are_in_the_cache():
    q, k = torch.empty(8, 64, 128, dtype=torch.bfloat16), torch.empty(8, 512, 128, dtype=torch.bfloat16)
    ((node, decision),) = decided(traced(lambda q, k: (q + 1) @ (k + 1).transpose(1, 2), q, k), session())
    found = jobs.operands_of(node, decision)
    assert found.warm == (True, True)
    assert (found.shape.batch, found.shape.a.batch_stride, found.shape.b.batch_stride) == (8, 64 * 128, 512 * 128)


def test_padded_rows_are_other_operands():
    def key(rows):
        w = torch.empty(512, rows, dtype=torch.bfloat16)[:, :1024]
        ((node, decision),) = decided(traced(lambda x, w: x @ w.t(), torch.empty(768, 1024, dtype=torch.bfloat16), w))
        return jobs.operands_of(node, decision).key

    assert len({key(1032), key(1040), key(1040)}) == 2


def test_the_longest_gemms_come_first_and_short_ones_do_not_repay(clock):
    short, long = decided(graph_of(plain, k=512), session(), 3.9), decided(graph_of(plain), session(), 4.1)
    searched([*short, *long])
    assert [one.problem.k for one in clock.seen] == [1024]
    searched([*short, *short])  # Two layers.
    assert [one.problem.k for one in clock.seen] == [1024, 512]


@pytest.mark.parametrize(("us", "place"), [(7.6, 0), (7.4, 1), (4.1, 1)])
def test_a_shorter_search_is_made_where_the_longer_one_does_not_repay(us, place):
    assert limits.search_extent(us, POLICY) == limits.EXTENTS[place]
    assert limits.search_extent(3.9, POLICY) is None
    assert limits.search_extent(1.0, replace(POLICY, confirm_s=300.0)) == limits.EXTENTS[0]


@pytest.mark.parametrize(("name", "extent"), zip(("search", "search-short"), limits.EXTENTS, strict=True))
def test_a_search_is_expected_to_take_what_was_recorded(name, extent):
    found = json.loads((RECORDED / f"{name}.json").read_text())["searches"]
    loaded = [one["seconds"] for one in found if one["turn"] == "second"]
    assert extent.expected_s == pytest.approx(statistics.mean(loaded), rel=0.05)


def test_once_the_time_is_over_the_rest_runs_aten(clock, monkeypatch):
    now = iter(range(0, 100_000, 1))
    monkeypatch.setattr(limits, "now", lambda: float(next(now)))
    pairs = [pair for k in (512, 1024, 2048) for pair in decided(graph_of(plain, k=k), session(), 100.0)]
    found = [decision.config for decision in searched(pairs)]
    assert sorted(found, key=str) == sorted([FIRST, ATEN, ATEN], key=str)


def test_nothing_is_timed_while_a_graph_is_captured(clock, monkeypatch):
    monkeypatch.setattr(algorithm_rules, "device_rejection", lambda device: Rejected("a CUDA graph is being captured"))
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert clock.seen == []


def test_a_spent_budget_times_nothing(clock):
    BUDGET.spend(allowed_s(POLICY))
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert clock.seen == []


def test_a_policy_that_denies_the_config_is_obeyed(clock):
    denying = replace(POLICY, deny="tile=20")
    (decision,) = searched(decided(graph_of(plain), session(denying), 100.0))
    assert decision.config == SECOND
    (other,) = searched(decided(graph_of(plain), session(replace(POLICY, deny="tile=18")), 100.0))
    assert other.config == ATEN  # The process remembers only the fastest.


def test_an_unfused_answer_of_another_gpu_is_in_doubt():
    hit = Hit("sku", SECOND, 80.0, 1.25, "another", {})
    decision = decision_for(rung="sku", config=hit.config)
    assert jobs.is_guess(decision)
    assert not jobs.is_guess(decision_for(config=TILE))
