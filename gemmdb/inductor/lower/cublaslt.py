"""Lower a GEMM with one algorithm of cuBLASLt: a call like ATen's, of an algorithm that the library did not choose."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gemmdb.cublaslt import launch
from gemmdb.cublaslt.matmul import MAX_WORKSPACE
from gemmdb.cublaslt.shape import Extra, Shape, shape_of
from gemmdb.inductor.lower.adapter import cublaslt, cutlass, ir_view, symbolic, templates
from gemmdb.inductor.lower.cutlass import leading
from gemmdb.inductor.lower.triton import Operands, Refused, check
from gemmdb.inductor.match import extract
from gemmdb.kernels.config import Config
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.kernels.cublaslt import attributes as attributes_of
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.problem import Problem


def lower(config: Config, problem: Problem, operands: Operands) -> Any:
    """Lower the GEMM in Inductor's IR, in the problem's output dtype. Raises Refused if the library of this process
    does not support the algorithm for the operands."""
    return cublaslt.gemm(*prepared(config, problem, operands))


def prepared(config: Config, problem: Problem, operands: Operands) -> tuple[cublaslt.Kernel, tuple[Any, ...]]:
    """Return the call of the algorithm, and its operands. M may be symbolic; `problem` then has its hint. Raises
    Refused as `lower` does."""
    check(problem, operands, symbolic=True)
    m, *others = operands.sizes
    if None in map(symbolic.number, others):
        raise Refused("symbolic sizes")
    if operands.vectors:
        raise Refused("cuBLASLt does not scale its columns")
    if rejected := cublaslt.rejection():
        raise Refused(rejected.reason)
    shape = replace(_shape(problem, operands), activation=activation_of(config))
    given = dict(zip(("scale_a", "scale_b"), operands.scales, strict=False), bias=operands.bias)
    rows = m if symbolic.number(m) is None else None
    symbolic_rows = shape.matrix_bias and rows is not None
    extras = [_extra(name, given[name], extra, symbolic_rows) for name, extra in shape.extras.items()]
    if not all(map(_aligned, (operands.a, operands.b, *extras))):
        raise Refused("cuBLASLt's algorithms need operands aligned to 16 bytes, which nothing here guarantees")
    attributes = attributes_of(config)
    try:
        # A number of rows that the library does not support the algorithm for is computed by torch.
        shapes = [replace(shape, m=end) for end in _ends(problem, operands)]
        workspace = max(cublaslt.workspace(one, operands.a.get_device(), attributes) for one in shapes)
    except launch.Refused as error:
        raise Refused(str(error)) from error
    if workspace > MAX_WORKSPACE:
        raise Refused(f"the algorithm needs a workspace of {workspace} bytes")
    return cublaslt.Kernel(problem.op, shape, attributes, workspace, rows), (operands.a, operands.b, *extras)


def _ends(problem: Problem, operands: Operands) -> set[int]:
    """Return the smallest and the largest number of rows, as far as they are known, and the hint."""
    low, high = operands.ranges.get("m", (problem.m, problem.m))
    ends = {max(low, 1), low if high is None else high}
    return ends if problem.m < min(ends) or problem.m > max(ends) else ends | {problem.m}


def _extra(name: str, node: Any, extra: Extra, symbolic_rows: bool) -> Any:
    """Return a bias or a scale in memory, as the library reads it. `symbolic_rows`: it has as many rows as the
    symbolic M. Raises Refused if it lies otherwise."""
    # A vector may be copied; the block scales lie by columns.
    vector = not symbolic_rows and max(extra.sizes, default=1) == math.prod(extra.sizes)
    stored = cutlass.dense(node) if vector else templates.settled(node)
    steady = symbolic_rows and None not in map(symbolic.number, stored.get_stride())
    found = ir_view.hinted(stored) if steady else ir_view.literal(stored)
    if found is None or not extra.fits(*found):
        raise Refused(f"a {name} of {list(node.get_size())}, not of {list(extra.sizes)} as cuBLASLt reads it")
    if extract.dtype_name(stored.get_dtype()) != extra.dtype:
        raise Refused(f"a {name} of {stored.get_dtype()}")
    return stored


def _aligned(node: Any) -> bool:
    """Whether an operand of fixed layout is aligned to 16 bytes at each run."""
    return not ir_view.anywhere(node) and int(node.get_layout().offset) * node.get_dtype().itemsize % VECTOR_BYTES == 0


def _shape(problem: Problem, operands: Operands) -> Shape:
    a, b = operands.a, operands.b
    apart = (0, 0) if problem.batch == 1 else (int(a.get_stride()[0]), int(b.get_stride()[0]))
    return shape_of(problem, leading(a, problem.a), leading(b, problem.b), apart)
