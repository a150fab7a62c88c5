"""Our Triton kernels against float64 or exact integers, over odd sizes, layouts, dtypes and ways to reduce."""

import pytest

from gemmdb.config import ATEN, Config
from gemmdb.measurement import Protocol, Status
from gemmdb.problem import Problem

PROTOCOL = Protocol("graph", "cold", 10, 25)


def tile(**changes: str | int) -> Config:
    base: dict[str, str | int] = {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    }  # fmt: skip
    return Config.of("triton", "tile", **{**base, **changes})


def gemv(**changes: str | int) -> Config:
    base: dict[str, str | int] = {
        "block_n": 8, "block_k": 256, "unroll": 1, "dequant": "cast", "warps": 4, "stages": 1,
    }  # fmt: skip
    return Config.of("triton", "gemv", **{**base, **changes})


VARIANTS = [
    {},
    {"swap": 1},
    {"split_k": 3, "reduce": "fixup"},
    {"split_k": 3, "reduce": "kernel"},
    {"swap": 1, "split_k": 2, "reduce": "fixup", "block_m": 32, "block_n": 128},
    {"block_m": 64, "block_k": 32, "stages": 4, "group_m": 1},
]
TMA = [{"load": "tma"}, {"load": "tma", "swap": 1, "split_k": 2, "reduce": "kernel"}]
BITS = [{"dequant": "bits"}, {"dequant": "bits", "swap": 1}, {"dequant": "bits", "swap": 1, "load": "tma"}]


def check(problem: Problem, config: Config) -> None:
    from gemmdb.generators.cuda import session

    assert session.load(problem, ATEN, PROTOCOL).status is Status.OK
    loaded = session.load(problem, config, PROTOCOL)
    assert loaded.status is Status.OK, (problem.text, config.text, loaded)
    again = session.time_round(problem, [config], PROTOCOL, 2)
    assert all(0 < sample < 1e5 for sample in again[config])


@pytest.mark.parametrize("variant", VARIANTS + TMA, ids=str)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("size", [(33, 1000, 776), (16, 512, 1024)], ids=str)
def test_mm(size: tuple[int, int, int], layout: str, variant: dict[str, str | int]) -> None:
    m, n, k = size
    if "load" in variant and layout[0] == "t" and m % 8:
        pytest.skip("TMA needs aligned rows")
    check(Problem.gemm("mm", m=m, n=n, k=k, layout=layout), tile(**variant))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_odd_sizes_have_no_alignment_to_rely_on(variant: dict[str, str | int]) -> None:
    check(Problem.gemm("mm", m=17, n=1001, k=777, dtype="fp16"), tile(**variant))


@pytest.mark.parametrize("tf32", [False, True])
def test_fp32_with_and_without_tf32(tf32: bool) -> None:
    check(Problem.gemm("mm", m=40, n=512, k=512, dtype="fp32", tf32=tf32), tile(block_k=32))


@pytest.mark.parametrize("variant", VARIANTS + TMA + BITS, ids=str)
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_mixed_mm(fusion: str, dtype: str, weight: str, variant: dict[str, str | int]) -> None:
    problem = Problem.gemm("mixed_mm", m=9, n=1008, k=1040, dtype=dtype, weight_dtype=weight, fusion=fusion)
    check(problem, tile(**variant))


@pytest.mark.parametrize("variant", VARIANTS + TMA, ids=str)
@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_int_mm_is_exact(fusion: str, variant: dict[str, str | int]) -> None:
    check(Problem.gemm("int_mm", m=33, n=1008, k=1040, fusion=fusion), tile(**variant))


@pytest.mark.parametrize("bias", ["1d", "full", "column"])
@pytest.mark.parametrize("fusion", ["none", "pointwise"])
def test_addmm(fusion: str, bias: str) -> None:
    for variant in VARIANTS[2:4]:
        check(Problem.gemm("addmm", m=33, n=512, k=776, bias=bias, fusion=fusion), tile(**variant))


@pytest.mark.parametrize("variant", [{}, {"stages": 3}, {"unroll": 2, "block_n": 2}], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_gemv(rows: int, variant: dict[str, str | int]) -> None:
    check(Problem.gemm("addmm", m=rows, n=1001, k=776), gemv(**variant))
    for way in ("cast", "bits"):
        problem = Problem.gemm("mixed_mm", m=rows, n=1001, k=777, dtype="fp16", weight_dtype="uint8", fusion="scale")
        check(problem, gemv(**variant, dequant=way))
        check(Problem.gemm("mixed_mm", m=rows, n=1001, k=1024), gemv(**variant, dequant=way))
