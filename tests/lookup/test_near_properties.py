"""What holds for rung `near` whatever is in the table."""

import math
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gemmdb.kernels.config import ATEN
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Numerics, Operand
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.record import STEP

POLICY = Policy()
FILES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BASE = Problem.gemm("mm", m=64, n=256, k=256, dtype="fp32", constant_weight=True)
OTHER_FAMILIES = {
    "layout": Problem.gemm("mm", m=64, n=256, k=256, dtype="fp32", constant_weight=True, layout="nn"),
    "order": replace(BASE, a=Operand("fp32", Layout("row-padded", 4))),
    "alignment": replace(BASE, a=Operand("fp32", Layout("row", 2))),
    "dtype": Problem.gemm("mm", m=64, n=256, k=256, dtype="bf16", constant_weight=True),
    "out dtype": Problem.gemm("mm", m=64, n=256, k=256, dtype="fp32", constant_weight=True, out_dtype="bf16"),
    "tf32": replace(BASE, numerics=Numerics("tf32")),
    "determinism": replace(BASE, numerics=Numerics(deterministic=True)),
    "fusion": replace(BASE, fusion="pointwise"),
    "constant": replace(BASE, constant=False),
    "op": Problem.gemm("addmm", m=64, n=256, k=256, dtype="fp32", constant_weight=True),
    "scalars": replace(BASE, scalars="general"),
}


@FILES
@given(
    stored=st.sampled_from(sorted(OTHER_FAMILIES)),
    asked=st.sampled_from(["base", *sorted(OTHER_FAMILIES)]),
    m=st.integers(60, 70),
    units=st.sampled_from([2, 4]),
)
def test_near_never_crosses_classes_or_devices(lab, stored, asked, m, units):
    problem = OTHER_FAMILIES[stored]
    question = (BASE if asked == "base" else OTHER_FAMILIES[asked]).resized(m, 256, 256)
    assume(question != problem)
    device = replace(lab.cpu, units=units)
    catalog = lab.catalog([*lab.rows(problem, {lab.cpp(): 0.5})])
    hit = answer(lab.query(question, device), catalog, replace(POLICY, near_loss=10.0))
    assert (hit is not None) == (stored == asked and units == 2)


@FILES
@given(known=st.integers(2, 5000), m=st.integers(2, 10_000), n=st.integers(100, 400))
def test_near_declines_exactly_beyond_the_bound(lab, known, m, n):
    assume((m, n) != (known, 256))
    catalog = lab.catalog([*lab.rows(lab.problem(m=known), {lab.cpp(): 0.5})])
    hit = answer(lab.query(lab.problem(m=m, n=n)), catalog, replace(POLICY, near_loss=10.0))
    inside = math.hypot(math.log2(m / known), math.log2(n / 256)) <= 0.6
    assume(lab.problem(n=n).family == lab.problem().family)
    assert (hit is not None) == inside


@FILES
@given(
    ratios=st.lists(st.tuples(st.floats(0.3, 1.5), st.floats(0.3, 1.5)), min_size=3, max_size=3),
    m=st.integers(33, 63),
    near_loss=st.floats(0, 0.5),
)
def test_what_is_served_is_within_the_policy_and_repeatable(lab, ratios, m, near_loss):
    configs = [lab.cpp(blocks_m=count) for count in range(3)]
    known = {
        lab.problem(m=m): {c: pair[i] for c, pair in zip(configs, ratios, strict=True)} for i, m in ((0, 32), (1, 64))
    }
    catalog = lab.catalog(lab.rows_of(known))
    policy = replace(POLICY, near_loss=near_loss)
    hit = answer(lab.query(lab.problem(m=m)), catalog, policy)
    assert answer(lab.query(lab.problem(m=m)), catalog, policy) == hit
    if hit is None:
        return
    if hit.evidence["expected_loss"] > near_loss:
        assert hit.speedup > 1.02
        assert answer(lab.query(lab.problem(m=m)), catalog, replace(policy, on_miss="live")) is None
    if hit.config != ATEN:
        least, most = sorted(ratios[configs.index(hit.config)])
        assert least * (1 - STEP) <= 1 / hit.speedup <= most * (1 + STEP)
