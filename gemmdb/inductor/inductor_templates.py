"""Lowers a product with a config of Inductor's own Triton templates: exactly one choice, whose epilogue it fuses."""

from __future__ import annotations

from typing import Any

import torch

from gemmdb.config import Config
from gemmdb.inductor.adapter import inductor_templates, templates
from gemmdb.inductor.triton_kernels import Operands, check, check_maps
from gemmdb.kernels_triton import row_major
from gemmdb.legality_inductor import TMA
from gemmdb.problem import Problem


def lower(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """The product in Inductor's IR, in the dtype of A (int32 for int_mm). `scalars`: alpha and beta of an addmm.

    Raises triton_kernels.Refused, or what Inductor raises when it cannot generate the kernel.
    """
    check(problem, operands)
    if config.kernel == TMA:
        check_maps(problem, operands)
    dtype = torch.int32 if problem.op == "int_mm" else operands.a.get_dtype()
    bias = None
    if operands.bias is not None:
        bias = (templates.expanded(operands.bias, problem.m, problem.n), *scalars)
    value = config.values
    choice = inductor_templates.Choice(
        config.kernel, constants(config, problem), int(value["warps"]), int(value["stages"])
    )
    return inductor_templates.product(choice, (operands.a, operands.b), dtype, bias)


def constants(config: Config, problem: Problem) -> dict[str, Any]:
    """What the template reads by name. What depends on sizes is computed here for the problem at hand: Inductor takes
    EVEN_K as it is given, and a copied one would be a wrong result."""
    value = config.values
    found: dict[str, Any] = {
        name.upper(): int(value[name]) for name in ("block_m", "block_n", "block_k", "group_m")
    }  # fmt: skip
    found |= {
        "EVEN_K": problem.k % int(value["block_k"]) == 0,
        "ALLOW_TF32": problem.numerics.fp32 == "tf32",
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.int32" if problem.op == "int_mm" else "tl.float32",
    }
    if config.kernel == TMA:
        found |= inductor_templates.tma_constants(row_major(problem.a), row_major(problem.b))
    return found
