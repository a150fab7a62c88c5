"""Configs that would take Triton and ptxas minutes to compile are illegal, and no config that is tried is one."""

from __future__ import annotations

import pytest
from kit.devices import H200 as GPU
from kit.gpu import BASES, make

from gemmdb.cost.data import menus, rest
from gemmdb.devices import registry
from gemmdb.generators.measure.cuda import space
from gemmdb.kernels.config import Config
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Problem

gemm = Problem.gemm
TILE = BASES["tile"] | {"block_k": 128}
NARROW = BASES["narrow"] | {"block_k": 128}
GEMV = {"block_n": 2, "block_k": 4096, "stages": 1}
BF16, FP16 = (gemm("mm", m=256, n=4096, k=4096, dtype=dtype) for dtype in ("bf16", "fp16"))
FULL = gemm("mm", m=256, n=4096, k=4096, dtype="fp32")
TF32 = gemm("mm", m=256, n=4096, k=4096, dtype="fp32", tf32=True)
MIXED = gemm("mixed_mm", m=16, n=4096, k=4096)
INT4 = gemm("mixed_mm", m=64, n=4096, k=8192, weight_dtype="int4", packing="low-first")
SUMS, OPERANDS, PRODUCTS = (
    {"block_m": m, "block_n": n, "block_k": k, "warps": 1, "stages": 1}
    for m, n, k in ((128, 64, 32), (16, 16, 1024), (128, 64, 128))
)
SPLIT = {"block_m": 64, "block_n": 256, "block_k": 64, "warps": 2}
WIDEST = {"block_m": 128, "block_n": 256, "block_k": 128, "stages": 1}
DEQUANTISED = {"block_m": 16, "block_n": 256, "block_k": 512, "dequant": "bits", "stages": 1}


def config_of(kernel, changes):
    base = {"tile": TILE, "narrow": NARROW, "int4": TILE | {"scaled": "weights", "stages": 2}}[kernel] | changes
    known = {name: value for name, value in base.items() if name in KERNELS["triton", kernel].params}
    return Config.of("triton", kernel, **known)


@pytest.mark.parametrize(
    ("kernel", "problem", "changes", "reason"),
    [
        ("tile", FULL, SUMS, "more than 128 sums"),
        ("tile", FULL, OPERANDS, "more than 512 operands"),
        ("tile", FULL, PRODUCTS, "more than 128 sums"),
        ("tile", FULL, PRODUCTS | {"warps": 2}, "more than 8192 products"),
        ("tile", FULL, PRODUCTS | {"warps": 4}, None),
        ("tile", TF32, SUMS, None),
        ("tile", MIXED, DEQUANTISED | {"warps": 1}, "more than 1024 operands"),
        ("tile", MIXED, DEQUANTISED | {"warps": 2}, "more than 1024 operands"),
        ("tile", MIXED, DEQUANTISED | {"warps": 8}, None),
        ("narrow", MIXED, DEQUANTISED | {"warps": 2}, "more than 1024 operands"),
        ("tile", BF16, WIDEST, "more than 16384 products"),
        ("tile", BF16, WIDEST | {"warps": 8}, None),
        ("narrow", BF16, SPLIT | {"split_k": 31}, "4096 partial sums"),
        ("narrow", BF16, SPLIT | {"split_k": 16}, None),
        ("tile", BF16, SPLIT | {"split_k": 31, "reduce": "kernel"}, None),
        ("tile", BF16, SPLIT | {"split_k": 31, "reduce": "fixup"}, "4096 partial sums"),
        ("tile", BF16, {"block_k": 64, "split_k": 33, "reduce": "kernel"}, None),
        ("tile", BF16, {"block_k": 64, "split_k": 33, "reduce": "fixup"}, "32 slices"),
        ("int4", INT4, {"split_k": 32, "warps": 1}, None),
        ("int4", INT4, {"block_m": 64, "block_k": 64, "split_k": 49, "warps": 1}, "32 slices"),
    ],
)  # fmt: skip
def test_what_takes_the_compiler_minutes_is_illegal(kernel, problem, changes, reason):
    """The times are in docs/contributing/kernels.md, of Triton 3.6 for sm90."""
    found = config_of(kernel, changes).rejection(problem, GPU)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(("m", "unroll", "legal"), [(1, 4, True), (1, 8, False), (2, 4, True), (2, 8, False)])
def test_the_unrolled_steps_of_a_vector_kernel_are_bounded(m, unroll, legal):
    """The last takes 38 s."""
    found = make("gemv", **GEMV, unroll=unroll).rejection(gemm("mm", m=m, n=4096, k=4099, dtype="fp32"), GPU)
    assert found is None if legal else "unrolled steps" in str(found)


def test_inductors_templates_have_the_same_bounds():
    config = Config.of("triton", "inductor_mm", block_m=128, block_n=64, block_k=128, group_m=8, warps=2, stages=2)
    assert "8192 products" in str(config.rejection(FULL, GPU))
    assert config.rejection(BF16, GPU) is None


def test_turing_multiplies_bf16_and_tf32_without_the_matrix_unit():
    config, turing = config_of("tile", SUMS), registry.find("sm75")
    assert "128 sums" in str(config.rejection(BF16, turing))
    assert "128 sums" in str(config.rejection(TF32, turing))
    assert config.rejection(FP16, turing) is None


def test_the_fitted_menus_hold_nothing_that_takes_the_compiler_long():
    flags = {"mm ieee": {"dtype": "fp32"}, "mm tf32": {"dtype": "fp32", "tf32": True}, "bmm": {"batch": 4, "n": 1024}}
    for name, menu in {**menus(), **rest()}.items():
        problem = gemm(name.split()[0], **{"m": 64, "n": 8192, "k": 65_536, **flags.get(name, {})})
        found = {Config.parse(text).rejection(problem, GPU) for texts in menu.values() for text in texts}
        assert None in found
        assert not [reason for reason in found if "compiler" in str(reason)]


@pytest.mark.parametrize("device", [GPU, registry.find("sm80")], ids=lambda device: device.arch)
@pytest.mark.parametrize("flags", [
    {"op": "mm"}, {"op": "mm", "dtype": "fp32"}, {"op": "mm", "dtype": "fp32", "tf32": True}, {"op": "mixed_mm"},
    {"op": "mixed_mm", "weight_dtype": "int4"}, {"op": "mixed_mm", "weight_dtype": "int4", "packing": "low-first"},
    {"op": "int_mm"}, {"op": "scaled_mm"}, {"op": "bmm", "batch": 4}, {"op": "grouped_mm"},
], ids=str)  # fmt: skip
def test_what_a_build_tries_takes_the_compiler_not_long(flags, device):
    for m in (1, 16, 64, 256, 2048):
        problem = gemm(**flags, m=max(m, 16) if flags["op"] == "grouped_mm" else m, n=4096, k=8192)
        tried = [config for menu in space._menus(problem) for config in menu.usual(problem, device)]
        assert not [one.text for one in tried if "compiler" in str(one.rejection(problem, device))]
