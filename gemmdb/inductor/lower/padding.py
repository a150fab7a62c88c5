"""Lowers products on padded operands with Inductor's own operators, and tells its padding pass what to leave alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.lower.adapter import composed, state
from gemmdb.inductor.lower.triton import Operands, check
from gemmdb.inductor.match import gemms
from gemmdb.kernels.aten import misaligned, padded_sizes
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query

aten = torch.ops.aten


def lower(config: Config, problem: Problem, operands: Operands, scalars: tuple[float, float] = (1.0, 1.0)) -> Any:
    """The product in Inductor's IR, of operands padded with zeros: a copy of each operand that changes, ATen's product,
    and a view of it. `scalars`: alpha and beta of an addmm. If the output is a view, its bias is added after the
    product.

    Raises Refused if the operands are not what the problem says.
    """
    check(problem, operands)
    m, n, k = padded_sizes(problem, int(config.values["multiple"]))
    a_row, b_row = problem.a.row_major, problem.b.row_major
    a = composed.padded(operands.a, (m, k), a_row)
    b = composed.padded(operands.b, (k, n), b_row)
    if operands.bias is not None and (m, n) == (problem.m, problem.n):
        return composed.padded_gemm(problem.op, a, b, (operands.bias, *scalars))
    result = composed.sliced(composed.padded_gemm(problem.op, a, b), problem.m, problem.n)
    if operands.bias is not None:
        return _with_bias(result, operands.bias, scalars)
    # The output is dense, as without padding. The work that follows reads the padded rows instead.
    return result if n == problem.n else state.lowering_of(aten.clone.default)(result)


def _with_bias(result: Any, bias: Any, scalars: tuple[float, float]) -> Any:
    multiply, add = state.lowering_of(aten.mul.Tensor), state.lowering_of(aten.add.Tensor)
    result, bias = (
        value if factor == 1 else multiply(value, factor) for value, factor in zip((result, bias), scalars, strict=True)
    )
    return add(result, bias)


def answered(current: Session | None, node: Any) -> bool:
    """Whether the session of the compile in progress has a measured answer for the product of `node`, or will measure
    one. For misaligned rows live tuning also tries padded products. The product is looked up as it is. On a GPU,
    Inductor takes the bias out of an fp32 addmm that elementwise work follows, so there an answer for what is left
    counts too. Without an answer, ATen without padding could be what runs, so Inductor decides."""
    if current is None:
        return False
    try:
        product = gemms.read(node)
    except Exception:
        # gemmdb does not steer a node that it cannot read.
        return False
    if product is None:
        return False
    if any(_decided(current, query) for query in _asked(product.query)):
        return True
    if not deciding.to_tune(current, product.query):
        return False
    return tuning.expects(current, product.query, _count(node, product.query))


def _decided(current: Session, query: Query) -> bool:
    """Whether padding is out of the question: the answer is forced, won a measurement, or is itself a padded product.
    Any other kernel is only expected to win. It is confirmed beside ATen without padding, and may be refused then. That
    costs something only where rows are misaligned. Padding four rows of A to eight gains nothing by itself. It hides
    that products share an activation, and the table's answer for four rows."""
    hit = deciding.ask(current, query)
    if hit is None:
        return False
    if hit.rung in ("exact", "forced") or hit.config.kernel == "padded":
        return True
    return hit.config != ATEN and not misaligned(query.problem)


def _count(node: Any, query: Query) -> int:
    """How often the graph of `node` has a product of the same problem."""
    count = 0
    for other in node.graph.find_nodes(op="call_function", target=node.target):
        with contextlib.suppress(Exception):
            found = gemms.read(other)
            count += found is not None and found.query.problem == query.problem
    return count


def _asked(query: Query) -> Iterator[Query]:
    """The forms that the product may have when it is lowered."""
    yield query
    problem = query.problem
    if problem.spec.unbiased and problem.epilogue and problem.bias and problem.bias.dtype == "fp32":
        yield replace(query, problem=replace(problem, op=problem.spec.unbiased, bias=None))
