"""Products of batches on a GPU: their candidates, what runs around ATen's, and the preset of them."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from kit.devices import H200

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import elementwise, requirements
from gemmdb.generators.measure.cuda.bench import moved
from gemmdb.generators.measure.cuda.emission import Emission
from gemmdb.generators.measure.cuda.emitted_config import only_emitted
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.generators.shapes import loading
from gemmdb.generators.shapes.strata import MOST_BYTES, MOST_US, call_us
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.legality import illegal
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand

SIZES = [1, 2, 13, 16, 17, 33, 64, 65, 197, 4096]


def bmm(batch: int = 8, m: int = 64, n: int = 64, k: int = 128, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("effort", ["quick", "standard", "full"])
def test_every_effort_tries_aten_and_inductors_template(effort: str) -> None:
    found = CudaSpace().candidates(bmm(), H200, named(effort, "cuda"))
    assert found[0].config == ATEN
    assert {one.config.name for one in found[1:]} == {"triton:inductor_bmm"}
    assert 3 <= len(found) <= 9
    assert not any(one.illegal or one.estimated for one in found)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_tiles_are_distinct_legal_and_no_larger_than_the_matrices(dtype: str) -> None:
    for m in SIZES:
        for n, k in ((64, 2048), (2048, 64), (14336, 4096), (13, 7)):
            problem = bmm(m=m, n=n, k=k, dtype=dtype)
            found = [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]]
            assert len(found) == len(set(found)) >= 2
            assert not any(illegal(config, problem, H200) for config in found)
            for config in found:
                for name, size in (("block_m", m), ("block_n", n), ("block_k", k)):
                    assert config.values[name] == 16 or config.values[name] < 2 * size


@pytest.mark.parametrize(
    "problem", [bmm(batch=1), bmm(k=1), bmm(batch=0), bmm(m=0), bmm(dtype="fp64"), bmm(constant_weight=True)]
)
def test_where_there_is_no_template_aten_is_alone(problem: Problem) -> None:
    assert [one.config for one in CudaSpace().candidates(problem, H200, named("full", "cuda"))] == [ATEN]


def test_the_template_is_one_part_of_emitted_code() -> None:
    problem = bmm()
    config = CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1].config
    assert only_emitted(config)
    assert requirements.required(problem, config) == [Emission(problem, config)]
    assert Emission(problem, config).key != Emission(replace(problem, batch=9), config).key


def test_what_follows_a_batch_takes_it_for_one_matrix() -> None:
    assert elementwise.around(bmm()) == (None, None)
    interleaved = replace(bmm(fusion="pointwise"), a=Operand("bf16", Layout("row-padded", 8, "interleaved")))
    _, after = elementwise.around(interleaved)
    assert after == elementwise.after(Problem.gemm("mm", m=8 * 64, n=64, k=128, fusion="pointwise"), "bf16")


@pytest.mark.parametrize("strides", [(0, 16, 1), (16, 48, 1), (130, 16, 1), (128, 1, 8)])
def test_a_copy_lies_as_the_original(strides: tuple[int, ...]) -> None:
    tensor = torch.randn(500).as_strided((3, 8, 16), strides, 4)
    copy = moved(tensor)
    assert (copy.stride(), copy.storage_offset()) == (strides, 4)
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr()


def test_the_preset() -> None:
    problems = loading.load("h200-bmm", "cuda")
    assert len(problems) == 59
    assert {problem.op for problem in problems} == {"bmm"}
    assert {8, 16, 64, 32, 256, 512} <= {problem.batch for problem in problems}
    kinds = Counter((problem.a.dtype, problem.numerics.fp32) for problem in problems)
    assert set(kinds) == {("bf16", "ieee"), ("fp16", "ieee"), ("fp32", "ieee"), ("fp32", "tf32")}
    assert kinds["bf16", "ieee"] + kinds["fp16", "ieee"] >= 50
    for problem in problems:
        assert problem.bytes <= MOST_BYTES
        assert call_us(problem) <= MOST_US
        assert len(CudaSpace().candidates(problem, H200, named(None, "cuda"))) >= 4
