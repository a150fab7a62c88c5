"""Processes that generate code take no context on the GPU: a hundred of them would take its memory."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

SCRIPT = """
import ctypes
from gemmdb import Config, Problem
from gemmdb.generators.measure.cuda.artifacts import Emission

driver = ctypes.CDLL("libcuda.so.1")

def context():
    assert driver.cuInit(0) == 0
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    return active.value

tile = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
problem = Problem.gemm("mm", m=72, n=1000, k=520)
for kernel in ("inductor_mm", "inductor_persistent_tma"):
    built = Emission(problem, Config.of("triton", kernel, **tile)).build(90)
    print(kernel, built.failure or "ok", context())
padded = Emission(Problem.gemm("mm", m=72, n=1001, k=777), Config.of("aten", "padded", multiple=8)).build(90)
summed = Emission(Problem.gemm("mixed_mm", m=1, n=1000, k=520), Config.of("triton", "inductor_sum")).build(90)
print("inductor_sum", summed.failure or "ok", context())
print("padded", padded.failure or "ok", context())
import torch
torch.ones(1, device="cuda")
print("control", context())
"""


def test_generating_code_takes_no_context(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "inductor_mm ok 0", "inductor_persistent_tma ok 0", "inductor_sum ok 0", "padded ok 0",
        "control 1",
    ]  # fmt: skip
