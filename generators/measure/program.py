"""Torch program of a Problem: its GEMM as each op spells it, with one representative per epilogue class.

The light class is measured with relu of the GEMM, or its sum with what it reads; `math` with an exact GELU, or with
SiLU of the first tensor it reads times the GEMM; a permuted store with the heads of an attention (for a bmm, with the
batch between rows and columns). Two classes are not measured: random numbers, whose seed a program draws once for many
GEMMs, and one-byte results, whose rounding hides errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.literals import SCALARS
from gemmdb.generators.measure.operands import DTYPES, Operands
from gemmdb.inductor.match.ops import dequantised, overload
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels import default_mode
from gemmdb.kernels.config import Config
from gemmdb.key.epilogue import Epilogue
from gemmdb.key.problem import Problem
from gemmdb.key.representatives import head

FP32_MODES = {"ieee": "highest", "tf32": "high", "bf16": "medium"}
"""`torch.set_float32_matmul_precision` by the `fp32` mode of Numerics."""
Tensors = Sequence[torch.Tensor]
EXTRA_INPUTS = ("scale_a", "scale_b", "offsets")
"""Names of an op's optional inputs, in order."""
MAX_GELU_SLOPE = 1.13
"""Largest slope of a GELU."""


def _mm(p: Problem, a: torch.Tensor, b: torch.Tensor, _: Any, bias: torch.Tensor | None, **out: Any) -> torch.Tensor:
    if bias is None:
        return torch.mm(a, b, **out)
    alpha, beta = SCALARS[p.scalars]
    return torch.addmm(bias, a, b, alpha=alpha, beta=beta, **out)


def _scaled_mm(
    p: Problem, a: torch.Tensor, b: torch.Tensor, scales: Tensors, bias: torch.Tensor | None, **out: Any
) -> torch.Tensor:
    dtype, fast = DTYPES[p.out], p.numerics.fast
    return torch._scaled_mm(a, b, *scales, bias=bias, out_dtype=dtype, use_fast_accum=fast, **out)


def _grouped_mm(p: Problem, a: torch.Tensor, b: torch.Tensor, more: Tensors, *_: Any, **out: Any) -> torch.Tensor:
    *scales, offsets = more
    if not p.scaled:
        return torch._grouped_mm(a, b, offs=offsets)
    dtype, fast = DTYPES[p.out], p.numerics.fast
    return torch._scaled_grouped_mm(a, b, *scales, offs=offsets, out_dtype=dtype, use_fast_accum=fast)


SPELLINGS: Mapping[str, Callable[..., torch.Tensor]] = {
    "mm": _mm, "addmm": _mm, "mixed_mm": _mm, "scaled_mm": _scaled_mm, "grouped_mm": _grouped_mm,
    "int_mm": lambda _p, a, b, *_, **out: torch._int_mm(a, b, **out),
    "bmm": lambda _p, a, b, *_, **out: torch.bmm(a, b, **out),
}  # fmt: skip
"""By op: (problem, A [m, k], B [k, n], the EXTRA_INPUTS that the problem has, bias that the op itself adds or None)
gives the GEMM [m, n], or the batch of them. A keyword `out` names the tensor to write it to; those in ALLOCATES ignore
it. The weight of a mixed_mm is cast first."""
ALLOCATES = ("grouped_mm",)
"""Ops that torch computes into new memory only."""


