"""Our Triton kernels against float64 or exact integers, over odd sizes, layouts, dtypes and ways to reduce."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from kit.gpu import measure

from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

PROTOCOL = Protocol("graph", "cold", 10, 25)
Make = Callable[..., Config]
Variant = tuple[str, dict[str, str | int]]
TILES: list[Variant] = [
    ("tile", {}),
    ("tile", {"swap": 1}),
    ("tile", {"split_k": 3, "reduce": "fixup"}),
    ("tile", {"split_k": 3, "reduce": "kernel"}),
    ("tile", {"swap": 1, "split_k": 2, "reduce": "fixup", "block_m": 32, "block_n": 128}),
    ("tile", {"block_m": 64, "block_k": 32, "stages": 4, "group_m": 1}),
]
NARROW: list[Variant] = [
    ("narrow", {}),
    ("narrow", {"stagger": 0, "swap": 1}),
    ("narrow", {"split_k": 3, "rows": "wrap"}),
    ("narrow", {"swap": 1, "rows": "wrap"}),
    ("narrow", {"split_k": 2, "swap": 1, "block_m": 32, "block_n": 128}),
]
TMA: list[Variant] = [
    ("tile", {"load": "tma"}),
    ("tile", {"load": "tma", "swap": 1, "split_k": 2, "reduce": "kernel"}),
    ("persistent", {}),
    ("persistent", {"swap": 1, "group_m": 2, "block_n": 64, "stages": 4}),
    ("persistent", {"block_m": 128, "warps": 8, "resident": 2}),
]
BITS: list[Variant] = [
    ("tile", {"dequant": "bits"}),
    ("tile", {"dequant": "bits", "swap": 1}),
    ("tile", {"dequant": "bits", "swap": 1, "load": "tma"}),
    ("narrow", {"dequant": "bits", "split_k": 2}),
    ("persistent", {"dequant": "bits"}),
]
GEMV: list[Variant] = [("gemv", {}), ("gemv", {"stages": 1}), ("gemv", {"unroll": 2, "block_n": 2})]
ALL = [*TILES, *NARROW, *TMA]


def check(problem: Problem, config: Config) -> None:
    from gemmdb.devices import detect

    device = detect.cuda()
    assert device is not None
    if (reason := config.rejection(problem, device)) is not None:
        pytest.skip(str(reason))
    measure(problem, [config], PROTOCOL)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("size", [(512, 512, 13), (8, 500, 3), (100, 1001, 32)], ids=str)
@pytest.mark.parametrize(("op", "dtype"), [("mm", "bf16"), ("addmm", "fp16"), ("mm", "fp32")])
def test_a_shallow_k(size: tuple[int, int, int], layout: str, op: str, dtype: str) -> None:
    from gemmdb.devices import detect
    from gemmdb.generators.measure.cuda.space import from_menu

    m, n, k = size
    problem, device = Problem.gemm(op, m=m, n=n, k=k, layout=layout, dtype=dtype), detect.cuda()
    assert device is not None
    for config in from_menu(problem, device):
        check(problem, config)


@pytest.mark.parametrize("config", ALL, ids=str, indirect=True)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("size", [(33, 1000, 776), (16, 512, 1024)], ids=str)
def test_mm(size: tuple[int, int, int], layout: str, config: Config) -> None:
    m, n, k = size
    check(Problem.gemm("mm", m=m, n=n, k=k, layout=layout), config)


@pytest.mark.parametrize("config", [TILES[1], TILES[2], TILES[3], NARROW[1], NARROW[2], TMA[3]], ids=str, indirect=True)
@pytest.mark.parametrize(
    "fusion",
    ["pointwise:math", "pointwise:math:reads1", "pointwise:reads2", "pointwise:math:kept", "pointwise:permuted",
     "pointwise:transposed", "pointwise:math:reads2:kept:permuted:fp32"],
)  # fmt: skip
def test_every_class_of_epilogues(fusion: str, config: Config) -> None:
    check(Problem.gemm("mm", m=33, n=1056, k=776, fusion=fusion), config)


@pytest.mark.parametrize("fusion", ["pointwise:math:reads1", "pointwise:permuted", "pointwise:transposed:fp32"])
def test_epilogues_of_batches(fusion: str) -> None:
    config = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
    problem = Problem.gemm("bmm", batch=5, m=72, n=64, k=136, fusion=fusion)
    from gemmdb.generators.measure.cuda.artifacts import Emission

    assert Emission(problem, config).build(90).failure == ""
    check(problem, config)


def test_a_persistent_program_takes_many_tiles(make: Make) -> None:
    """Far more tiles than places, the last of each row and column cut."""
    config = make("persistent", block_n=64, warps=4)
    check(Problem.gemm("mm", m=1000, n=3000, k=136, fusion="pointwise"), config)


@pytest.mark.parametrize("config", [*TILES, *NARROW], ids=str, indirect=True)
def test_odd_sizes_have_no_alignment_to_rely_on(config: Config) -> None:
    check(Problem.gemm("mm", m=17, n=1001, k=777, dtype="fp16"), config)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("kernel", ["tile", "narrow", "persistent"])
def test_fp32_with_and_without_tf32(make: Make, kernel: str, tf32: bool) -> None:
    check(Problem.gemm("mm", m=40, n=512, k=512, dtype="fp32", tf32=tf32), make(kernel, block_k=32))


@pytest.mark.parametrize("config", ALL + BITS, ids=str, indirect=True)
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_mixed_mm(fusion: str, dtype: str, weight: str, config: Config) -> None:
    problem = Problem.gemm("mixed_mm", m=9, n=1008, k=1040, dtype=dtype, weight_dtype=weight, fusion=fusion)
    check(problem, config)


@pytest.mark.parametrize("config", ALL, ids=str, indirect=True)
@pytest.mark.parametrize("fusion", ["none", "scale"])
def test_int_mm_is_exact(fusion: str, config: Config) -> None:
    check(Problem.gemm("int_mm", m=33, n=1008, k=1040, fusion=fusion), config)


@pytest.mark.parametrize("config", [*TILES[2:4], NARROW[2], TMA[2], GEMV[0]], ids=str, indirect=True)
@pytest.mark.parametrize("bias", ["1d", "full", "column"])
@pytest.mark.parametrize("scalars", ["unit", "beta0", "general"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_addmm(dtype: str, scalars: str, bias: str, config: Config) -> None:
    # cuBLAS adds few rows of fp32 up in pieces, more exactly than these kernels, which would count as wrong.
    m = 40 if dtype == "fp32" and config.kernel != "gemv" else 5
    for fusion in ("none", "pointwise"):
        problem = Problem.gemm("addmm", m=m, n=512, k=520, dtype=dtype, bias=bias, fusion=fusion)
        check(replace(problem, scalars=scalars), config)


@pytest.mark.parametrize("config", GEMV, ids=str, indirect=True)
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_gemv(rows: int, config: Config) -> None:
    check(Problem.gemm("addmm", m=rows, n=1001, k=776), config)
    for way in ("cast", "bits"):
        one = Config.of("triton", "gemv", **{**config.values, "dequant": way})
        problem = Problem.gemm("mixed_mm", m=rows, n=1001, k=777, dtype="fp16", weight_dtype="uint8", fusion="scale")
        check(problem, one)
        check(Problem.gemm("mixed_mm", m=rows, n=1001, k=1024), one)
