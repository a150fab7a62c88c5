"""The code that Inductor emits for a config, or in default mode, as an Artifact: `emitted` generates it in a process
of the compile pool."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gemmdb.generators.measure.cuda.artifact import Built
from gemmdb.generators.measure.cuda.cutlass_build import library
from gemmdb.generators.measure.cuda.emitted_config import digest
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Emission:
    """The emitted code of a config for a problem, as an Artifact."""

    problem: Problem
    config: Config

    @property
    def key(self) -> str:
        """A digest of problem and config."""
        return digest(self.problem, self.config)

    @property
    def work(self) -> str:
        """See `Artifact.work`. The code of several problems may hold the same CUTLASS kernel."""
        return library(self.problem, self.config).key if self.config.backend == "cutlass" else ""

    def build(self, capability: int) -> Built:
        """Generate the code and compile its kernels."""
        from gemmdb.generators.measure.cuda import emitted  # Needs torch.

        start = time.perf_counter()
        try:
            emitted.write(self.problem, self.config, capability)
        except Exception as error:
            return Built(f"{type(error).__name__}: {error}", time.perf_counter() - start)
        return Built("", time.perf_counter() - start)


@dataclass(frozen=True)
class Default:
    """The code of Inductor's default mode for a problem, ATen's product and the kernels around it, as an Artifact. No
    build fails: without the code, the reference takes kernels of our own around the product (`calls.aten`)."""

    problem: Problem

    @property
    def key(self) -> str:
        """A digest of the problem."""
        return digest(self.problem, ATEN)

    @property
    def work(self) -> str:
        """See `Artifact.work`."""
        return ""

    def build(self, capability: int) -> Built:
        """Generate the code and compile its kernels."""
        return Built("", Emission(self.problem, ATEN).build(capability).seconds)
