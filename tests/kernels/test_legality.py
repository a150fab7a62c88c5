"""Legality rules, the roofline, and what this machine says of itself."""

import os

import pytest
from kit.devices import H200

from gemmdb.cost.roofline import roofline_us
from gemmdb.devices import detect
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

AUTO = dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
CPU = Device("cpu", "cpu", "Some CPU", 4)
PROBLEM = Problem.gemm("mm", m=8, n=64, k=32, dtype="fp32")


def cpp(**params):
    return Config.of("cpp", "packed_gemm", **AUTO | params)


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
    found = cpp(**params).rejection(PROBLEM, CPU, symbolic)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("k", "symbolic", "legal"), [(512, "", True), (512, "mn", True), (515, "", False), (512, "k", False)]
)
def test_the_weight_only_kernel_has_no_tail_along_k(k, symbolic, legal):
    problem = Problem.gemm("mixed_mm", m=8, n=64, k=k, fusion="scale")
    assert (Config.of("aten", "int8pack_mm").rejection(problem, CPU, symbolic) is None) == legal


def test_aten_is_always_legal():
    assert ATEN.rejection(PROBLEM, CPU, "mnk") is None


def test_the_roofline_is_the_longer_of_moving_and_computing():
    gpu = Device("cuda", "sm90", "GPU", 100, 80, figures={"copy_gb_per_s": 4000.0, "peak_tflops": 800.0})
    thin = Problem.gemm("mm", m=1, n=16384, k=16384)
    thick = Problem.gemm("mm", m=8192, n=8192, k=8192)
    assert roofline_us(thin, gpu) == pytest.approx(thin.bytes / 4000e9 * 1e6)
    assert roofline_us(thick, gpu) == pytest.approx(thick.flops / 800e12 * 1e6)
    assert roofline_us(PROBLEM, gpu) == 1.0


@pytest.mark.parametrize("kind", ["cpu", "cuda", "hip"])
def test_the_roofline_needs_no_figures_and_knows_wider_types_are_slower(kind):
    device = Device(kind, "some1", "Device", 64)
    times = [
        roofline_us(Problem.gemm(op, m=8192, n=8192, k=8192, dtype=dtype), device)
        for op, dtype in (("int_mm", "int8"), ("mm", "bf16"), ("mm", "fp32"), ("mm", "fp64"))
    ]
    assert times == sorted(times)
    assert len(set(times)) == 4


def test_a_hit_prints_what_the_command_line_promises():
    config = cpp(blocks_m=2)
    hit = Hit("near", config, 12.5, 1.5, "/a/table.db", {"distance": 0.5})
    assert hit.as_dict() == {
        "rung": "near",
        "backend": "cpp",
        "kernel": "packed_gemm",
        "params": AUTO | {"blocks_m": 2},
        "expected_us": 12.5,
        "speedup_vs_aten": 1.5,
        "table": "/a/table.db",
        "evidence": {"distance": 0.5},
    }


def test_this_machines_cpu(monkeypatch):
    device = detect.cpu(3)
    assert (device.kind, device.arch, device.units) == ("cpu", "cpu", 3)
    assert Device.parse(device.text) == device
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert detect.cpu().units == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= detect.cpu().units <= (os.cpu_count() or 1)
    assert detect.last_level_cache_bytes() > 0


def test_native_is_the_gpu_where_there_is_one():
    assert detect.native() == (detect.cuda() or detect.cpu())


def test_uint8_activations_are_multiplied_on_cpus_alone():
    problem = Problem.gemm("int_mm", m=32, n=64, k=64, dtype="uint8")
    assert (problem.a.dtype, problem.b.dtype, problem.out) == ("uint8", "int8", "int32")
    assert ATEN.rejection(problem, CPU) is None
    assert "uint8" in str(ATEN.rejection(problem, H200))
