"""A compile that times algorithms of cuBLASLt, and the next one, which finds the rows. Run on a CPU, against a library
in cuBLASLt's place; the times are invented."""

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
from gemmdb.inductor.benchmark import algorithm_jobs, algorithm_rules, algorithm_trial, algorithms, payoff
from gemmdb.inductor.entry import table_session
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.inductor.match import extract
from gemmdb.key.toolchain import Toolchain
from kit.cublaslt import opened
from kit.devices import H200
from kit.gpu import algorithm

standing = opened(sys.argv[1])
# Products on this CPU are those of an H200, whose inputs Inductor aligns.
extract.device = lambda of: H200
graph.should_assume_input_aligned = utils.tensor_is_aligned
cublaslt.workspace = lambda *asked: 64
ctypes.c_int.in_dll(standing, "workspace").value = 64
algorithm_rules.device_rejection = lambda device: None
for module in (algorithm_jobs, payoff, table_session):
    module.installed = lambda kind: Toolchain(torch="2.11.0+cu130", cuda="13.0")
raced = []

def race(operands, proposed, allowed, extent=None):
    raced.append(operands.problem.text)
    return algorithm_trial.Race([100.0] * 9, {algorithm(): [80.0] * 9})

algorithm_trial.race = race
POLICY = Policy(on_miss="aten", confirm=True, near=False, sku=False, model=False, horizontal=False, live_calls=10**9)
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 96).bfloat16() for _ in range(2)]
x = torch.randn(32, 64).bfloat16()
results = []

def model(x):
    return layers[0](x), layers[1](x).sigmoid() * 2

for _ in range(2):
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    algorithms._KNOWN.clear()
    gemmdb.inductor.enable(policy=POLICY)
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        found, wanted = torch.compile(model)(x), model(x)
    stats = gemmdb.inductor.stats()
    results.append({
        "rungs": stats["rungs"], "errors": stats["errors"], "raced": len(raced),
        "configs": [(one["config"] == algorithm().text, one["note"]) for one in stats["products"]],
        "speedups": [round(one["speedup_vs_aten"], 3) for one in stats["products"]],
        "apart": max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted)),
        "calls": ctypes.c_int.in_dll(standing, "calls").value,
    })
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cublaslt.built(tmp_path_factory.mktemp("cublaslt"))


@pytest.mark.slow
def test_layers_of_a_program_share_a_trial_and_the_next_compile_needs_none(kit: Any, standing: Path, tmp_path: Path):
    (tmp_path / "data").mkdir()
    first, second = kit.forked(PROGRAM, {"XDG_DATA_HOME": str(tmp_path / "data")}, [str(standing)])
    for one in (first, second):
        assert one["errors"] == []
        assert one["raced"] == 1
        assert one["apart"] < 0.02
        assert one["configs"] == [[True, ""], [True, ""]]
        assert one["speedups"] == [1.25, 1.25]
    assert (first["rungs"], second["rungs"]) == ({"live": 2}, {"exact": 1, "epilogue": 1})
    assert (first["calls"], second["calls"]) == (2, 4)
