"""Our CUDA kernels for int4 weights on a GPU: right in all their forms, and served alone."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import measure_forms, served_as_one_choice
from torch.nn.functional import linear

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.cutlass import compiler, headers

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not HOPPER, reason="the kernel is made of Hopper's instructions"),
]
NEEDS_NVCC = pytest.mark.skipif(compiler() is None or headers() is None, reason="needs nvcc and nvidia-cutlass")


def weights(**changes: int) -> Config:
    base = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "groups": 2, "split_k": 1}
    return Config.of("cutlass", "int4", **{**base, **changes})


def stream(**changes: int) -> Config:
    base = {"tile_m": 8, "tile_n": 32, "rows": 32, "warps": 4, "split_k": 1}
    return Config.of("cutlass", "int4_stream", **{**base, **changes})


def int4(**rest: Any) -> Problem:
    given = {"m": 200, "n": 1032, "k": 1024, "weight_dtype": "int4", "packing": "low-first", "zeros": "none", **rest}
    return Problem.gemm("mixed_mm", **given)


FORMS = [
    weights(), weights(tile_m=72, split_k=4), weights(tile_m=112, split_k=2), weights(tile_m=256, tile_k=64),
    weights(tile_m=24, tile_n=192, groups=3), weights(tile_m=48, tile_n=256, groups=4),
    weights(tile_m=136, tile_n=256), weights(tile_m=192, tile_k=64), weights(tile_m=176),
]  # fmt: skip
PROBLEMS = [
    *(int4(m=m) for m in (1, 17, 77, 333)), int4(m=64, n=8, k=8192), int4(fusion="pointwise"), int4(bias="1d", m=40),
    *(int4(group=group, zeros=zeros) for group in (32, 64, 128, 256) for zeros in ("none", "bf16")),
    int4(dtype="fp16"), int4(dtype="fp16", zeros="fp16", group=64),
]  # fmt: skip


FEW_ROWS = [
    stream(), stream(tile_n=16, rows=16, warps=8, split_k=4), stream(tile_n=64, warps=8, split_k=3),
    stream(tile_n=128, rows=64, warps=8, split_k=2), stream(tile_n=64, rows=16, split_k=8),
    stream(tile_m=16), stream(tile_m=16, tile_n=64, rows=64, split_k=2), stream(tile_m=16, tile_n=128, rows=64),
]  # fmt: skip
SMALL_PROBLEMS = [
    *(int4(m=m) for m in (1, 3, 16, 30)), int4(m=8, n=8, k=8192), int4(m=9, fusion="pointwise"), int4(bias="1d", m=5),
    *(int4(m=7, group=group, zeros=zeros) for group in (32, 64, 128, 256) for zeros in ("none", "bf16", "uint8")),
    int4(m=2, k=96, group=32), int4(m=2, k=576, group=64, zeros="uint8"), int4(m=12, dtype="fp16"),
    int4(m=6, dtype="fp16", zeros="fp16", group=64),
]  # fmt: skip


@NEEDS_NVCC
@pytest.mark.parametrize("problem", SMALL_PROBLEMS, ids=lambda problem: problem.text)
def test_every_form_for_few_rows_is_right(problem: Problem) -> None:
    measure_forms(problem, FEW_ROWS, least=1)


@pytest.mark.parametrize("problem", [int4(m=3), int4(m=20, group=64)], ids=lambda problem: problem.text)
@pytest.mark.parametrize("config", [FEW_ROWS[0], FEW_ROWS[3], FEW_ROWS[6]], ids=lambda config: config.text)
def test_a_config_for_few_rows_is_served_as_one_choice(config: Config, problem: Problem) -> None:
    assert "gemmdb_cutlass_" in served_as_one_choice(config, problem)


@NEEDS_NVCC
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_every_form_of_the_kernel_is_right(problem: Problem) -> None:
    measure_forms(problem, FORMS, least=3)


@pytest.mark.parametrize("problem", [int4(), int4(group=64, m=70)], ids=lambda problem: problem.text)
@pytest.mark.parametrize("config", FORMS[:6], ids=lambda config: config.text)
def test_a_config_is_served_as_one_choice(config: Config, problem: Problem) -> None:
    assert "gemmdb_cutlass_" in served_as_one_choice(config, problem)


@pytest.mark.parametrize(
    ("config", "most"), [(weights(), 1024), (stream(tile_m=16, tile_n=64, warps=8), 32)], ids=("many rows", "few rows")
)
def test_one_kernel_serves_any_number_of_rows(kit: Any, config: Config, most: int) -> None:
    packed = torch.randint(0, 256, (1032, 512), device="cuda", dtype=torch.uint8)
    scale = kit.rand(1032, 8).abs() / 16

    def model(x: Any) -> Any:
        numbers = torch.stack([packed & 15, packed >> 4], -1).view(1032, 8, 128).to(x.dtype)
        return linear(x, ((numbers - 8) * scale.unsqueeze(-1)).view(1032, 1024))

    compiled = torch.compile(model)
    with gemmdb.inductor.force(config), torch.no_grad():
        for m in (most // 4, 30, most // 2):
            x = kit.rand(m, 1024)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=most)
            kit.close(compiled(x), model(x))
    assert kit.served() == [config.text]
