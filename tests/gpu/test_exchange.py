"""Exchange with Inductor on a GPU: what its autotuning writes is imported, and its lookup table takes an export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmdb.devices import detect
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import export, load
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import EMITTED, Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

pytestmark = pytest.mark.timeout(300)

SEARCH = """
import torch
from torch._inductor import config

config.autotune_local_cache = True
config.max_autotune_gemm_backends = "ATEN,TRITON"
a = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
w = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
b = torch.randn(512, device="cuda", dtype=torch.bfloat16)
print(torch.compile(lambda a: a @ w.t(), mode="max-autotune-no-cudagraphs")(a).shape)
print(torch.compile(lambda a: torch.addmm(b, a, w.t()), mode="max-autotune-no-cudagraphs")(a).shape)
print(torch.version.cuda)
"""
TABLE = """
import json, sys
import torch
from torch._inductor import config
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

config.force_disable_caches = True
config.max_autotune_gemm_backends = "ATEN,TRITON"
config.lookup_table.table = json.load(open(sys.argv[1]))
V.set_choices_handler(LookupTableChoices())
a = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
w = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
compiled = torch.compile(lambda a: a @ w.t(), mode="max-autotune-no-cudagraphs")
out, code = run_and_get_code(compiled, a)
torch.testing.assert_close(out, a @ w.t(), rtol=2e-2, atol=2e-1)
print("\\n".join(code))
"""
MM = Problem.gemm("mm", m=64, n=512, k=1024)
TILE = Config.of("triton", "inductor_mm", block_m=32, block_n=64, block_k=128, group_m=4, warps=4, stages=3)


def run(program: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with Inductor's log and cache, and the CUDA of its torch."""
    folder = tmp_path_factory.mktemp("inductor")
    log, code = str(folder / "log.json"), str(folder / "code")
    out = run(SEARCH, TORCHINDUCTOR_MM_LOGGING_FILE=log, TORCHINDUCTOR_CACHE_DIR=code)
    return folder, out.split()[-1]


def rows_of(kind: str, path: Path, out: Path, **said: str) -> list[Measurement]:
    found = load(path, out, kind, Given(**said, resolve=lambda name: detect.native()))
    print(json.dumps(found.as_dict(), indent=1))
    with Table.open(out) as table:
        return list(table.measurements())


def test_its_log_is_imported(written: tuple[Path, str], tmp_path: Path) -> None:
    folder, cuda = written
    device = detect.native().sku
    # torch 2.11's log does not say the op: both GEMMs are then taken for the one that the caller names.
    said = {"device": device, "cuda": cuda, "dtype": "bf16", "op": "mm"}
    rows = rows_of("inductor-log", folder / "log.json", tmp_path / "a.db", **said)
    of_mm = [row for row in rows if row.problem == MM]
    assert ATEN in {row.config for row in of_mm}
    assert len({row.config for row in of_mm if row.config.kernel == "inductor_mm"}) > 4


def test_its_cache_is_imported(written: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = written
    paths = [path for path in (folder / "code" / "cache").iterdir() if path.is_file()]
    rows = [row for path in paths for row in rows_of("inductor-cache", path, tmp_path / f"{path.name[:8]}.db")]
    addmm = Problem.gemm("addmm", m=64, n=512, k=1024)
    for problem in (MM, addmm):
        configs = {row.config for row in rows if row.problem == problem}
        assert ATEN in configs
        assert len({config for config in configs if config.kernel == "inductor_mm"}) > 4
    assert any(row.status is Status.OK for row in rows)


@pytest.mark.parametrize("config", [TILE, ATEN], ids=["template", "aten"])
def test_its_lookup_table_takes_the_same_choice(tmp_path: Path, config: Config) -> None:
    device = detect.native()
    times = {ATEN: 100.0, TILE: 50.0 if config == TILE else 200.0}
    with Store.open(tmp_path / "a.db") as store:
        store.add(
            Measurement(
                MM, one, device, Protocol("graph", "cold", 10, 15, version=4), Toolchain(cuda="13.0"), "run-1",
                Status.OK, Times(us, us * 0.99, us * 1.01, 15, 100.0), detail=EMITTED,
            )
            for one, us in times.items()
        )  # fmt: skip
        store.refresh()
    export(tmp_path / "a.db", tmp_path / "table.json", "lookup-table")
    code = run(TABLE, str(tmp_path / "table.json"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "code"))
    if config == ATEN:
        assert "extern_kernels.mm(" in code
        assert "triton_tem" not in code
    else:
        assert "triton_tem" in code
        for name, value in (("BLOCK_M", 32), ("BLOCK_N", 64), ("BLOCK_K", 128), ("GROUP_M", 4)):
            assert f"{name} : tl.constexpr = {value}" in code
