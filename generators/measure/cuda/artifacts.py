"""Compile artifacts that a candidate needs before it can run; the compile pool builds them on disk.

Imports no torch: neither planning a measurement nor compiling kernels needs it.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol as Interface

from gemmdb.generators.measure.cuda import compilers, elementwise
from gemmdb.generators.measure.cuda.render import Launch, Unit, plan
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.hardware import HOPPER
from gemmdb.key.canonical import lazy
from gemmdb.key.problem import Problem


@dataclass(frozen=True)
class Built:
    """Result of building an artifact: the reason it failed (empty on success), the seconds spent, and the shared memory
    per block in bytes (0: unknown until it runs)."""

    failure: str
    seconds: float
    shared: int = 0


class Artifact(Interface):
    """Something to compile in another process. The timing process then loads it from disk."""

    @property
    def key(self) -> str:
        """Name of the artifact: equal keys are built once."""

    @property
    def work(self) -> str:
        """Name of the slow part of the build, if other artifacts share it: while one is built, the others would wait
        for it. Empty if none does."""

    @property
    def optional(self) -> bool:
        """Whether the candidate can run without it."""

    def build(self, capability: int) -> Built:
        """Compile for compute capability `capability` (90 for sm90) and leave the result on disk, so that building
        again is fast."""


@dataclass(frozen=True)
class Triton:
    """One of our kernels, compiled into Triton's on-disk cache, including its launcher code."""

    unit: Unit
    work, optional = "", False

    @property
    def key(self) -> str:
        return self.unit.key

    def build(self, capability: int) -> Built:
        done = compilers.compile_unit(self.unit, capability)
        if done.kernel is None:
            return Built(done.failure, done.seconds)
        compilers.build_launcher(self.unit, done.kernel)
        return Built("", done.seconds, int(done.kernel.metadata.shared))


@dataclass(frozen=True)
class Library:
    """A CUTLASS kernel, compiled into a shared library. `source`: its complete CUDA source."""

    source: str
    work, optional = "", False

    @classmethod
    def of(cls, problem: Problem, config: Config) -> Library:
        """Return the library of a legal cutlass config on a problem."""
        return cls(cutlass.render(config, problem) + compilers.ENTRY)

    @lazy
    def key(self) -> str:
        text = "\n".join((self.source, *cutlass.FLAGS, *compilers.LIBRARY_OPTIONS))
        return f"cutlass-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def path(self) -> Path:
        """Path of the library once it is built with the current compiler and headers."""
        return compilers.library_folder() / f"{self.key}-{compilers.cutlass_tools()}.so"

    def build(self, capability: int) -> Built:
        if capability != HOPPER:
            return Built(f"sm{capability} does not run Hopper's instructions", 0.0)
        start = time.perf_counter()
        return Built(compilers.compile_library(self.source, self.path), time.perf_counter() - start)


@dataclass(frozen=True)
class Emitted(Config):
    """A config to measure as the code that Inductor emits for it. It equals no other config."""

    @classmethod
    def code_of(cls, config: Config) -> Emitted:
        """Return `config` as emitted code."""
        return cls(config.backend, config.kernel, config.params)

    @property
    def plain(self) -> Config:
        """The config itself."""
        return Config(self.backend, self.kernel, self.params)


def only_emitted(config: Config) -> bool:
    """Whether `config` is measured as emitted code: it is an `Emitted`, or only Inductor can generate it."""
    return isinstance(config, Emitted) or config.spec.emitted


def generated(problem: Problem, config: Config) -> bool:
    """Whether `config` is measured on a problem as code that Inductor generates. The code of a call of cuBLASLt is that
    call, unless a kernel follows it."""
    return only_emitted(config) and (config.backend != "cublaslt" or any(elementwise.around(problem)))


@dataclass(frozen=True)
class Emission:
    """The code that Inductor emits for a config on a problem (`emitted` generates it). For ATEN it is default mode's
    code: ATen's GEMM and the kernels around it. It is optional: the reference can use our own kernels instead."""

    problem: Problem
    config: Config

    @property
    def key(self) -> str:
        return hashlib.sha256(f"emitted {self.problem.text} {self.config.text}".encode()).hexdigest()[:32]

    @property
    def work(self) -> str:
        # The code of several problems may hold the same CUTLASS kernel.
        return Library.of(self.problem, self.config).key if self.config.backend == "cutlass" else ""

    @property
    def optional(self) -> bool:
        return self.config == ATEN

    def build(self, capability: int) -> Built:
        from gemmdb.generators.measure.cuda import emitted  # Needs torch.

        start, failure = time.perf_counter(), ""
        try:
            emitted.write(self.problem, self.config, capability)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        return Built(failure, time.perf_counter() - start)


def required(problem: Problem, config: Config) -> list[Artifact]:
    """Return what must be compiled before a config can run on a problem: its kernels, and those before and after them.
    If ATen's GEMM is not the whole problem, default mode's code is the reference."""
    if config == ATEN:
        around = any(elementwise.around(problem))
        return [*required_promptly(problem, config), *([Emission(problem, ATEN)] if around else [])]
    if generated(problem, config):
        return [Emission(problem, config)]
    if config.backend == "cublaslt":
        return _triton(*elementwise.around(problem))
    if config.backend == "triton":
        return _triton(*plan(problem, config).launches)
    if config.backend == "cutlass":
        rest = cutlass.outside(problem)
        follows = _triton(elementwise.after(rest, cutlass.product_dtype(problem))) if rest is not None else []
        return [Library.of(problem, config), *follows]
    return []


def required_promptly(problem: Problem, config: Config) -> list[Artifact]:
    """As `required`, for live tuning: the reference does not use default mode's code, since a compile process takes
    seconds to import Inductor."""
    if config == ATEN:
        return _triton(elementwise.flush(), *elementwise.around(problem))
    return required(problem, config)


def _triton(*launches: Launch | None) -> list[Artifact]:
    return [Triton(launch.unit) for launch in launches if launch is not None]


def compiler(config: Config, artifact: Artifact | None = None) -> str:
    """Return what compiles a config's artifacts, or one of them: `inductor`, `cutlass` or `triton`. Code with a CUTLASS
    kernel counts as `cutlass`, since nvcc takes most of its time."""
    if artifact is not None and config == ATEN:
        return "inductor" if isinstance(artifact, Emission) else "triton"
    if isinstance(artifact, Triton) or config == ATEN:
        return "triton"
    return "inductor" if only_emitted(config) and config.backend != "cutlass" else config.backend
