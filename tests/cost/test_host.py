"""Configs whose calls take the host too long, from the counts of their calls."""

import pytest
from kit.devices import H200
from kit.gpu import make

from gemmdb import Config, Problem, Query
from gemmdb.cost import host
from gemmdb.cost.host import HIDDEN_US, US
from gemmdb.kernels.config import ATEN

MM = Problem.gemm("mm", m=64, n=1024, k=1024)
FUSED = Problem.gemm("mm", m=64, n=1024, k=1024, fusion="pointwise")
MIXED = Problem.gemm("mixed_mm", m=64, n=1024, k=1024)
ODD = Problem.gemm("int_mm", m=64, n=1024, k=33)
TILE = make("tile", block_m=64, block_n=128)
TMA = Config.of("triton", "tile", **{**TILE.values, "load": "tma"})
SUMMED = make("tile", block_m=64, block_n=128, split_k=4, reduce="kernel")
COUNTED = make("tile", block_m=64, block_n=128, split_k=4, reduce="fixup")
TEMPLATE = Config.of(
    "triton", "inductor_persistent_tma", block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3
)
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip
ALGORITHM = Config.of(
    "cublaslt", "matmul", algo=66, tile=1, stages=35, split_k=1, reduction=0, swizzle=0, custom=0, inner=0, cluster=0
)
SPLIT = Config.of("cublaslt", "matmul", **{**ALGORITHM.values, "split_k": 2, "reduction": 2})
RELU = Config.of("cublaslt", "matmul_activation", **ALGORITHM.values, activation="relu")


def asked(problem: Problem, aten_splits: bool = False) -> Query:
    return Query(problem, H200, aten_splits=aten_splits)


@pytest.mark.parametrize(
    ("config", "problem", "calls"),
    [
        (ATEN, MM, ["library"]),
        (ATEN, FUSED, ["library", "pass"]),
        (ATEN, MIXED, ["library", "pass"]),
        (Config.of("aten", "padded", multiple=8), ODD, ["library", "pass", "pass"]),
        (ALGORITHM, MM, ["prepared"]),
        (ALGORITHM, FUSED, ["prepared", "pass"]),
        (RELU, FUSED, ["prepared"]),
        (SPLIT, MM, ["prepared", "sum", "workspace"]),
        (CUTLASS, FUSED, ["cuda", "pass"]),
        (TILE, MM, ["launch"]),
        (TILE, FUSED, ["launch"]),
        (TILE, MIXED, ["launch"]),
        (COUNTED, MM, ["launch"]),
        (SUMMED, FUSED, ["launch", "pass"]),
        (TMA, MM, ["mapped"]),
        (make("persistent"), MM, ["mapped"]),
        (TEMPLATE, MM, ["mapped"]),
    ],
    ids=lambda value: value.text[:60] if isinstance(value, Config) else None,
)
def test_the_calls_of_a_gemm(config: Config, problem: Problem, calls: list[str]) -> None:
    """As counted in Inductor's output code, whose kernels contain their epilogue if they are Triton's."""
    assert host.host_us(config, problem) == pytest.approx(sum(US[call] for call in calls))


def test_padding_costs_nothing_where_default_mode_may_pad_too() -> None:
    odd = Problem.gemm("mm", m=1000, n=1000, k=1001)
    assert host.slower_us(Config.of("aten", "padded", multiple=8), odd) == 0


def test_a_config_with_quick_calls_is_never_rejected() -> None:
    for config in (TILE, TMA, ATEN, ALGORITHM, COUNTED):
        assert host.slower_us(config, MM) == 0
        assert host.rejection(config, asked(MM), 50.0, 5.0) is None


def test_in_a_training_step_calls_must_save_the_host_time() -> None:
    for config in (ATEN, TILE, COUNTED):
        assert host.rejection(config, asked(FUSED), 9.0, 10.0, training=True) is None
    for config in (ALGORITHM, RELU, SPLIT, CUTLASS, TMA, SUMMED, TEMPLATE):
        rejected = host.rejection(config, asked(FUSED), 9.0, 40.0, training=True)
        assert rejected is not None
        assert rejected.reason.startswith("host time: calls of ")
        assert host.rejection(config, asked(FUSED), 300.0, 350.0, training=True) is not None, "long ones, too"


def test_slow_calls_are_rejected_while_the_host_is_the_bottleneck() -> None:
    rejected = host.rejection(SUMMED, asked(MM), 2.0, 8.0)
    assert rejected is not None
    assert rejected.reason.startswith("host time: triton:tile takes the host 7 us more per call")
    assert host.rejection(SPLIT, asked(MM), 2.0, 8.0) is not None
    # The second kernel contains the epilogue, which follows ATen as a kernel of its own.
    assert host.rejection(SUMMED, asked(FUSED), 2.0, 8.0) is None


def test_only_time_beyond_the_hosts_counts_as_saved() -> None:
    slower = host.slower_us(SUMMED, MM)
    library = host.host_us(ATEN, MM)
    assert host.rejection(SUMMED, asked(MM), library, library + slower) is None
    assert host.rejection(SUMMED, asked(MM), library - 5, library + slower - 0.1) is not None


def test_a_long_gemm_hides_its_calls() -> None:
    assert host.rejection(SUMMED, asked(MM), HIDDEN_US - 0.1, HIDDEN_US - 0.05) is not None
    assert host.rejection(SUMMED, asked(MM), HIDDEN_US - 0.1, HIDDEN_US) is None


def test_a_split_of_k_is_charged_only_for_its_workspace_where_aten_splits_too() -> None:
    both = host.host_us(ATEN, MM, aten_splits=True)
    assert both == pytest.approx(US["library"] + US["sum"])
    assert host.slower_us(SPLIT, MM, aten_splits=True) == 0 < host.slower_us(SPLIT, MM)
    assert host.rejection(SPLIT, asked(MM, aten_splits=True), 7.0, 8.0) is None
    assert host.rejection(SPLIT, asked(MM), 7.0, 8.0) is not None


def test_only_atens_own_call_is_charged_for_atens_split() -> None:
    for config in (TILE, SPLIT, ALGORITHM, CUTLASS):
        assert host.host_us(config, MM, aten_splits=True) == host.host_us(config, MM)
