"""Lower a GEMM with a config of Inductor's own Triton templates, as the only choice. Inductor fuses its epilogue."""

from __future__ import annotations

from typing import Any

from gemmdb.inductor.lower.adapter import inductor_templates, ir_view, templates
from gemmdb.inductor.lower.triton import Operands, Refused, check, check_maps, check_offsets, stored
from gemmdb.inductor.match import extract
from gemmdb.kernels.config import Config
from gemmdb.key.ops import SCALES
from gemmdb.key.problem import Problem


def lower(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """Lower the GEMM in Inductor's IR, with the dtype from `stored`. `scalars`: alpha and beta of an addmm.

    Raises Refused, or Inductor's exception if it cannot generate the kernel.
    """
    check(problem, operands)
    if config.spec.maps(config):
        check_maps(problem, operands)
    value = config.values
    choice = inductor_templates.Choice(
        config.kernel, constants(config, problem), int(value["warps"]), int(value["stages"])
    )
    if problem.spec.grouped:
        check_offsets(problem, operands)
        scales = _scales_as_stored(problem, operands)
        tensors = operands.a, operands.b, *scales, operands.offsets
        return inductor_templates.grouped_gemm(choice, tensors, stored(problem, operands), problem.shapes[2])
    if problem.scaled:
        if config.spec.maps(config):
            rest = _scales_as_stored(problem, operands)
        else:  # The inputs of the template's epilogue.
            nodes = (*operands.scales, operands.bias)
            rest = [templates.expanded(node, problem.m, problem.n) for node in nodes if node is not None]
        out = extract.TORCH[problem.out]
        return inductor_templates.scaled_gemm(choice, (operands.a, operands.b), out, rest)
    dtype = stored(problem, operands)
    if operands.vectors or (scalars[0] != 1 and operands.bias is None):
        epilogue = operands.epilogue(scalars)
        return inductor_templates.gemm(choice, (operands.a, operands.b), dtype, epilogue=epilogue)
    bias = None
    if operands.bias is not None:
        bias = (templates.expanded(operands.bias, problem.m, problem.n), *scalars)
    return inductor_templates.gemm(choice, (operands.a, operands.b), dtype, bias)


def _scales_as_stored(problem: Problem, operands: Operands) -> list[Any]:
    """Return the scales for a template that reads them by pointer. Raises Refused if they are not contiguous (for
    grouped GEMMs: along the last dimension)."""
    found = [templates.settled(scale) for scale in operands.scales]
    for scale in found:
        literal = ir_view.literal(scale)
        steps = [] if literal is None else list(zip(*literal, strict=True))
        steps = steps[-1:] if problem.spec.grouped else steps
        if literal is None or any(size > 1 and stride != 1 for size, stride in steps):
            raise Refused("the scales are not contiguous")
    return found


def constants(config: Config, problem: Problem) -> dict[str, Any]:
    """Return the constants that the template reads by name. Size-dependent constants are computed for this problem:
    Inductor does not check EVEN_K, and another problem's value would give wrong results."""
    value = config.values
    found: dict[str, Any] = {name.upper(): int(value[name]) for name in ("block_m", "block_n", "block_k")}
    if problem.spec.grouped:
        orders = problem.ragged == "k", problem.a.row_major, problem.b.row_major
        own = inductor_templates.grouped_constants(*orders, problem.scaled)
        return found | own | {"USE_FAST_ACCUM": problem.numerics.fast}
    found["GROUP_M"] = int(value["group_m"])
    found |= {
        "EVEN_K": problem.k % int(value["block_k"]) == 0,
        "ALLOW_TF32": problem.numerics.fp32 == "tf32",
        "USE_FAST_ACCUM": problem.numerics.fast,
        "ACC_TYPE": "tl.int32" if problem.spec.integer else "tl.float32",
    }
    if problem.scaled:
        recipe = SCALES.index(problem.scales)
        found |= {"SCALE_RECIPE_A": recipe, "SCALE_RECIPE_B": recipe}
    if config.spec.maps(config):
        found |= inductor_templates.tma_constants(problem.a.row_major, problem.b.row_major)
    return found
