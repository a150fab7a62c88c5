"""A compile that times cuBLASLt's call with the activation, confirms it in Inductor's code, and the next one, which
finds the rows. Run on a CPU, against a library in cuBLASLt's place; the times are invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import cublaslt

PROGRAM = """
import ctypes, torch
from torch._inductor import graph, utils
import gemmdb.inductor
from gemmdb import Config, Policy
from gemmdb.inductor.benchmark import (
    algorithm_jobs,
    algorithm_rules,
    algorithm_trial,
    algorithms,
    confirm,
    limits,
    payoff,
    trial,
)  # fmt: skip
from gemmdb.inductor.entry import table_session
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.inductor.match import extract
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.toolchain import Toolchain
from kit.cublaslt import opened
from kit.devices import H200
from kit.gpu import algorithm

standing, slow = opened(sys.argv[1]), sys.argv[2] == "slow"
# Products on this CPU are those of an H200, whose inputs Inductor aligns.
extract.device = lambda of: H200
graph.should_assume_input_aligned = utils.tensor_is_aligned
cublaslt.workspace = lambda *asked: 64
ctypes.c_int.in_dll(standing, "workspace").value = 64
algorithm_rules.device_rejection = lambda device: None
confirm.rules.device_rejection = lambda device: None
for module in (algorithm_jobs, confirm, payoff, table_session):
    module.installed = lambda kind: Toolchain(torch="2.11.0+cu130", cuda="13.0")
raced, real = [], trial.run
limits.CPU_TRIAL_S = 0.0

def race(operands, proposed, allowed, extent=None):
    raced.append(operands.activation)
    return algorithm_trial.Race([100.0] * 9, {activated(algorithm(), operands.activation): [80.0] * 9})

def run(*given):
    found = real(*given)
    assert not found.differs
    return trial.Trial([100.0] * 9, [110.0 if slow else 75.0] * 9, trial.GPU)

algorithm_trial.race, trial.run = race, run
POLICY = Policy(
    on_miss="aten", confirm=True, near=False, sku=False, model=False, horizontal=False, live_calls=10**9,
    confirm_s=60.0,  # The C++ compiler shares its cores with other tests.
)
torch.manual_seed(0)
first, last = torch.nn.Linear(64, 96).bfloat16(), torch.nn.Linear(96, 64, bias=False).bfloat16()
x = torch.randn(2, 16, 64).bfloat16()
results = []

def model(x):
    return last(torch.nn.functional.gelu(first(x), approximate="tanh"))

for _ in range(2):
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    algorithms._KNOWN.clear()
    gemmdb.inductor.enable(policy=POLICY)
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        before = ctypes.c_int.in_dll(standing, "calls").value
        made = torch.compile(model)
        made(x)
        calls = ctypes.c_int.in_dll(standing, "calls").value
        found, wanted = made(x), model(x)
    stats = gemmdb.inductor.stats()
    results.append({
        "rungs": stats["rungs"], "errors": stats["errors"], "raced": sorted(raced),
        "configs": [one["config"] for one in stats["products"]],
        "speedups": [round(one["speedup_vs_aten"], 3) for one in stats["products"]],
        "apart": float((found - wanted).abs().max() / wanted.abs().max()),
        "calls": ctypes.c_int.in_dll(standing, "calls").value - calls,
    })
    raced.clear()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cublaslt.built(tmp_path_factory.mktemp("cublaslt"))


@pytest.mark.slow
@pytest.mark.parametrize("speed", ["fast", "slow"])
def test_the_activation_is_confirmed_and_the_next_compile_finds_it(
    kit: Any, standing: Path, tmp_path: Path, speed: str
):
    (tmp_path / "data").mkdir()
    first, second = kit.forked(PROGRAM, {"XDG_DATA_HOME": str(tmp_path / "data")}, [str(standing), speed])
    names = [f"cublaslt:matmul{'_activation activation=gelu_tanh' if speed == 'fast' else ''} ", "cublaslt:matmul "]
    for one in (first, second):
        assert one["errors"] == []
        assert one["apart"] < 0.02
        assert [config.startswith(name) for config, name in zip(one["configs"], names, strict=True)] == [True, True]
        assert one["speedups"] == [1.333 if speed == "fast" else 1.25, 1.25]
        assert one["calls"] == 2
    assert first["raced"] == ["", "", "gelu_tanh"]
    assert second["raced"] == []
