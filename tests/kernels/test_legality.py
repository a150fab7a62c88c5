"""The rules of each kernel, each with a config that it excludes and one that it lets through."""

from dataclasses import replace

import pytest
from kit import gpu
from kit.devices import H200

from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton.memory import shared_bytes
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias, Operand
from gemmdb.key.problem import Problem

BASES = {
    "cpp:packed_gemm": dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_m", "blocks_n", "blocks_k"), 0),
    "triton:tile": gpu.BASES["tile"] | {"block_k": 128},
    "triton:persistent": gpu.BASES["persistent"] | {"block_m": 128, "block_n": 256, "warps": 8, "stages": 4},
    "triton:narrow": gpu.BASES["narrow"] | {"block_k": 128},
    "triton:gemv": gpu.BASES["gemv"] | {"stages": 1},
    "cutlass:gemm": {
        "tile_m": 128, "tile_n": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 1, "schedule": "pingpong",
        "split_k": 1, "swizzle": 1, "raster": "auto", "swap": 0,
    },
}  # fmt: skip
CPU = Device("cpu", "cpu", "Some CPU", 4)
WIDE = {"block_n": 128, "block_k": 64}
LEFT, COOPERATIVE = {"swap": 1}, {"schedule": "cooperative"}
gemm = Problem.gemm
PROBLEM = gemm("mm", m=8, n=64, k=32, dtype="fp32")
MM, MIXED = gemm("mm", m=256, n=512, k=512), gemm("mixed_mm", m=256, n=512, k=512)
INT = gemm("int_mm", m=64, n=512, k=512)
SKINNY = gemm("mm", m=16, n=512, k=512)


def config_of(kernel, **changes):
    return Config.of(*kernel.split(":"), **BASES[kernel] | changes)


