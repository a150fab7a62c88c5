"""The rules of our CUTLASS kernel, each with a config that it excludes and one that it lets through."""

from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

BASE = {
    "tile_m": 128, "tile_n": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 1, "schedule": "pingpong", "split_k": 1,
    "swizzle": 1, "raster": "auto", "swap": 0,
}  # fmt: skip
gemm = Problem.gemm
MM, MIXED = gemm("mm", m=256, n=512, k=512), gemm("mixed_mm", m=256, n=512, k=512)
INT = gemm("int_mm", m=64, n=512, k=512)
LEFT = {"swap": 1}
COOPERATIVE = {"schedule": "cooperative"}


@pytest.mark.parametrize(
    ("problem", "changes", "reason"),
    [
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
)  # fmt: skip
def test_rules(problem: Problem, changes: dict[str, str | int], reason: str | None) -> None:
    found = Config.of("cutlass", "gemm", **{**BASE, **changes}).rejection(problem, H200)
    assert found is None if reason is None else reason in str(found)


def test_it_is_hoppers_alone_and_its_shared_memory_counts() -> None:
    config = Config.of("cutlass", "gemm", **BASE)
    a100 = Device("cuda", "sm80", "NVIDIA A100-SXM4-80GB", 108, 80, figures={"smem_bytes": 166912.0})
    assert "Hopper" in str(config.rejection(MM, a100))
    small = replace(H200, figures={"smem_bytes": 65536.0})
    assert "shared memory" in str(config.rejection(MM, small))


def test_a_symbolic_n_or_k_has_no_alignment_to_rely_on() -> None:
    config = Config.of("cutlass", "gemm", **BASE)
    assert config.rejection(MM, H200, ("m",)) is None
    for size in "nk":
        assert "depends on N and K" in str(config.rejection(MM, H200, (size,)))


def test_an_unaligned_bias_is_refused() -> None:
    config, problem = Config.of("cutlass", "gemm", **BASE), gemm("addmm", m=256, n=512, k=512)
    assert problem.bias is not None
    assert "bias" in str(config.rejection(replace(problem, bias=replace(problem.bias, align=4)), H200))
