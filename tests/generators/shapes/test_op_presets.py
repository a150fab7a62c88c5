"""The presets of single ops, `h200-bmm` and `h200-scaled`: what they hold, and that a prefix is a sample."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence

import pytest
from kit.presets import preset

from gemmdb import Problem
from gemmdb.generators.shapes.h200_scaled import DEEPSEEK
from gemmdb.generators.shapes.strata import affordable
from gemmdb.key import representatives

FIRST = {"h200-bmm": 183, "h200-scaled": 115}
"""How many problems each began with: tables were built from them."""
DIGESTS = {
    "h200-bmm": "cc67f791f00e4edfe127df50e53971018400022d48023809079685ee8bbd916a",
    "h200-scaled": "f54acb3b8e2cee8421446385e6917325d52c5b5179cca70598ea7872aa33e739",
}


BLOCKS = 60
"""How many problems with scales of blocks come after the others."""


def drawn(name: str) -> Sequence[Problem]:
    problems = preset(name)[FIRST[name] :]
    return problems[:-BLOCKS] if name == "h200-scaled" else problems


def use(problem: Problem) -> Hashable:
    """What tells the uses of an op apart."""
    few, numerics = problem.m <= 64, problem.numerics
    if problem.scaled:
        return problem.scales, numerics.fast, problem.bias is None, few
    return problem.a.dtype, numerics.fp32, problem.a.layout.order, problem.b.layout.order


@pytest.mark.parametrize("name", FIRST)
def test_the_first_part_stays_as_tables_were_built_from_it(name: str) -> None:
    texts = "\n".join(problem.text for problem in preset(name)[: FIRST[name]])
    assert hashlib.sha256(texts.encode()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("size", [60, 150, 300])
@pytest.mark.parametrize("name", FIRST)
def test_a_prefix_of_the_rest_is_a_sample_of_it(name: str, size: int) -> None:
    rest = drawn(name)
    whole, part = Counter(map(use, rest)), Counter(map(use, rest[:size]))
    for kind, count in whole.items():
        expected = count / len(rest) * size
        assert abs(part[kind] - expected) <= 3 + 0.25 * expected, kind


@pytest.mark.parametrize(("name", "least"), [("h200-bmm", 400), ("h200-scaled", 600)])
def test_there_are_enough_and_each_is_affordable(name: str, least: int) -> None:
    assert len(drawn(name)) + FIRST[name] >= least
    assert all(affordable(problem) and representatives.rejection(problem) is None for problem in drawn(name))


def test_scaled_products_of_every_kind_at_all_rows() -> None:
    problems = drawn("h200-scaled")
    for scales in ("tensor", "row"):
        for fast in (True, False):
            here = [p for p in problems if (p.scales, p.numerics.fast) == (scales, fast)]
            assert {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 4096} <= {p.m for p in here}
            assert {p.bias is None for p in here} == {True, False}
            assert {"bf16", "fp16"} <= {p.out for p in here}
    assert max(p.m for p in problems) == 8192
    assert {p.fusion for p in problems} == {"none", "pointwise", "pointwise:reads1", "pointwise:math:reads1"}
    assert {p.a.dtype for p in problems} == {"fp8_e4m3", "fp8_e5m2"}
    assert sum(p.m <= 64 for p in problems) > 2 * sum(p.m > 64 for p in problems)


def test_scales_of_blocks_come_last() -> None:
    problems = preset("h200-scaled")
    assert [p.scales == "block" for p in problems] == [False] * (len(problems) - BLOCKS) + [True] * BLOCKS
    here = problems[-BLOCKS:]
    assert {4, 16, 64, 128, 4096} <= {p.m for p in here}
    assert len({(p.n, p.k) for p in here} & set(DEEPSEEK)) >= 6
    assert all(p.n % 128 == p.k % 512 == 0 for p in here)


@pytest.mark.parametrize(("dtype", "fp32"), [("bf16", "ieee"), ("fp16", "ieee"), ("fp32", "ieee"), ("fp32", "tf32")])
def test_attention_of_every_length_in_every_precision(dtype: str, fp32: str) -> None:
    here = [p for p in drawn("h200-bmm") if (p.a.dtype, p.numerics.fp32) == (dtype, fp32)]
    scores = [p for p in here if p.m == p.n and p.k <= 256]
    values = [p for p in here if p.m == p.k and p.n <= 256]
    for found in (scores, values):
        assert {64, 128, 256, 512, 1024} <= {p.m for p in found}
        assert {p.batch < 64 for p in found} == {True, False}
    # One sequence is read where the projection wrote it. Several are copied first.
    assert {"interleaved", ""} <= {p.a.layout.batch for p in scores}
    assert {"interleaved", ""} <= {p.b.layout.batch for p in values}
    assert {"none", "pointwise:permuted"} == {p.fusion for p in values}
    if dtype != "fp32":
        assert {2048, 4096} <= {p.m for p in here}


def test_batches_of_weights() -> None:
    problems = drawn("h200-bmm")
    sizes = {(p.batch, p.n, p.k) for p in problems if p.a.layout.batch == "interleaved"}
    assert {(16, 512, 128), (128, 512, 128), (128, 128, 512)} <= sizes  # MLA: into the latent size, and back.
    assert {(10, 256, 256), (4, 512, 512)} <= sizes
    ranks = {(p.n, p.k) for p in problems}
    assert {8, 16, 64} <= {n for n, k in ranks if k >= 2048}
    assert {8, 16, 64} <= {k for n, k in ranks if n >= 2048}
    assert {(5760, 2880), (14336, 4096), (16384, 5120)} <= ranks  # Experts that get as many tokens each.
    assert any(p.a.layout.order == "col" for p in problems)
