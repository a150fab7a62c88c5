"""Rung `epilogue`: what rows of the same GEMM with another epilogue, or with none, may answer."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import strategies
from kit.gpu import make

from gemmdb.devices import registry
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer, explain
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.other_epilogue import GROUPED, is_light_experts, stand_ins
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status

POLICY = Policy(on_miss="aten")
CONFIRMING = replace(POLICY, confirm=True)


def asked(lab, fusion="pointwise:math", **rest):
    return lab.query(lab.problem(fusion=fusion), **rest)


def catalog(lab, **ratios):
    """Rows of one size by fusion context: `none=0.9` is a kernel at 0.9 of ATen's time."""
    rows = [
        row for name, ratio in ratios.items()
        for row in lab.rows(lab.problem(fusion=name.replace("_", ":")), {lab.cpp(): ratio})
    ]  # fmt: skip
    return lab.catalog(rows)


def found(lab, tables, policy=POLICY, **rest):
    hit = answer(asked(lab, **rest), tables, policy, lab.here)
    return hit and (hit.rung, "kernel" if hit.config == lab.cpp() else hit.config.name)


def test_its_own_rows_come_first(lab):
    tables = catalog(lab, pointwise_math=0.7, pointwise=0.5, none=0.5)
    hit = answer(asked(lab), tables, POLICY, lab.here)
    assert (hit.rung, hit.config, round(1 / hit.speedup, 3)) == ("exact", lab.cpp(), 0.7)


def test_a_kernel_that_is_good_alone_is_served_with_an_epilogue_that_was_not_measured(lab):
    tables = catalog(lab, pointwise=0.8, none=1.0)
    hit = answer(asked(lab), tables, POLICY, lab.here)
    assert (hit.rung, hit.config, round(1 / hit.speedup, 3)) == ("epilogue", lab.cpp(), 0.8)
    assert (hit.evidence["measured_as"], hit.evidence["measured_fusion"]) == ("exact", "pointwise")


@pytest.mark.parametrize(
    ("rows", "alone", "confirmed"),
    [
        # The epilogue alone made the kernel the faster one: with another epilogue that may be different.
        ({"pointwise": 0.8, "none": 1.05}, ATEN, True),
        # Nobody knows how the kernel does alone.
        ({"pointwise": 0.8}, ATEN, True),
        # The gain is too small for rows of another epilogue.
        ({"pointwise": 0.97, "none": 0.97}, ATEN, True),
        ({"pointwise": 1.2, "none": 1.0}, ATEN, False),
        ({"none": 0.8}, None, True),
    ],
    ids=str,
)
def test_what_is_served_without_confirming_and_what_is_confirmed(lab, rows, alone, confirmed):
    tables = catalog(lab, **rows)
    kernel = ("epilogue", "kernel")
    assert found(lab, tables) == (("epilogue", ATEN.name) if alone == ATEN else kernel)
    assert found(lab, tables, CONFIRMING) == (kernel if confirmed else ("epilogue", ATEN.name))


def test_on_a_cpu_a_transposed_store_is_confirmed_or_left_to_aten(lab):
    tables = catalog(lab, pointwise=0.5, none=0.5)
    for fusion in ("pointwise:transposed", "pointwise:math:reads1:transposed"):
        assert found(lab, tables, fusion=fusion) == ("epilogue", ATEN.name)
        assert found(lab, tables, replace(POLICY, on_miss="live"), fusion=fusion) is None
        assert found(lab, tables, CONFIRMING, fusion=fusion) == ("epilogue", "kernel")
    assert found(lab, tables, fusion="pointwise:permuted") == ("epilogue", "kernel")


def test_live_tuning_decides_what_rows_leave_open(lab):
    live = replace(POLICY, on_miss="live")
    tables = catalog(lab, pointwise=0.8, none=1.05)
    assert found(lab, tables, live) is None
    assert "may be slower than ATen without an epilogue" in explain(asked(lab), tables, live)[2].reason
    assert found(lab, catalog(lab, pointwise=0.8, none=0.9), live) == ("epilogue", "kernel")


