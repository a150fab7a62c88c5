"""What has to be compiled before a candidate can run, by backend."""

from __future__ import annotations

from gemmdb.generators.measure.cuda import cutlass_build, elementwise
from gemmdb.generators.measure.cuda.artifact import Artifact
from gemmdb.generators.measure.cuda.emission import Default, Emission
from gemmdb.generators.measure.cuda.emitted_config import only_emitted
from gemmdb.generators.measure.cuda.render import Launch, plan
from gemmdb.generators.measure.cuda.units import Triton
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem


def required(problem: Problem, config: Config) -> list[Artifact]:
    """What has to be compiled before a config can run on a problem: kernels, and the kernels before and after them.
    Where ATen's product is not the whole problem, default mode's code is the reference."""
    if config == ATEN:
        return [*required_promptly(problem, config), *([Default(problem)] if any(elementwise.around(problem)) else [])]
    if only_emitted(config):
        return [Emission(problem, config)]
    if config.backend == "triton":
        return _triton(*plan(problem, config).launches)
    if config.backend == "cutlass":
        rest = cutlass.outside(problem)
        follows = _triton(elementwise.after(rest, problem.a.dtype)) if rest is not None else []
        return [cutlass_build.library(problem, config), *follows]
    return []


def required_promptly(problem: Problem, config: Config) -> list[Artifact]:
    """As `required`, for live tuning: a process that compiles takes seconds to import Inductor, so the reference does
    without default mode's code."""
    if config == ATEN:
        return _triton(elementwise.flush(), *elementwise.around(problem))
    return required(problem, config)


def _triton(*launches: Launch | None) -> list[Artifact]:
    return [Triton(launch.unit) for launch in launches if launch is not None]


def compiler(config: Config, artifact: Artifact | None = None) -> str:
    """What makes a config's artifacts, or one of them: `inductor`, `cutlass` or `triton`. Code with a CUTLASS kernel
    counts as `cutlass`, since nvcc takes most of its time."""
    if isinstance(artifact, Default):
        return "inductor"
    if isinstance(artifact, Triton) or config == ATEN:
        return "triton"
    return "inductor" if only_emitted(config) and config.backend != "cutlass" else config.backend
