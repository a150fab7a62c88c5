"""The record of cuBLASLt's algorithms: legality, and for which releases of cuBLAS a row holds."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import pytest

from gemmdb.kernels import cublaslt
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.device import Device
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
CONFIG = Config.of(
    "cublaslt", "matmul", algo=66, tile=15, stages=35, split_k=1, reduction=0, swizzle=0, custom=1, inner=0, cluster=4
)  # fmt: skip


@pytest.fixture
def packages(monkeypatch):
    """The versions of installed packages, by name."""
    known: dict[str, str] = {}

    def version(name):
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    cublaslt.release.cache_clear()
    yield known
    cublaslt.release.cache_clear()


@pytest.mark.parametrize(
    "problem",
    [
        Problem.gemm("mm", m=64, n=512, k=512),
        Problem.gemm("mm", m=64, n=512, k=512, dtype="fp16", layout="tn"),
        Problem.gemm("mm", m=64, n=512, k=512, fusion="pointwise:math"),
        Problem.gemm("addmm", m=64, n=512, k=512),
        Problem.gemm("addmm", m=64, n=511, k=512),
        Problem.gemm("addmm", m=64, n=512, k=512, bias="full"),
        Problem.gemm("bmm", m=64, n=512, k=512, batch=8),
        Problem.gemm("int_mm", m=64, n=512, k=512),
        Problem.gemm("scaled_mm", m=3, n=512, k=512),
        Problem.gemm("scaled_mm", m=64, n=512, k=528, fast_accum=True, out_dtype="fp32"),
        Problem.gemm("scaled_mm", m=64, n=512, k=512, weight_dtype="fp8_e5m2", out_dtype="fp16", bias="1d"),
        Problem.gemm("scaled_mm", m=64, n=512, k=512, scales="row", bias="1d"),
        Problem.gemm("scaled_mm", m=64, n=576, k=512, scales="block"),
    ],
)
def test_it_solves(problem):
    assert CONFIG.rejection(problem, H200) is None


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem.gemm("mm", m=0, n=512, k=512), "nothing to compute"),
        (Problem.gemm("mm", m=64, n=512, k=512, dtype="fp32"), "measured for operands of"),
        (Problem.gemm("int_mm", m=64, n=512, k=512, fusion="scale"), "does not scale"),
        (Problem.gemm("addmm", m=64, n=512, k=512, bias="column"), "one number per column"),
        (replace(Problem.gemm("addmm", m=64, n=512, k=512), bias=Bias("full", "bf16", 4)), "multiples of 16 bytes"),
        (replace(Problem.gemm("addmm", m=64, n=512, k=512), bias=Bias("1d", "bf16", 4)), "multiples of 16 bytes"),
        (Problem.gemm("mixed_mm", m=64, n=512, k=512), "does not solve mixed_mm"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=520), "multiples of 16"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=512, dtype="fp8_e5m2"), "two e5m2"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=512, out_dtype="fp32", bias="1d"), "a bias of fp32"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=512, scales="block", fast_accum=True), "always added in fp32"),
        (Problem.gemm("scaled_mm", m=66, n=512, k=512, scales="block"), "4 at a time"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=640, scales="block"), "4 at a time"),
    ],
)
def test_it_refuses(problem, reason):
    assert reason in str(CONFIG.rejection(problem, H200))


def test_it_wants_a_fixed_n_and_k_and_an_nvidia_gpu():
    problem = Problem.gemm("mm", m=64, n=512, k=512)
    assert CONFIG.rejection(problem, H200, {"m"}) is None
    assert "a fixed N and K" in str(CONFIG.rejection(problem, H200, {"m", "k"}))
    batched = Problem.gemm("bmm", batch=4, m=64, n=512, k=512)
    assert "fixed distances" in str(CONFIG.rejection(batched, H200, {"m"}))
    assert "does not solve mm on cpu" in str(CONFIG.rejection(problem, Device("cpu", "cpu", "a CPU", 2)))


def test_scales_of_blocks_want_hopper():
    problem = Problem.gemm("scaled_mm", m=64, n=512, k=512, scales="block")
    assert "only on Hopper" in str(CONFIG.rejection(problem, Device("cuda", "sm100", "NVIDIA B200", 148, 180)))
    assert "cannot multiply fp8" in str(CONFIG.rejection(problem, Device("cuda", "sm80", "NVIDIA A100", 108, 80)))


def test_a_row_holds_within_a_release_of_cublas(packages):
    packages["nvidia-cublas"] = "13.1.0.3"
    assert CONFIG.digest() == "cublas13.1"
    assert CONFIG.is_current("cublas13.1")
    assert not CONFIG.is_current("cublas12.9")


def test_the_package_of_cuda_12_counts_too(packages):
    packages["nvidia-cublas-cu12"] = "12.9.1.4"
    assert CONFIG.digest() == "cublas12.9"


def test_without_the_package_nothing_says_that_a_row_is_old(packages):
    for config in (CONFIG, activated(CONFIG, "relu")):
        assert config.digest() == ""
        assert config.is_current("cublas13.1")
