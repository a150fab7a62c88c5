"""What the installed Inductor itself writes on this CPU is imported: its log and its autotune cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmdb.devices import detect
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import load
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

PROGRAM = """
import torch
from torch._inductor import config

config.max_autotune_gemm_backends = "ATEN,CPP"
config.autotune_local_cache = True
a, b = torch.randn(4, 24, 96), torch.randn(4, 96, 80)
with torch.no_grad():
    torch.compile(torch.bmm, mode="max-autotune")(a, b)
print(torch.__version__)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder with `log.json` and Inductor's cache, and the version of torch."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("inductor")
    names = {"TORCHINDUCTOR_MM_LOGGING_FILE": str(folder / "log.json"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "code")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **names}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done.stdout.strip()


def imported(kind: str, path: Path, out: Path, **said):
    device = detect.native()
    return load(path, out, kind, Given(device.sku, **said, resolve=lambda name: device))


@pytest.mark.slow
def test_its_cache_is_imported_and_its_log_of_a_bmm_is_left(written, tmp_path):
    """One test: each worker of the tests would write the files anew."""
    folder, torch = written
    found = imported("inductor-log", folder / "log.json", tmp_path / "log.db", torch=torch, dtype="fp32", op="bmm")
    (entry,) = json.loads((folder / "log.json").read_text())
    (choices,) = (value for value in entry.values() if isinstance(value, list))
    (left,) = found.left
    assert (found.carried, left.count, left.reason) == (0, len(choices), "the log does not describe the GEMM bmm")

    (path,) = (folder / "code" / "cache").iterdir()
    found = imported("inductor-cache", path, tmp_path / "a.db", torch=torch)
    with Table.open(tmp_path / "a.db") as table:
        (row,) = table.measurements()
    bmm = Problem.gemm("bmm", m=24, n=80, k=96, batch=4, dtype="fp32", layout="nn")
    assert (found.carried, row.config, row.problem) == (1, ATEN, bmm)
    ((by_choice,),) = ([*by_inputs.values()] for by_inputs in json.loads(path.read_text())["cache"].values())
    times = by_choice["highest"]
    assert row.times is not None
    assert row.times.median_us == next(ms * 1000 for name, ms in times.items() if name.startswith("bmm-"))
    assert row.status is Status.SLOW, "the C++ kernels of the race are not carried over"
    assert sum(left.count for left in found.left) == len(times) - 1
