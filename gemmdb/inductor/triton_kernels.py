"""Lowers a product with a config of our own Triton kernels: exactly one choice, whose epilogue Inductor fuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmdb import kernels_triton
from gemmdb.config import Config
from gemmdb.inductor import extract
from gemmdb.inductor.adapter import ir_view, templates
from gemmdb.inductor.legality import counts, tiles
from gemmdb.problem import Problem

LARGEST_OFFSET = 2**31


class Refused(Exception):
    """The operands that Inductor hands over are not what the kernel can take."""


@dataclass(frozen=True)
class Operands:
    """The operands of a product in Inductor's IR: `a` [M, K] and `b` [K, N], settled; a `scale` over N or a number that
    multiplies it; a `bias` that is added and broadcasts to [M, N]."""

    a: Any
    b: Any
    scale: Any = None
    bias: Any = None

    @classmethod
    def of(cls, problem: Problem, args: tuple[Any, ...], scale: Any = None) -> Operands:
        """The operands of an operator's arguments, A and B with layouts that stay."""
        bias, a, b = args if problem.op == "addmm" else (None, *args)
        return cls(templates.settled(a), templates.settled(b), scale, bias)

    def epilogue(self, scalars: tuple[float, float]) -> templates.Epilogue:
        """What is applied to the accumulator, for (alpha, beta); a bias whose beta is zero is not even read. Raises
        Refused for scalars that are not known."""
        if not all(isinstance(value, int | float) for value in scalars):
            raise Refused("alpha and beta are not numbers")
        alpha, beta = scalars
        return templates.Epilogue(self.scale, self.bias if beta != 0 else None, alpha, beta)


def lower(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """The product in Inductor's IR, in the dtype of A (int32 for int_mm). `scalars`: alpha and beta of an addmm.

    Raises Refused, or what Inductor raises when it cannot generate the kernel.
    """
    check(problem, operands)
    value = config.values
    constants: dict[str, Any] = dict(kernels_triton.names(config, problem))
    integer = problem.op == "int_mm"
    acc, dtype = (torch.int32, torch.int32) if integer else (torch.float32, operands.a.get_dtype())
    # Inductor reads the accumulator's dtype here, for what it fuses.
    constants["ACC_TYPE"] = "tl.int32" if integer else "tl.float32"
    if config.kernel == "persistent":
        constants["PROGRAMS"] = int(value["resident"]) * templates.multiprocessors(operands.a)
    pair: tuple[Any, ...] = (operands.a, operands.b)
    sizes = (problem.m, problem.n)
    epilogue = operands.epilogue(scalars)
    split, fixup = int(value.get("split_k", 1)), counts(config)
    partials = tiles(config, problem) * split * int(value["block_m"]) * int(value["block_n"]) if fixup else 0
    kernel = templates.Kernel(config.kernel, constants, int(value["warps"]), int(value["stages"]), partials)
    if split > 1 and not fixup:
        sums = templates.product(kernel, pair, (acc, (split, *sizes)))
        return templates.summed(sums, epilogue, dtype)
    if constants.get("SCALED"):
        # The template names the scale among its operands, and applies it.
        pair, epilogue = (*pair, templates.expanded(epilogue.scale, *sizes)), replace(epilogue, scale=None)
    return templates.product(kernel, pair, (dtype, sizes), epilogue)


def check(problem: Problem, operands: Operands) -> None:
    """Raise Refused unless the operands have the problem's sizes and dtypes, and offsets that fit 32 bits."""
    wanted = ((operands.a, problem.a, (problem.m, problem.k)), (operands.b, problem.b, (problem.k, problem.n)))
    for node, operand, sizes in wanted:
        found = ir_view.literal(node)
        if found is None:
            raise Refused("symbolic sizes or strides")
        if found[0] != sizes or extract.dtype_name(node.get_dtype()) != operand.dtype:
            raise Refused(f"an operand is {node.get_dtype()} {found[0]}, not {operand.dtype} {sizes}")
        if sum((size - 1) * stride for size, stride in zip(*found, strict=True)) >= LARGEST_OFFSET:
            raise Refused("offsets within an operand are 32 bits wide")