CASES = {
    "triton:tile": [
        (SKINNY, {}, None),
        (replace(SKINNY, a=Operand("bf16", Layout("broadcast", 8))), {}, "broadcast"),
        (replace(gemm("addmm", m=16, n=512, k=512), scalars="general"), {}, None),
        (gemm("mm", m=0, n=512, k=512), {}, "size zero"),
        (gemm("mm", m=16, n=2**17, k=2**15), {}, "32 bits wide"),
        (gemm("mm", m=16, n=512, k=512, dtype="fp64"), {}, "no fp64"),
        (SKINNY, {"split_k": 2}, "a split K needs it"),
        (SKINNY, {"reduce": "fixup"}, "a split K needs it"),
        (SKINNY, {"split_k": 4, "reduce": "fixup"}, None),
        (SKINNY, {"split_k": 5, "reduce": "fixup"}, "fewer than 5 steps"),
        (SKINNY, {"dequant": "bits"}, "nothing to dequantise"),
        (gemm("mixed_mm", m=16, n=512, k=512), {"dequant": "bits"}, None),
        (gemm("mixed_mm", m=7, n=4099, k=777), {"block_k": 512, "stages": 2}, "unaligned loads of 512 bytes"),
        (gemm("mixed_mm", m=7, n=4099, k=777), {"block_k": 256, "stages": 2}, None),
        (gemm("mixed_mm", m=1, n=11003, k=100), {"block_k": 512, "stages": 2}, "unaligned loads of 512 bytes"),
        (gemm("mixed_mm", m=1, n=11008, k=1040), {"block_k": 512, "stages": 2}, None),
        (gemm("mixed_mm", m=7, n=4096, k=784), {"block_k": 512, "stages": 2}, None),
        (gemm("int_mm", m=16, n=512, k=512), {"block_k": 16}, "32 int8 of K"),
        (gemm("mm", m=64, n=512, k=512), {"block_m": 128, "block_n": 256, "stages": 3, "warps": 8}, "do not fit"),
        (gemm("mm", m=16, n=512, k=516), {"load": "tma"}, "multiples of 16 bytes"),
        (gemm("mm", m=16, n=516, k=512), {"load": "tma"}, None),
        (gemm("mm", m=7, n=768, k=768, dtype="fp32"), {**WIDE, "load": "tma", "stages": 7}, "do not fit"),
        (gemm("mm", m=7, n=768, k=768, dtype="fp32"), {**WIDE, "load": "tma", "stages": 6}, None),
        (gemm("mm", m=7, n=768, k=768, dtype="fp32"), {**WIDE, "stages": 7}, None),
        (gemm("mm", m=16, n=512, k=516), {}, None),
        (
            gemm("mm", m=256, n=512, k=512),
            {"block_m": 256, "block_n": 256, "block_k": 32, "warps": 8, "stages": 2},
            None,
        ),
    ],
    "triton:persistent": [
        (MM, {}, None),
        (gemm("mm", m=256, n=516, k=512, layout="nn"), {}, "multiples of 16 bytes"),
        (MM, {"stages": 5}, "do not fit"),
        (gemm("mm", m=256, n=512, k=512, dtype="fp32"), {"block_k": 32}, None),
        (gemm("mm", m=256, n=512, k=512, dtype="fp32"), {"block_k": 32, "stages": 6}, "do not fit"),
        (gemm("mm", m=256, n=512, k=512, dtype="fp32", tf32=True), {"block_k": 32}, "do not fit"),
        (gemm("mm", m=256, n=512, k=512, dtype="fp32"), {"block_k": 32, "block_n": 128}, None),
        (gemm("int_mm", m=256, n=512, k=512), {"block_k": 128}, "do not fit"),
        (gemm("int_mm", m=256, n=512, k=512, fusion="scale"), {"block_k": 128}, None),
        (MM, {"dequant": "bits"}, "nothing to dequantise"),
        (gemm("int_mm", m=256, n=512, k=512), {"block_k": 16}, "32 int8 of K"),
    ],
    "triton:narrow": [
        (gemm("mm", m=16, n=512, k=516), {}, None),
        (SKINNY, {"split_k": 4}, None),
        (SKINNY, {"split_k": 5}, "fewer than 5 steps"),
        (SKINNY, {"block_n": 256, "block_k": 512, "warps": 8}, "do not fit"),
        (SKINNY, {"dequant": "bits"}, "nothing to dequantise"),
    ],
    "triton:gemv": [
        (gemm("mm", m=8, n=512, k=512), {}, None),
        (gemm("mm", m=9, n=512, k=512), {}, "more than 8"),
        (gemm("mm", m=8, n=512, k=512, layout="nn"), {}, "along memory"),
        (gemm("mm", m=8, n=512, k=512, layout="tt"), {}, "along memory"),
        (gemm("mm", m=8, n=512, k=512, dtype="fp32", tf32=True), {}, None),
        (gemm("int_mm", m=8, n=512, k=512), {}, "does not solve"),
        # K runs along memory in a single column without gaps.
        (gemm("mm", m=1, n=1, k=512), {}, None),
        (replace(gemm("mm", m=1, n=1, k=512), b=Operand("bf16", Layout("row-padded", 8))), {}, "along memory"),
        # At M=5, these took ten and three times ATen's time: their sums spilled.
        (gemm("mm", m=5, n=640, k=2560), {"block_k": 1024, "block_n": 4, "warps": 2}, "registers"),
        (gemm("mm", m=5, n=640, k=2560), {"block_k": 2048, "block_n": 4, "warps": 4}, "registers"),
        (gemm("mm", m=2, n=640, k=2560), {"block_k": 1024, "block_n": 4, "warps": 2}, None),
        (gemm("mm", m=3, n=640, k=2560), {"block_k": 1024, "block_n": 4, "warps": 2}, "registers"),
        (gemm("mm", m=4, n=640, k=2560), {"block_k": 1024, "block_n": 4, "warps": 4}, None),
        (gemm("mm", m=8, n=640, k=2560), {"block_k": 256, "block_n": 8, "warps": 4}, None),
    ],
    "cutlass:gemm": [
        (MM, {}, None),
        (gemm("mm", m=0, n=512, k=512), {}, "size zero"),
        (gemm("mm", m=256, n=512, k=512, dtype="fp32"), {}, "16-bit floats"),
        (gemm("mm", m=256, n=512, k=500), {}, "tensor copy engine wants"),
        (gemm("mm", m=256, n=500, k=512), {}, "tensor copy engine: its rows"),
        (gemm("mm", m=250, n=512, k=512, layout="tn"), {}, "tensor copy engine wants"),
        (gemm("mm", m=248, n=512, k=512, layout="tn"), {}, None),
        (gemm("mm", m=256, n=512, k=512, fusion="pointwise"), {}, None),
        (replace(gemm("addmm", m=256, n=512, k=512), scalars="general"), {}, "alpha and beta"),
        (gemm("addmm", m=256, n=512, k=512, bias="full"), {}, None),
        (replace(gemm("addmm", m=256, n=512, k=512), bias=Bias("1d", "bf16", 4)), {}, "the bias is read in vectors"),
        (replace(MM, a=Operand("bf16", Layout("broadcast", 8))), {}, "broadcast operand"),
        (replace(MM, a=Operand("bf16", Layout("row-padded", 8))), {}, None),
        (MIXED, LEFT, None),
        (MIXED, {}, "comes first"),
        (gemm("mixed_mm", m=256, n=512, k=512, layout="nn"), LEFT, "converted in registers"),
        (gemm("mixed_mm", m=256, n=512, k=512, layout="tt", fusion="scale"), LEFT, None),
        (INT, {}, None),
        (gemm("int_mm", m=64, n=512, k=512, layout="nn"), {}, "K along memory in both"),
        (INT, {"tile_k": 32}, "at least 64 bytes"),
        (gemm("int_mm", m=64, n=512, k=512, fusion="scale"), {}, None),
        (replace(INT, out="bf16"), {}, "stays int32"),
        (MM, {"tile_m": 32}, "takes 64 rows"),
        (MM, {"tile_m": 32, **LEFT}, None),
        (MM, {"tile_m": 64, **COOPERATIVE}, "takes 64 rows"),
        (MM, {"tile_m": 256}, "registers"),
        (MM, {"tile_m": 256, **COOPERATIVE}, None),
        (MM, {"tile_m": 256, "tile_k": 128, **COOPERATIVE}, None),
        (MM, {"tile_m": 256, "tile_n": 256, "tile_k": 128, **COOPERATIVE}, "registers"),
        (MM, {"split_k": 2}, "cooperative schedule only"),
        (MM, {"split_k": 2, **COOPERATIVE}, None),
        (MM, {"split_k": 9, **COOPERATIVE}, "fewer than 9 steps"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "problem", "changes", "reason"), [(kernel, *case) for kernel, cases in CASES.items() for case in cases]
)
def test_rules(kernel, problem, changes, reason):
    found = config_of(kernel, **changes).rejection(problem, H200)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("params", "symbolic", "reason"),
    [
        ({}, "", None),
        ({}, "m", None),
        ({}, "n", "fixed N and K"),
        ({}, "mk", "fixed N and K"),
        ({"threads_m": 2, "threads_n": 2, "threads_k": 1}, "", None),
        ({"threads_m": 2, "threads_n": 2, "threads_k": 1}, "m", "blocks at run time"),
        ({"threads_m": 2, "threads_n": 1, "threads_k": 1}, "", "do not multiply to the 4 threads"),
        ({"threads_m": 4}, "", "do not multiply to the 4 threads"),
        ({"blocks_m": 8, "blocks_n": 64, "blocks_k": 32}, "", None),
        ({"blocks_m": 9}, "", "9 register blocks along m=8"),
        ({"blocks_k": 33}, "", "33 register blocks along k=32"),
        ({"blocks_m": 1}, "m", "blocks at run time"),
    ],
)
def test_the_packed_template(params, symbolic, reason):
    found = config_of("cpp:packed_gemm", **params).rejection(PROBLEM, CPU, symbolic)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("k", "symbolic", "legal"), [(512, "", True), (512, "mn", True), (515, "", False), (512, "k", False)]
)
def test_the_weight_only_kernel_has_no_tail_along_k(k, symbolic, legal):
    problem = Problem.gemm("mixed_mm", m=8, n=64, k=k, fusion="scale")
    assert (Config.of("aten", "int8pack_mm").rejection(problem, CPU, symbolic) is None) == legal


