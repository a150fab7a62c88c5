"""Symbolic sizes: one config for a whole range, only when it holds everywhere."""

import json
from dataclasses import replace

import pytest

from gemmdb.errors import InputError
from gemmdb.hit import LARGEST
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup.acceptance.ranges import unmeasured
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.symbolic import sizes
from gemmdb.settings import Policy
from gemmdb.table.record import STEP

POLICY = Policy()
SYMBOLIC_ROWS = Config("aten", "symbolic_rows")
SIZES = (2, 4, 8, 16, 32)


def table(lab, ratios, sizes=SIZES):
    """One table with the same sizes for every config: `ratios` maps a config to its ratio at each of the sizes."""
    at = {m: {config: values[i] for config, values in ratios.items()} for i, m in enumerate(sizes)}
    return lab.catalog(lab.rows_of({lab.problem(m=m): found for m, found in at.items()}))


def ask(lab, ranges, m=16):
    return lab.query(lab.problem(m=m), ranges=ranges)


def test_a_config_that_is_best_everywhere_serves_the_range(lab):
    steady = lab.cpp()
    catalog = table(lab, {steady: [0.5] * 5})
    hit = answer(ask(lab, {"m": (2, 32)}), catalog, POLICY)
    assert (hit.rung, hit.config) == ("exact", steady)
    assert hit.evidence["worst_regret"] == 0
    assert [bucket["m"] for bucket in hit.evidence["sizes"]] == list(SIZES)
    assert hit.evidence["range"] == {"m": [2, 32]}
    assert json.loads(json.dumps(hit.as_dict())) == hit.as_dict()
    alone = answer(ask(lab, {}), catalog, POLICY)
    assert alone.config == steady
    assert 0 < hit.evidence["spread"] == pytest.approx(alone.evidence["spread"], rel=0.05)


def test_the_config_that_holds_everywhere_is_taken_not_the_hints_winner(lab):
    winner, steady = Config("aten", "int8pack_mm"), lab.cpp()
    mixed = Problem.gemm("mixed_mm", m=16, n=256, k=256, constant_weight=True)
    ratios = dict(zip(SIZES, (0.50, 0.50, 0.50, 0.46, 0.90), strict=True))
    policy = replace(POLICY, range_regret=0.1)
    known = {mixed.resized(m, 256, 256): {winner: ratio, steady: 0.5} for m, ratio in ratios.items()}
    catalog = lab.catalog(lab.rows_of(known))
    assert answer(lab.query(mixed), catalog, POLICY).config == winner
    hit = answer(lab.query(mixed, ranges={"m": (2, 32)}), catalog, policy)
    assert hit.config == steady
    assert hit.evidence["worst_regret"] == pytest.approx(0.5 / 0.46 - 1, abs=2 * STEP)
    assert answer(lab.query(mixed, ranges={"m": (2, 32)}), catalog, POLICY).config == ATEN


def test_a_regret_above_the_policys_means_aten_and_says_so(lab):
    fast = lab.cpp()
    catalog = table(lab, {fast: [0.5, 0.5, 0.5, 0.5, 1.05]})
    hit = answer(ask(lab, {"m": (2, 32)}), catalog, POLICY)
    assert (hit.rung, hit.config, hit.speedup) == ("exact", ATEN, 1.0)
    assert hit.expected_us == pytest.approx(100.0)
    assert "5.0%" in hit.evidence["reason"]
    assert answer(ask(lab, {"m": (2, 32)}), catalog, replace(POLICY, range_regret=0.06)).config == fast
    assert answer(ask(lab, {"m": (2, 16)}), catalog, POLICY).config == fast


def fp32_table(lab, aten, kernel, sizes=SIZES):
    """Rows of fp32 GEMMs of which ATen takes `aten` of its time with symbolic rows, and a kernel `kernel`."""
    every = [lab.problem(m=m, dtype="fp32") for m in sizes]
    ratios = {lab.cpp(): kernel} | ({SYMBOLIC_ROWS: aten} if aten else {})
    return every[3], lab.catalog(lab.rows_of(dict.fromkeys(every, ratios)))


def test_the_gain_over_a_range_is_that_over_what_default_mode_runs_there(lab):
    """On a CPU, default mode multiplies by a constant fp32 weight with MKL, and with oneDNN where M is symbolic."""
    problem, catalog = fp32_table(lab, 0.8, 0.5)
    hit = answer(lab.query(problem, ranges={"m": (2, 32)}), catalog, POLICY)
    assert hit.config == lab.cpp()
    assert hit.speedup == pytest.approx(1.6, rel=2 * STEP)
    assert hit.expected_us == pytest.approx(50.0, rel=2 * STEP)
    assert [one["speedup"] for one in hit.evidence["sizes"]] == pytest.approx([1.6] * 5, rel=2 * STEP)
    assert answer(lab.query(problem), catalog, POLICY).speedup == pytest.approx(2.0, rel=2 * STEP)


@pytest.mark.parametrize(("aten", "us"), [(0.8, 80.0), (0.0, 100.0)], ids=["faster", "not measured"])
def test_a_kernel_that_may_be_slower_than_default_mode_over_a_range_is_not_served_there(lab, aten, us):
    problem, catalog = fp32_table(lab, aten, 0.9)
    hit = answer(lab.query(problem, ranges={"m": (2, 32)}), catalog, POLICY)
    assert (hit.config, hit.speedup) == (ATEN, 1.0)
    assert hit.expected_us == pytest.approx(us, rel=2 * STEP)
    assert answer(lab.query(problem), catalog, POLICY).config == lab.cpp()


