"""What has to be compiled before a candidate can run, by backend."""

from __future__ import annotations

from gemmdb.config import Config
from gemmdb.generators.cuda import cutlass_build
from gemmdb.generators.cuda.emitted import Emission, only_emitted
from gemmdb.generators.cuda.part import Part
from gemmdb.generators.cuda.render import plan
from gemmdb.generators.cuda.units import Triton
from gemmdb.problem import Problem


def parts(problem: Problem, config: Config) -> list[Part]:
    """What has to be compiled before a config can run on a problem, by backend; nothing for ATen."""
    if only_emitted(config):
        return [Emission(problem, config)]
    if config.backend == "triton":
        return [Triton(launch.unit) for launch in plan(problem, config).launches]
    if config.backend == "cutlass":
        return [cutlass_build.library(problem, config)]
    return []


def compiler(config: Config) -> str:
    """What makes a config's parts: `inductor`, `cutlass` or `triton`. nvcc takes most of the time of whatever has a
    CUTLASS kernel in it."""
    return "inductor" if only_emitted(config) and config.backend != "cutlass" else config.backend
