"""The throughput of `gemmdb build` on many GPUs, without any GPU: compilers and GPUs sleep, everything else is real.

    python -m benchmarks.h200 simulate [--gpus 8] [--cores 128] [--minutes 3] [--warm] [--shapes h200]

The candidates, their artifacts, the queue, the workers, the processes that compile and those that time, and the
table are those of a build on an H200. The result tells the problems per second, over the whole build and in its second
half, and the processor seconds of the main process, whose time per problem is a limit that more GPUs do not lift. A
sleeping process costs little, so a few cores simulate 128. Processes start more slowly here than on a large host.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.h200 import sleeping
from benchmarks.h200.scaling import Finishes
from gemmdb.devices import registry
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda import artifacts
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain

COLD_S = {"triton": 0.55, "inductor": 1.5, "cutlass": 40.0}
WARM_S = {"triton": 0.004, "inductor": 0.05, "cutlass": 0.005}
"""Seconds to compile one artifact, with empty and with filled caches on disk."""
GPU_S = "0.25,0.15,0.3"
"""Seconds of an estimate, a full measurement and a confirmation."""


class Simulated(CudaBackend):
    """The backend of an H200 host whose compilers and GPUs sleep. It asks no driver."""

    def __init__(self, gpus: int, cores: int, seconds: dict[str, float]) -> None:
        def needs(problem: Problem, config: Config) -> list[sleeping.Sleeping]:
            took = seconds.get(artifacts.compiler(config), 0.0)
            return [sleeping.Sleeping(one.key, took, one.work) for one in artifacts.required(problem, config)]

        device = registry.find("NVIDIA H200")
        assert device is not None
        self.device = device
        self.toolchain, self.space = Toolchain(torch="2.11.0", gemmdb="0"), CudaSpace()
        self._gpus = list(range(gpus))
        self.compilers = Precompiler(90, int(device.figures["smem_bytes"]), cores - 2, needs)

    def measurer(self, worker: int, effort: Effort) -> CudaMeasurer:
        return CudaMeasurer(worker, effort, self.compilers, sleeping).start()

    def provenance(self) -> dict[str, object]:
        return {}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--gpus", type=int, default=8, help="GPUs to simulate")
    parser.add_argument("--cores", type=int, default=128, help="processors to simulate")
    parser.add_argument("--minutes", type=float, default=3.0, help="time limit of the build")
    parser.add_argument("--warm", action="store_true", help="everything is compiled already")
    parser.add_argument("--shapes", default="h200", help="a preset, a workload or a file of shapes")
    parser.add_argument(
        "--gpu-seconds", default=GPU_S, help=f"of an estimate, a full measurement and a confirmation; default: {GPU_S}"
    )


def main(options: argparse.Namespace) -> None:
    """Build and print."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(simulated(options, Path(folder)), indent=1))


def simulated(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One build, as JSON."""
    (folder / "load").write_bytes(bytes(sleeping.PIDS))
    os.environ |= {
        sleeping.LOAD: str(folder / "load"),
        sleeping.CORES: str(options.cores),
        sleeping.SECONDS: options.gpu_seconds,
    }
    finishes = Finishes()
    request = BuildRequest(arch="sm90", shapes=options.shapes, effort="standard", out=folder / "table.db",
                           minutes=options.minutes)  # fmt: skip
    report = build(request, finishes, Simulated(options.gpus, options.cores, WARM_S if options.warm else COLD_S))
    used = time.process_time()
    return {
        "gpus": report.workers,
        "measured": report.measured,
        "rows": report.rows,
        "seconds": report.seconds,
        "per_second": report.measured / report.seconds,
        "late_per_second": finishes.late_per_second(),
        "first_after_s": finishes.times[0] if finishes.times else None,
        "gpu_seconds_per_problem": report.seconds_per_job,
        "busy_share": report.busy_share,
        "processor_seconds": used,
    }
