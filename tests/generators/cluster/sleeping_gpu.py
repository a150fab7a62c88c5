"""An H200 that is not there, for the nodes of a test's cluster: real artifacts are compiled for it, and what times only
looks whether they have come to its host."""

import dataclasses

from gemmdb.devices import registry
from gemmdb.generators.measure.cuda import artifacts, compilers
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer, Loaded, Round
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.toolchain import installed
from gemmdb.processes.child import RemoteModule
from gemmdb.table.measurement import Status

SMALL_MENU = 3


def find(name: str) -> Device | None:
    return registry.find("NVIDIA H200")


class FewCandidates:
    """ATen and the first of the menu."""

    def candidates(self, problem, device, effort):
        return CudaSpace(cutlass=False).candidates(problem, device, effort)[:SMALL_MENU]


class Gpu(CudaBackend):
    """The backend of a node with one H200. It asks no driver."""

    def __init__(self, device: Device) -> None:
        self.device, self.toolchain = device, dataclasses.replace(installed("cuda"), gemmdb="")
        self.space, self._gpus = FewCandidates(), [0]
        self.compilers = Precompiler(90, int(device.figures["smem_bytes"]), 1)

    def measurer(self, worker, effort):
        return CudaMeasurer(0, effort, self.compilers, RemoteModule("sleeping_gpu"))

    def busy(self):
        return ""

    def provenance(self):
        return {}


def measure(problem, configs, protocol, samples) -> Round:
    """Times for the configs whose artifacts are on this host, an error for the others."""
    loads = {config: _load(problem, config) for config in configs}
    times = {config: [10.0 + place + 0.001 * i for i in range(samples)] for place, config in enumerate(configs)}
    times[ATEN] = [50.0 + 0.001 * i for i in range(samples)]
    return Round(loads, {config: times[config] for config in configs if loads[config].status is Status.OK}, 1e4)


def expect(problem, configs) -> None:
    pass


def _load(problem, config) -> Loaded:
    for artifact in artifacts.required(problem, config):
        if isinstance(config, artifacts.Emitted):
            from gemmdb.generators.measure.cuda import emitted

            there = emitted.path_of(problem, config).exists()
        else:
            there = compilers._recall(artifact.unit, 90) is not None
        if not there:
            return Loaded(Status.ERROR, detail=f"{artifact.key} has not come")
    return Loaded(Status.OK, 1e-3)
