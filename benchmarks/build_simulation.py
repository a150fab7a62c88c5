"""Throughput of `gemmdb build` on many GPUs, without any: compilers and GPUs only sleep, all else is real.

    python benchmarks/build_simulation.py [--gpus 8] [--cores 128] [--minutes 3] [--warm] [--shapes h200]

The candidates, their artifacts, the queue, the workers, the processes that compile and those that time, and the table
are those of a build on an H200. Told are the problems per second, over all and in the second half, and the processor
seconds of the process that leads: what it takes per problem is the limit that no GPU lifts. Sleeping processes cost
little, so that 128 cores are simulated on a few; their start is not free, and takes longer here than there.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The processes that compile import this module: what imports torch is imported where it is needed.
if TYPE_CHECKING:
    from gemmdb.generators.interfaces.progress import State
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem

COLD_S = {"triton": 0.55, "inductor": 1.5, "cutlass": 40.0}
WARM_S = {"triton": 0.004, "inductor": 0.05, "cutlass": 0.005}
"""Seconds that an artifact takes, with empty and with filled caches on disk."""
GPU_S = "0.25,0.15,0.3"
"""Seconds of an estimate, a full measurement and a confirmation."""


@dataclass
class Finishes:
    """Notes when problems were finished."""

    started: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list)

    def update(self, state: State) -> None:
        """Note it once per problem."""
        while state.done > len(self.times):
            self.times.append(time.monotonic() - self.started)

    def late_per_second(self) -> float | None:
        """Problems per second in the second half of the time."""
        late = [second for second in self.times if second > self.times[-1] / 2]
        return (len(late) - 1) / (late[-1] - late[0]) if len(late) > 2 else None


def main() -> None:
    """Build, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--cores", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--warm", action="store_true", help="all is compiled already")
    parser.add_argument("--shapes", default="h200")
    parser.add_argument("--gpu-seconds", default=GPU_S, help="of an estimate, a full measurement and a confirmation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(simulated(options, Path(folder)), indent=1))


def simulated(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One build, as JSON."""
    import sleeping

    from gemmdb.generators.build.build import BuildRequest, build

    (folder / "load").write_bytes(bytes(sleeping.PIDS))
    os.environ |= {
        sleeping.LOAD: str(folder / "load"),
        sleeping.CORES: str(options.cores),
        sleeping.SECONDS: options.gpu_seconds,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))),
    }
    finishes = Finishes()
    request = BuildRequest("sm90", shapes=options.shapes, effort="standard", out=folder / "table.db",
                           minutes=options.minutes)  # fmt: skip
    report = build(request, finishes, backend(options))
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


def backend(options: argparse.Namespace) -> Any:
    """That of an H200 host, whose compilers and GPUs sleep."""
    import sleeping

    from gemmdb.generators.interfaces.effort import Effort
    from gemmdb.generators.measure.cuda import requirements
    from gemmdb.generators.measure.cuda.backend import CudaBackend
    from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
    from gemmdb.generators.measure.cuda.precompiler import Precompiler
    from gemmdb.generators.measure.cuda.space import CudaSpace
    from gemmdb.key.device import Device
    from gemmdb.key.toolchain import Toolchain

    seconds = WARM_S if options.warm else COLD_S

    def needs(problem: Problem, config: Config) -> list[sleeping.Sleeping]:
        took = seconds.get(requirements.compiler(config), 0.0)
        return [sleeping.Sleeping(one.key, took, one.work) for one in requirements.required(problem, config)]

    class Simulated(CudaBackend):
        """Without the questions that CudaBackend asks a driver."""

        def __init__(self) -> None:
            self.device = Device("cuda", "sm90", "NVIDIA H200", 132, 140, figures={"smem_bytes": 232448.0})
            self.toolchain, self.space = Toolchain(torch="2.11.0", gemmdb="0"), CudaSpace()
            self.workers = options.gpus
            self.compilers = Precompiler(90, 232448, options.cores - 2, needs)

        def measurer(self, worker: int, effort: Effort) -> CudaMeasurer:
            return CudaMeasurer(worker, effort, self.compilers, sleeping).start()

        def provenance(self) -> dict[str, object]:
            return {}

    return Simulated()


if __name__ == "__main__":
    main()