def test_strict_mode_serves_what_was_measured(lab):
    strict = replace(POLICY, on_miss="error")
    assert found(lab, catalog(lab, pointwise=0.8, none=0.8), strict) is None
    assert found(lab, catalog(lab, pointwise_math=0.8), strict) == ("exact", "kernel")


def test_aten_alone_does_not_answer_for_what_fusing_saves(lab):
    tables = catalog(lab, none=1.2)
    assert found(lab, tables) == ("epilogue", ATEN.name)
    assert found(lab, tables, replace(POLICY, on_miss="live")) is None
    # A GEMM that is stored anyway is nearly what was measured.
    assert found(lab, tables, replace(POLICY, on_miss="live"), fusion="pointwise:kept") == ("epilogue", ATEN.name)


def test_only_rows_without_an_epilogue_tell_about_a_gemm_that_is_kept(lab):
    fusion = "pointwise:math:kept"
    assert found(lab, catalog(lab, pointwise=0.5), fusion=fusion) is None
    assert found(lab, catalog(lab, pointwise=0.5, none=0.8), fusion=fusion) == ("epilogue", "kernel")


@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_without_an_epilogue_its_own_rows_alone_answer(lab, fusion):
    rows = {"none": 0.5, "pointwise": 0.5, "pointwise_math": 0.5}
    tables = catalog(lab, **{name: ratio for name, ratio in rows.items() if name != fusion})
    assert found(lab, tables, fusion=fusion) is None


def test_rows_without_an_epilogue_tell_which_kernel_gains_with_the_light_one(lab):
    """Experts of programs mask their rows behind the GEMM, and presets have GEMMs alone."""
    assert found(lab, catalog(lab, none=0.8), fusion="pointwise") == ("epilogue", "kernel")
    assert found(lab, catalog(lab, none=0.97), CONFIRMING, fusion="pointwise") == ("epilogue", "kernel")
    assert found(lab, catalog(lab, pointwise_math=0.5), fusion="pointwise") is None


def test_where_the_fastest_cannot_be_fused_the_next_one_is_served(lab, no_shipped_tables):
    """A persistent loop over the tiles of all groups cannot be fused with what follows."""
    h200, alone = registry.find("NVIDIA H200"), Problem.gemm("grouped_mm", m=64, n=1536, k=2048, groups=8)
    flat, plain = (make("grouped", flatten=number, load="tma") for number in (1, 0))
    tables = lab.catalog(lab.rows(alone, {flat: 0.6, plain: 0.7}, device=h200, clock="graph"))
    light = replace(alone, fusion="pointwise")
    assert answer(lab.query(alone, h200), tables, POLICY).config == flat
    hit = answer(lab.query(light, h200), tables, replace(POLICY, model=False))
    assert (hit.rung, hit.config) == ("epilogue", plain)


@pytest.mark.parametrize("ratio", [0.97, 1.2])
def test_other_rungs_may_answer_where_they_do_not(lab, ratio):
    (step,) = (
        step for step in explain(asked(lab, fusion="pointwise"), catalog(lab, none=ratio), POLICY, lab.here)
        if step.rung == "epilogue"
    )  # fmt: skip
    assert step.hit is None
    assert "fusion=none" in step.reason


def test_a_config_that_was_wrong_with_this_epilogue_is_not_served(lab):
    good = [row for word in ("pointwise", "none") for row in lab.rows(lab.problem(fusion=word), {lab.cpp(): 0.8})]
    bad = [
        row for row in lab.rows(lab.problem(fusion="pointwise:math"), {lab.cpp(): 0.8}, status=Status.WRONG)
        if row.config != ATEN
    ]  # fmt: skip
    assert found(lab, lab.catalog(good), CONFIRMING) == ("epilogue", "kernel")
    assert found(lab, lab.catalog([*good, *bad]), CONFIRMING) == ("epilogue", ATEN.name)


def test_neighbours_stand_in_too(lab):
    def rows(ratio, word):
        return [row for m in (14, 18) for row in lab.rows(lab.problem(m=m, fusion=word), {lab.cpp(): ratio})]

    tables = lab.catalog([*rows(0.5, "pointwise"), *rows(0.6, "none")])
    hit = answer(asked(lab), tables, POLICY, lab.here)
    assert (hit.rung, hit.config, hit.evidence["measured_as"]) == ("epilogue", lab.cpp(), "near")
    tables = lab.catalog([*rows(0.5, "pointwise"), *rows(1.1, "none")])
    assert found(lab, tables) == ("epilogue", ATEN.name)


