"""Products of fp8 operands with block scales on a GPU: our kernels of Triton and CUDA, served alone, and measured."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import is_template, make, measure, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.devices import detect
from gemmdb.kernels.cutlass import compiler, headers

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not HOPPER, reason="cuBLAS multiplies with block scales on Hopper alone"),
]


def scaled(m: int, n: int, k: int, **rest: Any) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, scales="block", **rest)


IN_BLOCKS = [
    *(scaled(m=m, n=n, k=k) for m, n, k in ((4, 512, 1024), (72, 256, 512), (200, 4096, 7168))),
    scaled(m=20, n=384, k=2048, fusion="pointwise"),
    scaled(m=132, n=256, k=1024, fusion="pointwise:reads1"),
]
"""With block scales. ATen wants the rows, and the blocks along K, in fours, and has no fast accumulation here."""
OF_BLOCKS = [
    make("scaled_blocks"), make("scaled_blocks", swap=1), make("scaled_blocks", split_k=2),
    make("scaled_blocks", swap=1, block_n=128, split_k=2), make("scaled_blocks", block_m=128, block_n=128, warps=8),
    make("scaled_blocks", swap=1, blocks=1, split_k=3), make("scaled_blocks", swap=1, blocks=2, split_k=2),
    make("scaled_blocks", blocks=4), make("scaled_blocks", block_n=32, warps=2, blocks=2),
]  # fmt: skip


def blocks(m: int, n: int, **changes: int) -> Config:
    """A config of our CUDA kernel for block scales."""
    base = {"tile_m": m, "tile_n": n, "cluster_m": 1, "cluster_n": 1, "split_k": 1, "swap": 0}
    return Config.of("cutlass", "scaled_blocks", **{**base, **changes})


OF_CLUSTERS = [
    blocks(64, 128), blocks(128, 112), blocks(128, 128, cluster_m=2), blocks(128, 96, cluster_n=2), blocks(192, 128),
    blocks(256, 128, cluster_n=2), blocks(256, 112), blocks(64, 64, split_k=4), blocks(64, 160),
    blocks(16, 64, swap=1, split_k=8), blocks(48, 128, swap=1, split_k=2), blocks(96, 128, swap=1),
    blocks(192, 32, split_k=2), blocks(160, 128, swap=1),
    blocks(32, 128, swap=1, cluster_n=2), blocks(64, 64, swap=1, cluster_m=2),
]  # fmt: skip
"""Of every kind: rows on either side, one to three warp groups, shared loads, parts of K."""
NEEDS_NVCC = pytest.mark.skipif(compiler() is None or headers() is None, reason="needs nvcc and nvidia-cutlass")


@NEEDS_NVCC
@pytest.mark.parametrize("config", OF_CLUSTERS, ids=lambda config: config.text)
def test_clusters_apply_scales_of_blocks_within_the_sum(kit: Any, config: Config) -> None:
    more = ((516, 784, 1024), (4, 272, 1024), (36, 400, 16384))
    problems = (*IN_BLOCKS, *(scaled(m=m, n=n, k=k) for m, n, k in more))
    assert config.rejection(problems[-1], detect.cuda()) is None
    for problem in problems:
        if config.rejection(problem, detect.cuda()) is None:
            gemmdb.inductor.reset_stats()
            _, code = solved(problem, config)
            assert kit.served() == [config.text]
            assert "async_compile.cuda(" in code
            assert "extern_kernels." not in code.partition("async_compile.wait")[2]


@NEEDS_NVCC
@pytest.mark.parametrize("problem", IN_BLOCKS, ids=lambda problem: problem.text)
def test_clusters_are_measured(problem: Problem) -> None:
    measure(problem, [one for one in OF_CLUSTERS if one.rejection(problem, detect.cuda()) is None])


@pytest.mark.parametrize("config", OF_BLOCKS, ids=lambda config: config.text)
@pytest.mark.parametrize("problem", IN_BLOCKS, ids=lambda problem: problem.text)
def test_scales_of_blocks_are_applied_within_the_sum(kit: Any, config: Config, problem: Problem) -> None:
    _, code = solved(problem, config)
    assert kit.served() == [config.text]
    assert is_template(code)


@pytest.mark.parametrize("problem", IN_BLOCKS, ids=lambda problem: problem.text)
def test_scales_of_blocks_are_measured(problem: Problem) -> None:
    from gemmdb.generators.measure.cuda.artifacts import required

    for config in OF_BLOCKS:
        assert [artifact.build(90).failure for artifact in required(problem, config)] == [""]
    measure(problem, OF_BLOCKS)
