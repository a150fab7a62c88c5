"""Products of batches on a GPU: the tiles of their template, and copies of their operands."""

import pytest
import torch
from kit.devices import H200

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.bench import moved
from gemmdb.generators.measure.cuda.space import CudaSpace

SIZES = [1, 2, 13, 16, 17, 33, 64, 65, 197, 4096]


def bmm(batch: int = 8, m: int = 64, n: int = 64, k: int = 128, **rest: object) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_tiles_are_no_larger_than_the_matrices(dtype: str) -> None:
    for m in SIZES:
        for n, k in ((64, 2048), (2048, 64), (14336, 4096), (13, 7)):
            problem = bmm(m=m, n=n, k=k, dtype=dtype)
            found = [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))[1:]]
            assert found
            for config in found:
                for name, size in (("block_m", m), ("block_n", n), ("block_k", k)):
                    assert config.values[name] == 16 or config.values[name] < 2 * size


@pytest.mark.parametrize("strides", [(0, 16, 1), (16, 48, 1), (130, 16, 1), (128, 1, 8)])
def test_a_copy_lies_as_the_original(strides: tuple[int, ...]) -> None:
    tensor = torch.randn(500).as_strided((3, 8, 16), strides, 4)
    copy = moved(tensor)
    assert (copy.stride(), copy.storage_offset()) == (strides, 4)
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr()
