"""Candidates that are measured as the code Inductor emits for them (`emitted`): their names, and the code as an
artifact.

Imports no torch: who plans a measurement need not, and who compiles other artifacts neither.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from gemmdb.generators.measure.cuda.artifact import Built
from gemmdb.generators.measure.cuda.cutlass_build import library
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Emitted(Config):
    """A config to be measured as the code that Inductor emits for it. No other config is equal to it."""

    @classmethod
    def code_of(cls, config: Config) -> Emitted:
        """`config` as emitted code."""
        return cls(config.backend, config.kernel, config.params)

    @property
    def plain(self) -> Config:
        """The config itself."""
        return Config(self.backend, self.kernel, self.params)


def only_emitted(config: Config) -> bool:
    """Whether `config` is measured as emitted code: asked for, or because Inductor alone can make it."""
    return isinstance(config, Emitted) or config.spec.emitted


@dataclass(frozen=True)
class Emission:
    """The emitted code of a config for a problem, as an Artifact."""

    problem: Problem
    config: Config

    @property
    def key(self) -> str:
        """A digest of problem and config."""
        return hashlib.sha256(f"emitted {self.problem.text} {self.config.text}".encode()).hexdigest()[:32]

    @property
    def work(self) -> str:
        """See `Artifact.work`: code of several problems has the same CUTLASS kernel in it."""
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
