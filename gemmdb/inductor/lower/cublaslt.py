"""Lower a GEMM with one algorithm of cuBLASLt: a call like ATen's, of an algorithm that the library did not choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmdb.cublaslt import launch
from gemmdb.cublaslt.matmul import MAX_WORKSPACE, Shape, shape_of
from gemmdb.inductor.lower.adapter import cublaslt, cutlass, ir_view
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
    check(problem, operands)
    if operands.vectors:
        raise Refused("cuBLASLt does not scale its columns")
    if rejected := cublaslt.rejection():
        raise Refused(rejected.reason)
    nodes = [operands.a, operands.b]
    if problem.bias is not None:
        nodes.append(_bias(operands.bias, problem))
    if not all(map(_aligned, nodes)):
        raise Refused("cuBLASLt's algorithms need operands aligned to 16 bytes, which nothing here guarantees")
    shape = replace(_shape(problem, operands), activation=activation_of(config))
    attributes = attributes_of(config)
    try:
        workspace = cublaslt.workspace(shape, operands.a.get_device(), attributes)
    except launch.Refused as error:
        raise Refused(str(error)) from error
    if workspace > MAX_WORKSPACE:
        raise Refused(f"the algorithm needs a workspace of {workspace} bytes")
    return cublaslt.gemm(cublaslt.Kernel(problem.op, shape, attributes, workspace), tuple(nodes))


def _bias(node: Any, problem: Problem) -> Any:
    """Return the bias as contiguous memory. Raises Refused if it is not one number per column, of the output's
    dtype."""
    stored = cutlass.dense(node)
    found = ir_view.literal(stored)
    if found is None or found[0] not in ((problem.n,), (1, problem.n)):
        raise Refused(f"a bias of {list(node.get_size())}, not of {problem.n} elements")
    if extract.dtype_name(stored.get_dtype()) != problem.out:
        raise Refused(f"a bias of {stored.get_dtype()}")
    return stored


def _aligned(node: Any) -> bool:
    """Whether an operand of fixed layout is aligned to 16 bytes at each run."""
    return not ir_view.anywhere(node) and int(node.get_layout().offset) * node.get_dtype().itemsize % VECTOR_BYTES == 0


def _shape(problem: Problem, operands: Operands) -> Shape:
    a, b = operands.a, operands.b
    apart = (0, 0) if problem.batch == 1 else (int(a.get_stride()[0]), int(b.get_stride()[0]))
    return shape_of(problem, leading(a, problem.a), leading(b, problem.b), apart)
