"""The preset of experts: which mixtures it holds, in which order, and that a build can measure all of it."""

import hashlib
from collections import Counter

import pytest
from kit.devices import H200
from kit.presets import preset

from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.measure.literals import splits
from gemmdb.generators.shapes import h200_grouped
from gemmdb.generators.shapes.strata import affordable

PROBLEMS = preset("h200-grouped")
FIRST = len(h200_grouped.most_used())
WHOLE = len(PROBLEMS) - len(h200_grouped.fp8())


def test_the_most_used_mixtures_come_first_at_all_steps():
    first = PROBLEMS[:FIRST]
    assert {(p.groups, p.n, p.k) for p in first} == {
        (8, 28672, 4096), (8, 4096, 14336), (128, 1536, 2048), (128, 2048, 768), (32, 4096, 7168), (32, 7168, 2048),
    }  # fmt: skip
    # Rows: two experts of 8, 8 of 128, and a share of an eighth of 8 of 256.
    assert {p.m for p in first if p.groups == 8} == {2 * tokens for tokens in h200_grouped.STEPS}
    assert {p.m for p in first if p.groups == 128} == {8 * tokens for tokens in h200_grouped.STEPS}
    assert {p.m for p in first if p.groups == 32} == set(h200_grouped.STEPS)
    # The two products of an expert follow each other, and the router's weights the second.
    for up, down in zip(first[::2], first[1::2], strict=True):
        assert (up.n, up.k) == (2 * down.k, down.n)
        assert (up.fusion, down.fusion) == ("none", "pointwise:fp32")


def test_all_of_it_is_products_of_groups_that_a_build_measures():
    assert len(set(PROBLEMS)) == len(PROBLEMS)
    assert all(affordable(problem) for problem in PROBLEMS[FIRST:])
    space, effort = CudaSpace(), named("quick", "cuda")
    for problem in [*PROBLEMS[:WHOLE:7], *PROBLEMS[WHOLE::3]]:
        found = space.candidates(problem, H200, effort)
        assert len(found) >= 4, problem.text
        assert not any(one.rejected for one in found)
        assert splits(problem)


@pytest.mark.parametrize("part", [(FIRST, 160), (160, 320), (320, 480)])
def test_any_part_of_the_rest_is_a_balanced_sample(part):
    found = PROBLEMS[slice(*part)]
    kinds = Counter((p.ragged, p.fusion != "none") for p in found)
    assert 0.35 <= kinds["m", False] / len(found) <= 0.65
    assert 0.25 <= kinds["m", True] / len(found) <= 0.45
    assert 0.04 <= kinds["k", False] / len(found) <= 0.13
    assert {8, 16, 32, 64, 128} <= {p.groups for p in found}
    rows = Counter(p.m // max(p.groups, 1) > 16 for p in found if p.ragged == "m")
    assert min(rows.values()) > len(found) / 6


def test_the_most_used_mixtures_come_again_with_fp8_and_nothing_before_them_has_moved():
    assert not any(p.scaled for p in PROBLEMS[:WHOLE])
    text = "\n".join(p.text for p in PROBLEMS[:WHOLE])
    assert (WHOLE, hashlib.sha256(text.encode()).hexdigest()[:16]) == (480, "f65eda502a1955bd")
    last = PROBLEMS[WHOLE:]
    assert len(last) == 60
    assert {(p.m, p.n, p.k, p.groups, p.fusion) for p in last} == {
        (p.m, p.n, p.k, p.groups, p.fusion) for p in PROBLEMS[:FIRST]
    }
    assert Counter((p.a.dtype, p.scales, p.numerics.fast) for p in last) == {
        ("fp8_e4m3", "row", True): FIRST, ("fp8_e4m3", "row", False): 18,
    }  # fmt: skip
