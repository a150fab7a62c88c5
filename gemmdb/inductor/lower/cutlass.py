"""Lower a GEMM with a config of a CUTLASS kernel: one call with its scales and bias. Inductor benchmarks nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from gemmdb.inductor.lower.adapter import cutlass, ir_view, prebuilt_kernels, symbolic, templates
from gemmdb.inductor.lower.triton import ANYWHERE, Operands, Refused, check, largest
from gemmdb.inductor.match import extract
from gemmdb.kernels import cutlass as kernels_cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import prebuilt as archive
from gemmdb.kernels.hardware import LARGEST_OFFSET
from gemmdb.kernels.triton import TL
from gemmdb.key.layout import VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

FLOATS = ("bf16", "fp16", "fp32")
_BIASES = {"1d": lambda m, n: n, "column": lambda m, n: m, "full": lambda m, n: m * n}


class Unavailable(Refused):
    """No CUTLASS kernel serves this GEMM, but another kernel may: it is not compiled, and nvcc is missing or too slow
    for the policy, or it does not read block scales where they lie."""


def lower(config: Config, problem: Problem, operands: Operands, policy: Policy) -> Any:
    """Lower the GEMM in Inductor's IR, in the problem's output dtype. Raises what `prepared` raises."""
    return cutlass.gemm(prepared(config, problem, operands, policy))


def prepared(config: Config, problem: Problem, operands: Operands, policy: Policy) -> cutlass.Call:
    """Return the call of the kernel. M may be symbolic, because sizes are arguments.

    Raises Refused if the kernel cannot take the operands, and Unavailable if another kernel may.
    """
    check(problem, operands, symbolic=True)
    if rejected := cutlass.link_rejection():
        raise Unavailable(rejected.reason)
    m, n = problem.m, problem.n
    nodes, order = {"a": operands.a, "b": operands.b}, kernels_cutlass.order(config)
    problem = kernels_cutlass.inside(problem)
    if config.kernel == "scaled_blocks":
        nodes["scale"], nodes["row_scale"], order = _block_scales(operands)
    for name, vector, length in (("scale", operands.scale, n), ("row_scale", operands.rows, m)):
        if vector is not None:
            nodes[name] = _vector(vector, length)
    if problem.bias is not None or operands.bias is not None:
        kind = problem.bias.kind if problem.bias is not None else "1d"
        if kind == "1d" and any(symbolic.number(size) is None for size in operands.bias.get_size()[:-1]):
            raise Refused("a bias with as many rows as the output, whose hint is one row")
        nodes["bias"] = _vector(operands.bias, _BIASES[kind](m, n))
    dtypes = {name: extract.dtype_name(node.get_dtype()) for name, node in nodes.items()}
    vectors = kernels_cutlass.Vectors(*(dtypes.get(name, "") for name in ("scale", "row_scale", "bias")))
    bytes_ = _workspace(config, problem, operands)
    _check_offsets(nodes)
    _check_compiled(config, problem, vectors, nodes, policy)
    source = kernels_cutlass.render(config, problem, vectors)
    steps = leading(operands.a, problem.a), leading(operands.b, problem.b)
    kernel = cutlass.Kernel(source, order, steps, bytes_)
    return cutlass.Call(problem.op, kernel, nodes, operands.sizes, getattr(torch, TL[problem.out]))


def int4(
    config: Config, problem: Problem, nodes: Mapping[str, Any], sizes: tuple[Any, Any, Any], policy: Policy
) -> Any:
    """Lower a GEMM with an int4 weight. `nodes`: by `entry.OPERANDS`, the activation and a whole weight in memory.
    Raises what `prepared` raises."""
    problem = kernels_cutlass.inside(problem)
    zeros = extract.dtype_name(nodes["zeros"].get_dtype()) if "zeros" in nodes else "none"
    if problem.int4 is None or zeros != problem.int4.zeros:
        raise Unavailable(f"the kernel is not for zero points of {zeros}")
    if rejected := cutlass.link_rejection():
        raise Unavailable(rejected.reason)
    _check_offsets(nodes)
    _check_compiled(config, problem, None, nodes, policy)
    steps = leading(nodes["a"], problem.a), int(problem.k) // 2
    kernel = cutlass.Kernel(kernels_cutlass.render(config, problem), kernels_cutlass.order(config), steps, 0)
    return cutlass.gemm(cutlass.Call(problem.op, kernel, dict(nodes), sizes, getattr(torch, TL[problem.out])))


def _check_offsets(nodes: Mapping[str, Any]) -> None:
    """Raise Refused unless the copy engine can read all operands."""
    for node in nodes.values():
        if ir_view.anywhere(node):
            raise Refused(ANYWHERE)
        offset = int(node.get_layout().offset) * node.get_dtype().itemsize
        if offset % VECTOR_BYTES or offset >= LARGEST_OFFSET:
            raise Refused("an operand is not aligned to 16 bytes, or over 2 GiB into its storage")


def _check_compiled(
    config: Config,
    problem: Problem,
    vectors: kernels_cutlass.Vectors | None,
    nodes: Mapping[str, Any],
    policy: Policy,
) -> None:
    """Raise Unavailable unless the archive has the kernel for operands with buffers of their own, or nvcc compiles
    it."""
    apart = len({node.get_name() for node in nodes.values()}) == len(nodes)
    ready = apart and prebuilt_kernels.usable(archive.name(config, problem, vectors))
    if not ready and (rejected := _compile_rejection(config, policy)):
        raise Unavailable(rejected.reason)


def _compile_rejection(config: Config, policy: Policy) -> Rejected | None:
    """Why nvcc does not compile a kernel that is missing in the archive, None if it does."""
    if policy.compile_cost < config.spec.cost:
        slow = "nvcc takes longer than the policy allows"
        return Rejected(f"the kernel for these operands is not prebuilt, and {slow}")
    return cutlass.compiler_rejection()


def _workspace(config: Config, problem: Problem, operands: Operands) -> int:
    """Workspace bytes at the largest possible sizes."""
    if not kernels_cutlass.streams(config):
        return 0
    found = kernels_cutlass.workspace_bound(config, largest(problem, operands.ranges))
    if found >= LARGEST_OFFSET:
        raise Refused("the workspace is over 2 GiB")
    return found


def _vector(node: Any, elements: int) -> Any:
    """Return `node`, a scale or a bias, as contiguous memory. Raises Refused for another number of elements, or for a
    dtype that the kernel does not read."""
    stored = cutlass.dense(node)
    found = ir_view.hinted(stored)
    if found is None or math.prod(found[0]) != elements:
        raise Refused(f"a scale or bias of {list(node.get_size())}, not of {elements} elements")
    if extract.dtype_name(stored.get_dtype()) not in FLOATS:
        raise Refused(f"a scale or bias of {stored.get_dtype()}")
    return stored


def _block_scales(operands: Operands) -> tuple[Any, Any, tuple[Any, Any, int]]:
    """Return the block scales of B and of A, and the order of their kernel: the elements from those of one step along K
    to those of the next for A, and along N for B. Raises Unavailable unless A's lie one after the other along M, and
    B's along K, as torch wants them; an engine's own operator may take others."""
    a, b = (templates.settled(scale, row_major=False) for scale in operands.scales)
    for node in (a, b):
        size, stride = symbolic.number(node.get_size()[0]), symbolic.number(node.get_stride()[0])
        if node.get_dtype() != torch.float32 or (size != 1 and stride != 1):
            raise Unavailable("the block scales do not lie as torch wants them")
    return b, a, (a.get_stride()[1], b.get_stride()[1], 0)


def leading(node: Any, operand: Operand) -> int:
    """Return the leading dimension of a matrix, or of each of a batch, in elements: the row stride of a row-major
    matrix, the column stride of a column-major one. A single row or column may have any stride, but a tensor map needs
    an aligned one; then return the contiguous stride."""
    across, beside = (-2, -1) if operand.layout.order.startswith("row") else (-1, -2)
    size, stride, along = node.get_size()[across], node.get_stride()[across], node.get_size()[beside]
    found = symbolic.number(stride if size != 1 else along)
    if found is None:
        raise Refused("the row stride of an operand is symbolic")
    return found
