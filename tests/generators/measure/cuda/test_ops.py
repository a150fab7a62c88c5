"""Ops that only ATen, Inductor's templates and a few of our kernels solve on a GPU: their candidates, what runs around
ATen's, and their presets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.devices import H200
from kit.presets import preset

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import artifacts, elementwise
from gemmdb.generators.measure.cuda.artifacts import Emission, only_emitted
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.shapes.strata import MOST_BYTES
from gemmdb.kernels.config import ATEN
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand

BATCHED = {"triton:inductor_bmm"}
SLICED = {"triton:inductor_bmm", "triton:batch"}
"""Where swapped tiles or slices of K may help."""
SCALED = {"triton:inductor_mm", "triton:inductor_scaled_tma"}
OURS = {"triton:narrow", "triton:gemv"}


def bmm(batch: int = 8, m: int = 64, n: int = 64, k: int = 128, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def scaled(m: int = 512, n: int = 4096, k: int = 4096, **rest: object) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


def fast(m: int) -> Problem:
    return scaled(m, fast_accum=True)


@pytest.mark.parametrize(
    ("problem", "effort", "kernels", "most"),
    [
        *((bmm(), effort, BATCHED, 11) for effort in ("quick", "standard")), (bmm(), "full", SLICED, 310),
        (bmm(m=8), "standard", SLICED, 12), (bmm(k=4096), "standard", SLICED, 14),
        (fast(1), "quick", OURS, 35), (fast(16), "quick", {"triton:narrow"}, 17), (fast(512), "quick", SCALED, 10),
        (fast(2), "standard", {*OURS, "triton:inductor_mm"}, 38),
        (fast(64), "standard", {"triton:narrow", *SCALED}, 22),
        (fast(65), "standard", SCALED, 10), (fast(512), "standard", SCALED, 10), (fast(512), "full", SCALED, 10),
    ],
)  # fmt: skip
def test_what_is_tried(problem: Problem, effort: str, kernels: set[str], most: int) -> None:
    found = CudaSpace().candidates(problem, H200, named(effort, "cuda"))
    assert found[0].config == ATEN
    assert {one.config.name for one in found[1:]} == kernels
    assert 3 <= len(found) <= most
    assert not any(one.rejected for one in found)
    # The cost model ranks our kernels; of other kernels everything is tried.
    assert {one.config.name for one in found if one.estimated} <= OURS


def test_a_batch_with_few_tiles_gets_smaller_ones() -> None:
    """max-autotune finds them, and a batch of 8 heads has 8 tiles of 128 by 128."""

    def sides(problem: Problem) -> set[tuple[object, object]]:
        found = CudaSpace().candidates(problem, H200, named("standard", "cuda"))
        templates = [one.config.values for one in found if one.config.kernel == "inductor_bmm"]
        return {(values["block_m"], values["block_n"]) for values in templates}

    assert (32, 32) in sides(bmm(m=128, n=128, dtype="fp32"))
    assert (32, 32) not in sides(bmm(batch=256, m=128, n=128, dtype="fp32"))
    assert (64, 32) in sides(bmm(m=33, n=128)) - sides(bmm(m=32, n=128))


KINDS = {
    "bf16": (bmm, {}, 2),
    "fp32": (bmm, {"dtype": "fp32"}, 2),
    "fp8": (scaled, {}, 3),
    "fp8, scales of rows": (scaled, {"scales": "row"}, 3),
    "fp8, a bias": (scaled, {"bias": "1d"}, 3),
    "fp8, two dtypes": (scaled, {"dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}, 3),
}
"""Problems of all kinds, with the least number of candidates besides ATen."""
SIZES = {
    bmm: ([1, 2, 13, 16, 17, 33, 64, 65, 197, 4096], [(64, 2048), (2048, 64), (14336, 4096), (13, 7)]),
    scaled: ([1, 2, 16, 17, 33, 64, 65, 512, 8192], [(28672, 4096), (4096, 14336), (16, 32), (48, 4080)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_candidates_are_distinct_and_legal(name: str) -> None:
    made, rest, least = KINDS[name]
    rows, columns = SIZES[made]
    for problem in (made(m=m, n=n, k=k, **rest) for m in rows for n, k in columns):
        found = [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]]
        assert len(found) == len(set(found)) >= least
        assert not any(config.rejection(problem, H200) for config in found)


@pytest.mark.parametrize(
    "problem",
    [
        bmm(batch=1), bmm(k=1), bmm(batch=0), bmm(m=0), bmm(dtype="fp64"), bmm(constant_weight=True),
        scaled(constant_weight=True), scaled(m=0), scaled(n=0), scaled(k=16),
    ],
    ids=lambda problem: problem.text,
)  # fmt: skip
def test_where_there_is_no_template_aten_is_alone(problem: Problem) -> None:
    assert [one.config for one in CudaSpace().candidates(problem, H200, named("full", "cuda"))] == [ATEN]


@pytest.mark.parametrize(
    ("problems", "templates"),
    [
        ([bmm(), bmm(batch=9)], BATCHED),
        ([scaled(), scaled(scales="row"), scaled(fast_accum=True)], SCALED),
    ],
    ids=["bmm", "scaled_mm"],
)
def test_templates_are_parts_of_emitted_code(problems: list[Problem], templates: set[str]) -> None:
    for candidate in CudaSpace().candidates(problems[0], H200, named("standard", "cuda"))[1:]:
        assert candidate.config.name in templates
        assert only_emitted(candidate.config)
        assert artifacts.required(problems[0], candidate.config) == [Emission(problems[0], candidate.config)]
        assert len({Emission(one, candidate.config).key for one in problems}) == len(problems)


INTERLEAVED = Operand("bf16", Layout("row-padded", 8, "interleaved"))
ROWS = {"scales": "row", "fast_accum": True, "bias": "1d"}


@pytest.mark.parametrize(
    ("bare", "followed", "plain"),
    [
        (bmm(), replace(bmm(fusion="pointwise"), a=INTERLEAVED), Problem.gemm("mm", m=8 * 64, n=64, k=128)),
        *(
            (scaled(**rest), scaled(fusion="pointwise", out_dtype="fp16", **rest),
             Problem.gemm("mm", m=512, n=4096, k=4096, dtype="fp16"))
            for rest in ({}, ROWS)
        ),
    ],
    ids=["bmm", "scaled_mm", "scaled_mm of rows"],
)  # fmt: skip
def test_what_follows_is_that_of_one_product_in_the_outputs_dtype(
    bare: Problem, followed: Problem, plain: Problem
) -> None:
    assert elementwise.around(bare) == (None, None)
    before, after = elementwise.around(followed)
    assert before is None
    assert after == elementwise.after(replace(plain, fusion="pointwise"), plain.out)


@pytest.mark.parametrize(("name", "op"), [("h200-bmm", "bmm"), ("h200-scaled", "scaled_mm")])
def test_a_preset_has_problems_of_the_op_alone_that_can_be_measured(name: str, op: str) -> None:
    problems = preset(name)
    assert {problem.op for problem in problems} == {op}
    for problem in problems:
        assert problem.bytes <= MOST_BYTES
        assert len(CudaSpace().candidates(problem, H200, named(None, "cuda"))) >= 4