def test_what_default_mode_runs_over_a_range_is_served_for_no_fixed_size(lab):
    """Although it is the fastest."""
    problem, catalog = fp32_table(lab, 0.8, 0.9)
    hit = answer(lab.query(problem), catalog, POLICY)
    assert (hit.config, hit.evidence["pick"], hit.evidence["ties"]) == (lab.cpp(), lab.cpp().text, [lab.cpp().text])


def test_a_build_measures_the_sizes_at_which_what_default_mode_runs_over_a_range_is_unknown(lab):
    problem, catalog = fp32_table(lab, 0.0, 0.9)
    missing = unmeasured(Ask(lab.query(problem, ranges={"m": (2, 32)}), catalog.tables, POLICY, None))
    assert [one.m for one in missing] == list(SIZES)


def test_one_unanswered_bucket_means_aten(lab):
    catalog = table(lab, {lab.cpp(): [0.5] * 5})
    hit = answer(ask(lab, {"m": (2, 4096)}), catalog, POLICY)
    assert hit.config == ATEN
    assert hit.evidence["reason"] == "no measured or near answer at m=64 n=256 k=256"


def test_an_open_range_ends_at_the_cap(lab):
    sizes = [2**e for e in range(1, 17)]
    fast = lab.cpp()
    full = table(lab, {fast: [0.5] * 16}, sizes)
    assert sizes[-1] == LARGEST
    assert answer(ask(lab, {"m": (2, None)}), full, POLICY).config == fast
    short = table(lab, {fast: [0.5] * 15}, sizes[:-1])
    assert answer(ask(lab, {"m": (2, None)}), short, POLICY).config == ATEN


def test_a_hint_without_an_answer_is_a_miss(lab):
    catalog = table(lab, {lab.cpp(): [0.5] * 5})
    assert answer(ask(lab, {"m": (2, 4096)}, m=1000), catalog, POLICY) is None
    step = explain(ask(lab, {"m": (2, 4096)}, m=1000), catalog, POLICY)[0]
    assert step.rung == "range"
    assert "the hint has no answer" in step.reason


def test_near_buckets_count_within_their_bound(lab):
    fast = lab.cpp()
    catalog = table(lab, {fast: [0.5] * 3}, (8, 24, 32))
    query = ask(lab, {"m": (8, 32)}, m=8)
    hit = answer(query, catalog, replace(POLICY, near_loss=0.1))
    assert (hit.rung, hit.config) == ("near", fast)
    assert [bucket["rung"] for bucket in hit.evidence["sizes"]] == ["exact", "near", "exact"]
    assert answer(query, catalog, replace(POLICY, near=False)).config == ATEN
    assert answer(query, catalog, replace(POLICY, near_loss=0.001)).config == ATEN


def test_an_explicit_blocking_does_not_serve_a_symbolic_m(lab):
    """For a symbolic M the C++ template blocks at run time, so the row is no evidence for what would run."""
    blocked, threaded = lab.cpp(blocks_m=1), lab.cpp(threads_m=2, threads_n=1, threads_k=1)
    catalog = table(lab, {blocked: [0.3] * 5, threaded: [0.4] * 5, lab.cpp(): [0.5] * 5})
    assert answer(ask(lab, {"m": (2, 32)}), catalog, POLICY).config == lab.cpp()
    assert answer(ask(lab, {}), catalog, POLICY).config == blocked


def test_a_symbolic_n_or_k_excludes_the_packed_template(lab):
    catalog = lab.catalog(lab.rows_of({lab.problem(n=n): {lab.cpp(): 0.5} for n in (128, 256)}))
    assert answer(lab.query(lab.problem(), ranges={"n": (128, 256)}), catalog, POLICY).config == ATEN


def test_a_range_of_one_value_is_no_range(lab):
    blocked = lab.cpp(blocks_m=1)
    catalog = table(lab, {blocked: [0.5] * 5})
    assert answer(ask(lab, {"m": (16, 16)}), catalog, POLICY).config == blocked


@pytest.mark.parametrize(
    ("ranges", "hint", "expected"),
    [
        ({"m": (2, 16)}, 5, [2, 4, 5, 8, 16]),
        ({"m": (3, 20)}, 7, [3, 4, 7, 8, 16, 20]),
        ({"m": (0, 4)}, 2, [1, 2, 4]),
        ({"m": (60_000, None)}, 70_000, [60_000, 65_536, 70_000]),
        ({"m": (100_000, None)}, 100_000, [100_000]),
    ],
)
def test_buckets_are_the_powers_of_two_the_ends_and_the_hint(lab, ranges, hint, expected):
    question = Ask(ask(lab, ranges, m=hint), (), POLICY, None)
    assert [problem.m for problem in sizes(question)] == expected


def test_too_many_buckets_mean_aten(lab):
    catalog = table(lab, {lab.cpp(): [0.5] * 5})
    ranges = {"m": (2, None), "n": (2, None)}
    hit = answer(lab.query(lab.problem(m=16), ranges=ranges), catalog, POLICY)
    assert hit.config == ATEN
    assert "buckets" in hit.evidence["reason"]


@pytest.mark.parametrize("ranges", [{"batch": (1, 2)}, {"m": (5, 4)}, {"m": (-1, 4)}])
def test_impossible_ranges_are_refused(lab, ranges):
    with pytest.raises(InputError, match="no such range"):
        answer(ask(lab, ranges), lab.catalog(), POLICY)