def test_aten_is_always_legal():
    assert ATEN.rejection(PROBLEM, CPU, "mnk") is None


def test_uint8_activations_are_multiplied_on_cpus_alone():
    problem = Problem.gemm("int_mm", m=32, n=64, k=64, dtype="uint8")
    assert (problem.a.dtype, problem.b.dtype, problem.out) == ("uint8", "int8", "int32")
    assert ATEN.rejection(problem, CPU) is None
    assert "uint8" in str(ATEN.rejection(problem, H200))


def block(kernel, sizes, stages, **changes):
    sizes = dict(zip(("block_m", "block_n", "block_k"), sizes, strict=True))
    return config_of(f"triton:{kernel}", **sizes, **{"stages": stages} | changes)


def full(layout, **rest):
    return gemm("mm", m=256, n=4096, k=4096, layout=layout, **{"dtype": "fp32"} | rest)


def tf32(layout):
    return full(layout, tf32=True)


def half(layout):
    return full(layout, dtype="bf16")


def int8(layout):
    return gemm("int_mm", m=256, n=4096, k=4096, layout=layout)


@pytest.mark.parametrize(
    ("problem", "config", "compiled"),
    [
        (full("nt"), block("tile", (16, 64, 32), 3), 20480),
        (full("nt"), block("tile", (64, 64, 32), 4), 49152),
        (full("nt"), block("tile", (16, 64, 32), 3, swap=1), 20480),
        (tf32("nt"), block("tile", (64, 64, 32), 4), 65536),
        (tf32("nt"), block("tile", (16, 64, 32), 3, swap=1), 30720),
        (full("nt"), block("tile", (16, 128, 64), 7, load="tma"), 254000),
        (full("nt"), block("tile", (16, 64, 32), 3, load="tma"), 28688),
        (full("nn"), block("tile", (16, 64, 32), 3, load="tma"), 20496),
        (full("tn"), block("tile", (16, 64, 32), 3, load="tma"), 22544),
        (full("tt"), block("tile", (16, 64, 32), 3, load="tma"), 30736),
        (full("nt"), block("tile", (16, 64, 32), 3, load="tma", swap=1), 22544),
        (full("nn"), block("tile", (16, 64, 32), 3, load="tma", swap=1), 30736),
        (full("tn"), block("tile", (16, 64, 32), 3, load="tma", swap=1), 28688),
        (full("tt"), block("tile", (16, 64, 32), 3, load="tma", swap=1), 20496),
        (tf32("nt"), block("tile", (64, 64, 32), 4, load="tma"), 65568),
        (tf32("nn"), block("tile", (64, 64, 32), 4, load="tma"), 65592),
        (half("nt"), block("tile", (64, 64, 64), 4, load="tma"), 65568),
        (full("nt"), block("persistent", (64, 128, 32), 3, warps=4), 65552),
        (full("nt"), block("persistent", (128, 256, 32), 4, warps=8), 180248),
        (tf32("nt"), block("persistent", (64, 128, 32), 3, warps=4), 106520),
        (tf32("nt"), block("persistent", (128, 64, 32), 3, warps=4), 90136),
        (tf32("nt"), block("persistent", (128, 64, 32), 3, warps=8), 106520),
        (tf32("nn"), block("persistent", (64, 128, 32), 3, warps=4), 90160),
        (tf32("tn"), block("persistent", (64, 128, 32), 3, warps=4), 81936),
        (tf32("tt"), block("persistent", (64, 128, 32), 3, warps=4), 98352),
        (int8("nt"), block("persistent", (128, 256, 64), 3, warps=8), 204824),
        (int8("nn"), block("persistent", (128, 256, 64), 3, warps=8), 188464),
        (int8("tn"), block("persistent", (128, 256, 64), 3, warps=8), 180240),
    ],
)
def test_shared_memory_is_what_triton_takes(problem, config, compiled):
    """Of Triton 3.6, cross-compiled for sm90. Second barriers are not counted, which some layouts need."""
    assert 0 <= compiled - shared_bytes(config, problem) <= 32


def test_cutlass_is_hoppers_alone_and_its_shared_memory_counts():
    config = config_of("cutlass:gemm")
    a100 = Device("cuda", "sm80", "NVIDIA A100-SXM4-80GB", 108, 80, figures={"smem_bytes": 166912.0})
    assert "Hopper" in str(config.rejection(MM, a100))
    small = replace(H200, figures={"smem_bytes": 65536.0})
    assert "shared memory" in str(config.rejection(MM, small))


@pytest.mark.parametrize(
    ("kernel", "problem", "free", "fixed", "reason"),
    [
        ("cutlass:gemm", MM, "m", "nk", "depends on N and K"),
        ("triton:gemv", gemm("mm", m=8, n=512, k=512), "nk", "m", "is fixed"),
    ],
)
def test_sizes_that_may_be_symbolic(kernel, problem, free, fixed, reason):
    config = config_of(kernel)
    assert config.rejection(problem, H200, free) is None
    for size in fixed:
        assert reason in str(config.rejection(problem, H200, size))


def test_kernels_run_on_their_devices_alone():
    assert "on cpu" in str(config_of("triton:tile").rejection(SKINNY, CPU))
