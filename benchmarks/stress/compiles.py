"""Compile in 64 processes at once with one table, while nobody writes it and while somebody does.

    python -m benchmarks.stress compiles [--processes 64] [--out benchmarks/results/load/compiles.jsonl]

Each process is forked from one that imported torch, and compiles a model of two GEMMs with constant weights for this
CPU, each with another number of rows. The table has invented rows for all of these GEMMs, and names the packed
kernel for each. A process fails unless what it computes is what eager computes, and the table serves both GEMMs. The
code is compiled anew; only Inductor's headers are there already. Eight C++ compilers run at a time, since each takes up
to 400 MiB; the others wait. `compile_s`: the first call of the compiled model. `lookup_ms`: the part of it that opens
the table and asks it. `memory_mib`: of all processes together, pages that several share counted once. `errors`: how
many processes failed. The result is one line of JSON per run.

While a process asks which vector instructions the CPU has, it holds a lock of torch, and all others wait for it. A wait
of 600 s, torch's limit, ends in an error: then gemmdb leaves that GEMM to ATen. Here they wait for an hour.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, now
from benchmarks.stress import crowd
from benchmarks.stress.readers import writing
from benchmarks.stress.rows import OUT, step
from gemmdb.devices import detect
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store

K, SIZES = 64, (64, 32)
"""The features of the model's input, and of what each of its layers returns; the second takes what the first returns,
which is as wide as the input."""
PACKED = Config.of("cpp", "packed_gemm", **{f"{what}_{size}": 0 for what in ("threads", "blocks") for size in "mnk"})
COMPILERS = 8
"""How many C++ compilers run at a time."""
BOUND = 1e-5
"""The largest difference from eager, where values are at most about 1."""


def make(path: Path, most: int) -> None:
    """A table that names the packed kernel for the GEMMs of each model with up to so many rows."""
    with Store.open(path) as store:
        store.add(row for m in range(1, most + 1) for n in SIZES for row in _rows(m, n))
        store.refresh()


def _rows(m: int, n: int) -> Iterator[Measurement]:
    problem = Problem.gemm("mm", m=m, n=n, k=K, dtype="fp32", constant_weight=True)
    device, toolchain = detect.cpu(), installed("cpu")
    assert toolchain is not None
    for config, us in ((ATEN, 100.0), (PACKED, 50.0)):
        times = Times(us, us, us, 10, 100.0)
        yield Measurement(
            problem, config, device, Protocol("host", "cold", 1, 10, version=3), toolchain, "run", Status.OK, times
        )


def compile_one(path: Path, first: int, number: int) -> list[float]:
    """Compile the model with `first + number` rows. The seconds of the compile and of its lookups, and the process's
    share of memory in MiB. Raises AssertionError for a wrong result, or a GEMM that the table does not serve."""
    import torch

    import gemmdb.inductor

    gemmdb.inductor.enable(tables=path, on_miss="aten")
    torch.manual_seed(number)
    model = torch.nn.Sequential(*(torch.nn.Linear(K, n, bias=False) for n in SIZES)).eval()
    given = torch.randn(first + number, K)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        wanted, compiled, found = model(given), torch.compile(model), []
        seconds = crowd.timed(lambda: found.append(compiled(given)))
    assert torch.allclose(found[0], wanted, rtol=0, atol=BOUND), (found[0] - wanted).abs().max()
    stats = gemmdb.inductor.stats()
    served = [(one["rung"], one["config"], one["table"], one["note"]) for one in stats["products"]]
    assert served == [("exact", PACKED.text, str(path), "")] * len(SIZES), (served, stats["errors"])
    assert stats["errors"] == [], stats["errors"]
    return [seconds, stats["seconds"]["tables"] + stats["seconds"]["lookup"], _share_mib()]


def _share_mib() -> float:
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1024


def measured(path: Path, processes: int, first: int) -> dict[str, Any]:
    """What so many processes tell that compile at once."""
    seconds, told, errors = crowd.at_once(processes, partial(compile_one, path, first))
    columns: list[list[float]] = [list(column) for column in zip(*told, strict=True)] or [[0.0] * 2] * 3
    return {
        "seconds": round(seconds, 1), "compiled": len(told), "compile_s": crowd.quantiles(columns[0], 1.0),
        "lookup_ms": crowd.quantiles(columns[1], 1e-3), "memory_mib": round(sum(columns[2])),
        "errors": len(errors), "error": "".join(errors[:1]).replace(f"{ROOT}/", "").replace(f"{path.parent}/", ""),
    }  # fmt: skip


def few_at_a_time(path: Path) -> Path:
    """A script that calls the C++ compiler, after others whose process has the same number modulo COMPILERS."""
    path.write_text(f'#!/bin/sh\nexec flock "$0.$(($$ % {COMPILERS}))" {os.environ.get("CXX", "g++")} "$@"\n')
    path.chmod(0o755)
    return path


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--out", type=Path, default=OUT / "compiles.jsonl", help="the file of results")


def main(options: argparse.Namespace) -> None:
    """Measure without and with a writer, append the result and print it."""
    with tempfile.TemporaryDirectory() as folder:
        path, count = Path(folder) / "table.db", options.processes
        prepare(Path(folder), count)
        step(lambda: make(path, 2 * count + 1))
        step(lambda: compile_one(path, 1, 0))  # Inductor compiles its headers.
        found: dict[str, Any] = {"date": now(), "cores": os.cpu_count(), "processes": count}
        found["alone"] = measured(path, count, 2)
        with writing(path, 0.1):
            found["beside a writer"] = measured(path, count, 2 + count)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


def prepare(folder: Path, processes: int) -> None:
    """Import what so many processes that compile need, which are forked. Their caches are in the folder."""
    # Torch reads them when it is imported. Processes that compile do not each start a pool of compilers.
    os.environ |= {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache", "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FILE_LOCK_TIMEOUT": "3600",
    }  # fmt: skip
    if processes > COMPILERS:
        os.environ["CXX"] = str(few_at_a_time(folder / "g++"))
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "gemmdb.inductor.entry.enable"):
        importlib.import_module(name)
