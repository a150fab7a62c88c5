"""Which configs that Inductor itself builds on a GPU, its Triton templates and padded ATen, can run on which problem;
each rule with its reason."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware, legality_fp8
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

TMA = "inductor_persistent_tma"
MAPPED = (TMA, legality_fp8.TMA)
"""The templates that load by tensor maps."""
_MOST_MATRICES = 65_535
"""What the second dimension of a grid has at most, over which torch 2.11 lays the matrices of a batch."""


def template(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why a config of Inductor's Triton templates cannot run, None when it can."""
    if problem.op not in config.spec.ops or device.kind not in config.spec.devices:
        return f"{config.name} does not solve {problem.op} on {device.kind}"
    if symbolic:
        return "the template is generated for fixed sizes"
    if problem.empty:
        return "there is nothing to compute in a product of size zero"
    if problem.op == "bmm" and (reason := _batch(problem)):
        return reason
    if problem.op == "scaled_mm":
        if reason := legality_fp8.template(config, problem, device):
            return reason
    elif problem.a.dtype not in ("bf16", "fp16", "fp32", "int8") or problem.numerics.fp32 == "bf16":
        return "the template multiplies bf16, fp16, int8, and fp32 in full or as TF32"
    if problem.scalars == "beta0":
        return "the template multiplies the bias by a beta of 0, and NaN times 0 is NaN"
    for operand, (rows, columns) in _operands(problem):
        if operand.layout.order in ("broadcast", "strided"):
            return f"a {operand.layout.order} operand has no row start to step by"
        if problem.batch * rows * columns >= hardware.LARGEST_OFFSET:
            return "offsets within an operand are 32 bits wide"
    if problem.batch * problem.m * problem.n >= hardware.LARGEST_OFFSET:
        return "offsets within the output are 32 bits wide"
    return _tile(config, problem, device)


def _batch(problem: Problem) -> str | None:
    if problem.batch > _MOST_MATRICES:
        return f"the grid has room for {_MOST_MATRICES} matrices"
    if problem.batch == 1:
        return "Inductor makes a product of two matrices of a batch of one on a GPU"
    return "Inductor multiplies elements where K is 1" if problem.k == 1 else None


def _tile(config: Config, problem: Problem, device: Device) -> str | None:
    value = {name: int(number) for name, number in config.params}
    if problem.op == "int_mm" and value["block_k"] < hardware.LEAST_DEPTH:
        return f"the matrix unit takes {hardware.LEAST_DEPTH} int8 of K at once"
    block = value["block_m"], value["block_n"], value["block_k"]
    stage = hardware.stage_bytes(block, hardware.item_sizes(problem.a, problem.b))
    if stage * value["stages"] > hardware.shared_bytes(device):
        return "the pipeline's stages do not fit into shared memory"
    if config.kernel not in MAPPED:
        return None
    if value["warps"] < hardware.GROUP_WARPS:
        return "the tensor copies of fewer than 4 warps are not safe, says Inductor"
    if 1 in (problem.m, problem.n, problem.k):
        return "a tensor map needs aligned strides, and that of a size of 1 may be anything"
    for operand, _ in _operands(problem):
        if not hardware.vector_rows(operand):
            return "the tensor copy engine wants rows that start at multiples of 16 bytes"
    return None


def padded(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why ATen cannot run on padded operands, None when it can."""
    if problem.op not in config.spec.ops or device.kind not in config.spec.devices:
        return f"{config.name} does not solve {problem.op} on {device.kind}"
    if symbolic:
        return "how much is padded is fixed when the graph is compiled"
    if 0 in (problem.m, problem.n, problem.k):
        return "there is nothing to compute in a product of size zero"
    if problem.scalars == "beta0":
        return "the bias is added after the product, multiplied by beta, and NaN times 0 is NaN"
    if any(operand.layout.order in ("broadcast", "strided") for operand, _ in _operands(problem)):
        return "only operands with rows that follow each other are padded"
    if padded_sizes(problem, int(config.values["multiple"])) == (problem.m, problem.n, problem.k):
        return "there is nothing to pad"
    return None


def padded_sizes(problem: Problem, multiple: int) -> tuple[int, int, int]:
    """M, N and K of the padded product: rounded up where they are the length of the rows of an operand in memory, or
    of the output's."""
    whole = tuple(-(-size // multiple) * multiple for size in (problem.m, problem.n, problem.k))
    a_rows, b_rows = (operand.layout.order.startswith("row") for operand in (problem.a, problem.b))
    return (problem.m if a_rows else whole[0], whole[1], whole[2] if a_rows or not b_rows else problem.k)


def misaligned(problem: Problem) -> bool:
    """Whether rows of an operand or of the output start at other than multiples of 16 bytes."""
    vector = VECTOR_BYTES // ITEM_SIZES[problem.a.dtype]
    return padded_sizes(problem, vector) != (problem.m, problem.n, problem.k)


def _operands(problem: Problem) -> tuple[tuple[Operand, tuple[int, int]], ...]:
    return (problem.a, (problem.m, problem.k)), (problem.b, (problem.k, problem.n))