def test_rows_of_the_class_nearby_come_before_the_same_size_with_another_epilogue(lab):
    near = [row for m in (14, 18) for row in lab.rows(lab.problem(m=m, fusion="pointwise:math"), {lab.cpp(): 1.3})]
    here = [row for word in ("pointwise", "none") for row in lab.rows(lab.problem(fusion=word), {lab.cpp(): 0.5})]
    assert found(lab, lab.catalog([*near, *here])) == ("near", ATEN.name)


def whole_range(lab, alone):
    """Rows at every bucket of M from 8 to 32, and what they answer for that range."""
    rows = [
        row for word, ratio in (("pointwise", 0.5), ("none", alone)) for m in (8, 16, 32)
        for row in lab.rows(lab.problem(m=m, fusion=word), {lab.cpp(): ratio})
    ]  # fmt: skip
    return found(lab, lab.catalog(rows), fusion="pointwise:math", ranges={"m": (8, 32)})


def test_a_range_is_answered_if_the_kernel_is_good_alone_everywhere(lab):
    assert whole_range(lab, 1.0) == ("epilogue", "kernel")
    assert whole_range(lab, 1.1) == ("epilogue", ATEN.name)


def test_live_tuning_begins_with_what_was_fastest_with_another_epilogue(lab):
    best, second = lab.cpp(blocks_m=1), lab.cpp(blocks_m=2)
    tables = lab.catalog([*lab.rows(lab.problem(fusion="pointwise"), {second: 0.8, best: 0.5})])
    assert candidates(Ask(asked(lab), tables.tables, POLICY, lab.here))[:2] == [best, second]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fused=st.none() | st.floats(0.3, 1.5), alone=st.none() | st.floats(0.3, 1.5), fusion=strategies.epilogues,
    on_miss=st.sampled_from(["aten", "live", "error"]),
)  # fmt: skip
def test_without_confirming_nothing_is_served_that_is_slower_alone(lab, fused, alone, fusion, on_miss):
    if fusion.text == "pointwise" or fusion.stored == "bf16":
        return
    rows = {name: ratio for name, ratio in (("pointwise", fused), ("none", alone)) if ratio is not None}
    answer = found(lab, catalog(lab, **rows), replace(POLICY, on_miss=on_miss), fusion=fusion.text)
    if answer is not None and answer[1] != ATEN.name:
        assert fusion.order != "transposed"
        assert alone is not None
        assert alone <= 1 + POLICY.range_regret


@given(strategies.problems, st.sampled_from(["cuda", "cpu"]))
def test_stand_ins_differ_in_the_epilogue_the_bias_or_a_constant_weight_alone(problem, kind):
    if problem.fusion == "scale":
        return
    others = stand_ins(problem, kind)
    if problem.constant and kind == "cuda" and not problem.spec.dequantises:
        first, *others = others
        assert first == replace(problem, constant=False)
        others, inputs = others[: len(others) // 2], others[len(others) // 2 :]
        assert tuple(inputs) == stand_ins(first, kind)
        assert [replace(other, constant=False) for other in others] == inputs
    same = [other for other in others if other.op == problem.op]
    assert all(replace(other, fusion=problem.fusion) == problem for other in same)
    assert all(replace(problem, op="mm", bias=None) == other for other in others if other not in same)
    assert problem not in others
    if kind == "cuda" and is_light_experts(problem):
        assert {other.fusion for other in same} == {*GROUPED, "none"} - {problem.fusion}
        return
    assert {other.fusion for other in same} <= {"pointwise", "none"}
    assert bool(same) == (problem.fusion not in ("none", "scale"))
    assert len(others) - len(same) == (
        kind == "cuda" and problem.op == "addmm" and problem.scalars == "unit" and problem.bias.kind == "1d"
        and problem.fusion != "none"
    )  # fmt: skip
