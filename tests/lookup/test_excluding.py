"""Configs that the caller cannot carry out: the next best is served, and the evidence says why."""

import hashlib
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmdb.devices import registry
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import MOST_LEFT_OUT, _step, answer, explain
from gemmdb.lookup.ask import Ask, Step
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog

H200 = registry.find("NVIDIA H200")
SHIPPED = Catalog.load(Settings.read({}))
EXACT = Query(Problem.gemm("mixed_mm", m=16, n=4096, k=4096, fusion="scale", layout="nt"), H200)
NEAR = replace(EXACT, problem=EXACT.problem.resized(24, 4096, 4096))
RANGE = replace(EXACT, problem=EXACT.problem.resized(4, 8192, 1024), ranges={"m": (2, 256)})
BROKEN = Rejected("broken")
POLICY = Policy(on_miss="aten", min_gain=0.0, near_loss=0.5, range_regret=0.02)


def denied(query, policy, excluded):
    """The answer by the policy alone: each excluded config is denied by its text, and the tables are asked again, at
    most MOST_LEFT_OUT times; then ATen is served."""
    for attempt in range(MOST_LEFT_OUT + 1):
        hit = answer(query, SHIPPED, policy)
        kernels = [] if hit is None else hit.kernels(query.ranges)
        bad = next((config for config, rows in kernels if config != ATEN and excluded(config, rows)), None)
        if bad is None or attempt == MOST_LEFT_OUT:
            return hit if bad is None else hit.with_aten()
        pattern = f"^{re.escape(bad.text)}$"
        policy = replace(policy, deny=f"{policy.deny}|{pattern}" if policy.deny else pattern)
    raise AssertionError("the last attempt returns")


@pytest.mark.parametrize("query", [EXACT, NEAR, RANGE], ids=["exact", "near", "range"])
def test_the_next_best_is_served_and_the_evidence_says_why(query):
    best = answer(query, SHIPPED, POLICY)
    assert best.config != ATEN
    hit = answer(query, SHIPPED, POLICY, excluded=lambda config, rows: BROKEN if config == best.config else None)
    assert hit.config != best.config
    assert hit.evidence["left_out"] == {best.config.text: "broken"}
    assert "left_out" not in best.evidence
    assert POLICY.text not in str(hit.evidence)


def test_what_is_not_the_answer_is_not_left_out():
    best = answer(EXACT, SHIPPED, POLICY)
    assert answer(EXACT, SHIPPED, POLICY, excluded=lambda c, rows: None if c == best.config else BROKEN) == best


def test_a_range_is_asked_about_with_the_rows_of_each_kernel():
    asked = {}

    def excluded(config, rows):
        asked[config] = rows

    hit = answer(RANGE, SHIPPED, POLICY, excluded=excluded)
    assert len(hit.branches) > 1
    assert asked == {config: rows for config, rows in hit.kernels(RANGE.ranges) if config != ATEN}
    assert next(rows for _, rows in hit.kernels(RANGE.ranges))[0] == 2
    whole = answer(replace(RANGE, ranges={}), SHIPPED, POLICY)
    assert list(whole.kernels({})) == [(whole.config, None)]


def test_explain_says_what_lookup_does():
    best = answer(EXACT, SHIPPED, POLICY)

    def excluded(config, rows):
        return BROKEN if config == best.config else None

    first = explain(EXACT, SHIPPED, POLICY, excluded=excluded)[0]
    assert first.hit == answer(EXACT, SHIPPED, POLICY, excluded=excluded)
    assert first.evidence["refused"][0] == {"config": best.config.text, "reason": "broken"}


def test_aten_is_never_excluded():
    hit = answer(EXACT, SHIPPED, POLICY, excluded=lambda config, rows: BROKEN)
    assert hit.config == ATEN
    assert len(hit.evidence["left_out"]) > 1
    assert ATEN.text not in hit.evidence["left_out"]


@given(st.sampled_from([EXACT, NEAR, RANGE]), st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_the_answer_is_that_of_a_policy_that_denies_what_is_excluded(query, seed, tenths, scale):
    """For random exclusions, some of which depend on the rows that a config is to serve."""

    def excluded(config, rows):
        seen = "" if rows is None or not scale else str((rows[0] // 64, scale))
        draw = hashlib.blake2b(f"{seed} {config.text} {seen}".encode(), digest_size=4).digest()
        return Rejected("by chance") if int.from_bytes(draw) % 10 < tenths else None

    found, wanted = answer(query, SHIPPED, POLICY, excluded=excluded), denied(query, POLICY, excluded)
    assert (found.rung, found.config, found.branches) == (wanted.rung, wanted.config, wanted.branches)
    assert (found.expected_us, found.speedup) == (wanted.expected_us, wanted.speedup)


def test_a_table_full_of_what_cannot_run_is_not_asked_without_end():
    asked = []

    def rung(ask):
        asked.append(ask)
        blocks = dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_n", "blocks_k"), 0)
        config = Config.of("cpp", "packed_gemm", blocks_m=len(asked), **blocks)
        return Step("exact", Hit("exact", config, 1.0, 1.0, ""), "")

    step = _step(rung, Ask(EXACT, (), POLICY, None, lambda config, rows: BROKEN))
    assert len(asked) == MOST_LEFT_OUT + 1
    assert len(step.hit.evidence["left_out"]) == MOST_LEFT_OUT + 1
    assert (step.hit.config, step.hit.speedup) == (ATEN, 1.0)
