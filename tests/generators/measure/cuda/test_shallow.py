"""GEMMs whose whole K one step multiplies: a class of their own in the menus, in rung `near` and in the model."""

import pytest
from kit.devices import H200
from kit.gpu import make

from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace, everything, from_menu
from gemmdb.kernels import hardware
from gemmdb.kernels.rules import shallow
from gemmdb.key.problem import Problem
from gemmdb.lookup import explain
from gemmdb.lookup.neighbours import same_side
from gemmdb.lookup.ranking import outside
from gemmdb.settings import Policy

gemm = Problem.gemm
SHALLOW = [
    gemm("addmm", m=512, n=512, k=13), gemm("addmm", m=8, n=512, k=13), gemm("mm", m=512, n=512, k=32),
    gemm("mm", m=4096, n=8192, k=16), gemm("mm", m=512, n=512, k=13, dtype="fp32"), gemm("int_mm", m=64, n=512, k=24),
    gemm("mixed_mm", m=16, n=512, k=32),
]  # fmt: skip


@pytest.mark.parametrize("problem", SHALLOW, ids=lambda problem: problem.head)
def test_a_build_tries_tiles_that_multiply_the_whole_k_at_once(problem):
    """max-autotune did so where 512 x 512 x 13 took cuBLAS twice as long. A deeper tile would load zeros."""
    found = from_menu(problem, H200)
    assert 3 <= len(found) <= 8
    assert {(config.kernel, config.values["split_k"]) for config in found} == {("tile", 1)}
    assert all(problem.k <= config.values["block_k"] <= 32 for config in found)
    tried = [one.config for one in CudaSpace(cutlass=False).candidates(problem, H200, named("standard", "cuda"))]
    assert set(found) <= set(tried)
    assert all(config.values["block_k"] <= 32 for config in tried if config.kernel == "inductor_mm")
    assert any(config.values["block_k"] <= 32 for config in everything(problem, H200))


def test_the_first_tiles_fill_the_multiprocessors_once():
    def first(m, n):
        tile = from_menu(gemm("mm", m=m, n=n, k=16), H200)[0].values
        return hardware.tile_count(m, n, (tile["block_m"], tile["block_n"]))

    assert first(512, 512) == 128
    assert first(4096, 8192) == 1024, "the largest tile"
    assert first(8, 512) == 16, "the smallest"


def test_a_batch_is_not_shallow():
    """Attention has a K of 32 and less, and rows of its own."""
    assert not shallow(gemm("bmm", batch=8, m=64, n=64, k=32))
    assert not shallow(gemm("mm", m=64, n=64, k=1)), "there is nothing to tune"
    assert not shallow(gemm("mm", m=64, n=64, k=33))


def test_only_shallow_gemms_are_neighbours_of_one(lab):
    near, far = gemm("mm", m=512, n=512, k=24), gemm("mm", m=512, n=512, k=40)
    asked = gemm("mm", m=512, n=512, k=32)
    assert same_side(asked, near)
    assert not same_side(asked, far)
    assert not same_side(far, asked)
    for other, reason in ((near, "from 1 neighbour"), (far, "no similar problem")):
        rows = lab.rows(other, {make("tile", block_k=32): 0.5}, device=H200)
        steps = explain(lab.query(asked, H200), lab.catalog(list(rows)), Policy(on_miss="aten"))
        assert reason in next(step.reason for step in steps if step.rung == "near")
        assert not any(step.hit for step in steps), "ATen is no answer, as nobody measured it"


def test_the_model_does_not_cover_it():
    assert "one step of a kernel" in str(outside(gemm("mm", m=512, n=512, k=32)))
    assert outside(gemm("mm", m=512, n=512, k=40)) is None