class Product(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
    """The module of a Problem, spelled so that Inductor's default sees the op itself.

    A constant weight, with its bias and scales, is a parameter; otherwise they are inputs after the activation, its own
    scale, the offsets of groups and what the epilogue reads. A `col` operand is stored transposed, and the graph
    transposes it back, as `nn.Linear` does. An int8 weight is cast before it is transposed, or after that
    where default mode packs it: Inductor's weight-only pattern takes that order.

    `replaced`: a weight with groups is multiplied by our operator, which a compile puts in its place.
    """

    def __init__(self, problem: Problem, operands: Operands, replaced: bool = False) -> None:
        super().__init__()
        self.operator = overload("int4_mm") if replaced else None
        self.problem, self.multiply, self.casts = problem, SPELLINGS[problem.op], problem.spec.dequantises
        self.own, self.columns, self.reads = problem.epilogue, head(problem.n), len(operands.reads)
        self.has_bias, self.has_scale = operands.bias is not None, problem.fusion == "scale"
        self.packs = operands.a.device.type == "cpu" and default_mode.packs_int8(problem)
        rest = [operands.b if problem.int4 else _stored(problem.b.layout.order, operands.b)]
        rest += [t for t in (operands.scale_b, operands.bias, operands.scale, operands.zeros) if t is not None]
        activation = [_stored(problem.a.layout.order, operands.a)]
        activation += [one for one in (operands.scale_a, operands.offsets) if one is not None]
        activation += operands.reads
        constant, inputs = (rest, []) if problem.constant else ([], rest)
        self.constants = torch.nn.ParameterList(torch.nn.Parameter(t, requires_grad=False) for t in constant)
        self.inputs: tuple[torch.Tensor, ...] = (*activation, *inputs)

    def forward(self, a: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the GEMM [m, n] of the stored operands, or the batch of them, with its epilogue. If the GEMM itself is
        kept, returns both: the epilogue's result first."""
        problem, inputs = self.problem, list(rest)
        first = [inputs.pop(0)] if problem.scaled else []
        offsets = [inputs.pop(0)] if problem.ragged else []
        reads = [inputs.pop(0) for _ in range(self.reads)]
        tensors = list(self.constants)  # Dynamo of torch 2.11 cannot unpack a ParameterList into a list.
        tensors += inputs
        b = tensors.pop(0)
        more = [*first, *([tensors.pop(0)] if problem.scaled else []), *offsets]
        bias = tensors.pop(0) if self.has_bias else None
        scale = tensors.pop(0) if self.has_scale else None
        a = _stored(problem.a.layout.order, a)
        if problem.int4 is not None:
            out = _int4_mm(problem, a, [b, *tensors], self.operator)
            out, bias = (out if bias is None else out + bias), None
        else:
            b = _stored(problem.b.layout.order, b.to(a.dtype) if self.casts and not self.packs else b)
            b = b.to(a.dtype) if self.packs else b
            out = self.multiply(problem, a, b, more, None if self.has_scale else bias)
        if out.dtype != DTYPES[problem.out]:
            out = out.to(DTYPES[problem.out])
        if scale is not None:
            out = out * scale
        if bias is not None and scale is not None:
            out = out + bias
        results = follow(self.own, self.columns, out, reads)
        return results if len(results) > 1 else results[0]


def _stored(order: str, matrix: torch.Tensor) -> torch.Tensor:
    if not order.startswith("col"):
        return matrix
    # `nn.Linear` transposes its weight like this; a batch is transposed in its last two dimensions.
    return matrix.t() if matrix.ndim == 2 else matrix.transpose(1, 2)


def _int4_mm(problem: Problem, a: torch.Tensor, tensors: Sequence[torch.Tensor], operator: Any) -> torch.Tensor:
    """Return `a` [m, k] times an int4 weight, as programs compute it: by ATen's operator for its layouts (on GPUs
    only), else by a linear layer with the dequantized weight; or by our `operator`."""
    own = problem.int4
    assert own is not None
    packed, scale, *rest = tensors
    zeros = rest[0] if rest else None
    if operator is not None:
        found: torch.Tensor = operator(a, packed, scale, zeros, own.size, own.packing)
        return found
    if own.inner:
        return torch.ops.aten._weight_int4pack_mm(a, packed, own.size, scale)
    weight = dequantised(packed, scale, zeros, own, a.dtype)
    return torch.mm(a, weight.t()) if own.along_n else torch.nn.functional.linear(a, weight)


def check_lowered(problem: Problem, config: Config, seen: Sequence[Event]) -> None:
    """Raise GemmdbError unless Inductor has `seen` only this problem in its program, and took this config."""
    if [event.problem for event in seen] != [problem.text]:
        raise GemmdbError(f"Inductor sees another problem: {', '.join(event.problem for event in seen) or 'none'}")
    if seen[0].note or seen[0].config != config.text:
        raise GemmdbError(seen[0].note or f"Inductor took {seen[0].config}")


def set_numerics(problem: Problem) -> None:
    """Set torch's precision and determinism switches to the problem's numerics."""
    torch.set_float32_matmul_precision(FP32_MODES[problem.numerics.fp32])
    torch.use_deterministic_algorithms(problem.numerics.deterministic)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = problem.numerics.reduced
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = problem.numerics.reduced


def follow(
    own: Epilogue | None, columns: int, product: torch.Tensor, reads: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a problem's program for its GEMM, `product` [m, n]: the result, and `product` if it is
    kept. `own`: the problem's epilogue. `columns`: columns of a head. `reads`: the full-size tensors that the epilogue
    reads. Dynamo traces this."""
    if own is None:
        return (product,)
    result = ordered(own, _elementwise(own, product, reads), columns)
    if own.stored:
        result = result.to(DTYPES[own.stored])
    if own.order != "own":
        result = result.contiguous()
    return (result, product) if own.kept else (result,)


def _elementwise(own: Epilogue, product: torch.Tensor, reads: list[torch.Tensor]) -> torch.Tensor:
    result, rest = product, list(reads)
    if own.arithmetic == "math":
        result = torch.nn.functional.silu(rest.pop(0)) * result if rest else torch.nn.functional.gelu(result)
    elif not rest:
        result = torch.relu(result)
    for other in rest:
        result = result + other
    return result


def ordered(own: Epilogue, result: torch.Tensor, columns: int) -> torch.Tensor:
    """Return a view of the [m, n] or [batch, m, n] `result` in its storage order. `columns`: columns of a head."""
    if own.order == "transposed":
        return result.transpose(-2, -1)
    if own.order == "permuted":
        heads = result if result.dim() == 3 else result.view(result.shape[0], result.shape[1] // columns, columns)
        return heads.permute(1, 0, 2)
    return result


def output(problem: Problem, device: torch.device) -> torch.Tensor:
    """Return an uninitialized tensor of the size, order and dtype of the first output of `follow`."""
    own, sizes = problem.epilogue, problem.shapes[2]
    if own is None:
        return torch.empty(sizes, dtype=DTYPES[problem.out], device=device)
    stored = ordered(own, torch.empty(sizes, device="meta"), head(problem.n)).shape
    return torch.empty(stored, dtype=DTYPES[own.stored or problem.out], device=device)


def as_product(problem: Problem, stored: torch.Tensor) -> torch.Tensor:
    """Return the result of `follow` in the order [m, n] or [batch, m, n]."""
    own = problem.epilogue
    if own is None or own.order == "own":
        return stored
    if own.order == "transposed":
        return stored.transpose(-2, -1)
    product = stored.permute(1, 0, 2)
    return product if problem.spec.batched else product.flatten(1)


def exact_epilogue(
    problem: Problem, product: torch.Tensor, squares: torch.Tensor, reads: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exact result for an exact float64 `product`, and the sums of squares behind it. `reads`: float64."""
    own = problem.epilogue
    if own is None:
        return product, squares
    result = _elementwise(own, product, reads)
    rest = list(reads)
    if own.arithmetic == "math":
        squares = squares * (torch.nn.functional.silu(rest.pop(0)).square() if rest else MAX_GELU_SLOPE**2)
    for other in rest:
        squares = squares + other.square()
    return result, squares
