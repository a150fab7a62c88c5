"""Serving engines' operators that gemmdb can open: their schemas, and the GEMM that each is for which operands.

The arithmetic and the operand layouts were read in the engines' sources of the versions named in each record. A call
is opened only if dtypes, sizes and strides prove that the operator computes this GEMM. Weights that an engine repacks
into a private layout (Marlin, Machete) prove nothing, so no such operator is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmdb.inductor.match.fx import Unsupported, known
from gemmdb.key.int4 import PLAIN, SIZES, Int4Format
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.rejected import Rejected

OUT, A, B, SCALE_A, SCALE_B, BIAS, DTYPE, BLOCK = "out", "a", "b", "scale_a", "scale_b", "bias", "dtype", "block"
ZEROS = "zeros"
BLOCKS = [SCALE_BLOCK, SCALE_BLOCK]
_PLAIN = (A, B, SCALE_A, SCALE_B)
_OUTPUTS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Operands:
    """The operands of a call: tensors, fake tensors, or nodes of a graph. `dtype`: of the output. `block`: the sizes of
    the weight's blocks [N, K], where the operator has such an argument. `zeros`: zero points of a weight with
    groups."""

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    bias: Any
    dtype: torch.dtype
    block: Sequence[int] = ()
    zeros: Any = None


@dataclass(frozen=True)
class Product:
    """The GEMM that a call is. `op`: of the key. `scales`: `tensor`, `row` or `block`; for int8 one number or a vector
    for each operand, which is all the same. `turned`: the weight is [N, K], and block scales are [N / 128, K / 128].
    `groups`: how an int4 weight is packed."""

    op: str
    scales: str
    turned: bool = False
    groups: Int4Format | None = None


@dataclass(frozen=True)
class EngineOp:
    """One operator. `schema`: as the engine declares it. `roles`: the operand that each of its arguments is, in their
    order. `product`: returns the GEMM of a call with fake tensors; raises Unsupported. `versions`: where this was
    read."""

    name: str
    schema: str
    roles: tuple[str, ...]
    product: Callable[[Operands], Product]
    versions: str

    @property
    def overload(self) -> Any:
        """The operator. Raises AttributeError if it is not loaded."""
        namespace, _, name = self.name.partition("::")
        return getattr(getattr(torch.ops, namespace), name).default

    @property
    def mutates(self) -> bool:
        """Whether it writes into an operand."""
        return OUT in self.roles

    def rejection(self) -> Rejected | None:
        """Return why the loaded operator cannot be opened."""
        try:
            found = self.overload._schema
        except AttributeError:
            return Rejected("it is not loaded")
        if str(found) != str(torch._C.parse_schema(f"{self.name}{self.schema}")):
            return Rejected(f"its schema differs from that of {self.versions}: {found}")
        return None

    def arguments(self, operands: Operands, out: Any = None) -> list[Any]:
        """Return the positional arguments of a call."""
        given = {OUT: out, BLOCK: list(BLOCKS)}
        return [given[role] if role in given else getattr(operands, role) for role in self.roles]

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operands by role. `given`: arguments by their names in the schema."""
        names = [one.name for one in self.overload._schema.arguments]
        return {role: given.get(name) for name, role in zip(names, self.roles, strict=True)}

    def __call__(self, operands: Operands) -> Any:
        """Call the operator on tensors and return its output [M, N]."""
        if not self.mutates:
            return self.overload(*self.arguments(operands))
        n = operands.b.shape[1]
        out = torch.empty((operands.a.shape[0], n), dtype=operands.dtype, device=operands.a.device)
        self.overload(*self.arguments(operands, out))
        return out


def _any_scales(given: Operands) -> Product:
    """vLLM's CUTLASS kernels: numbers and vectors of scales, or blocks where these do not fit."""
    op = _multiplied(given)
    kinds = _of_rows(given)
    if kinds is None:
        if op != "scaled_mm":
            raise Unsupported("int8 with block scales")
        return _blocks(given)
    return _with_rows(op, kinds)


def _rows_alone(given: Operands) -> Product:
    """SGLang's kernels, which take vectors of scales only."""
    op, kinds = _multiplied(given), _of_rows(given)
    whole = _equal(given.scale_a.numel(), given.a.shape[0]) and _equal(given.scale_b.numel(), given.b.shape[1])
    if kinds is None or not whole:
        raise Unsupported("the scales are not one for each row and one for each column")
    return Product(op, "row")


def _int8_rows(given: Operands) -> Product:
    """vLLM's Triton kernel of int8."""
    op, kinds = _multiplied(given), _of_rows(given)
    if op != "int_mm" or kinds is None:
        raise Unsupported("not int8 with row and column scales")
    return _with_rows(op, kinds)


def _blocks(given: Operands) -> Product:
    """CUTLASS kernels with block scales: those of A by columns, those of B along K."""
    if _multiplied(given) != "scaled_mm":
        raise Unsupported("block scales belong to fp8")
    (m, k), n = given.a.shape, given.b.shape[1]
    if given.bias is not None:
        raise Unsupported("block scales and a bias")
    _check_blocks(given, (m, k // SCALE_BLOCK), (k // SCALE_BLOCK, n // SCALE_BLOCK))
    if not (known(given.scale_a.stride(0) == 1) and known(given.scale_a.stride(1) == m)):
        raise Unsupported("the scales of A do not follow each other along M")
    if not (known(given.scale_b.stride(0) == 1) and known(given.scale_b.stride(1) == k // SCALE_BLOCK)):
        raise Unsupported("the scales of B do not follow each other along K")
    return Product("scaled_mm", "block")


def _triton_blocks(given: Operands) -> Product:
    """vLLM's Triton kernel, whose weight is [N, K]. It reads scales of any strides."""
    if list(given.block) != BLOCKS:
        raise Unsupported(f"blocks of {list(given.block)}")
    if given.b.dim() != 2 or given.a.dim() != 2:
        raise Unsupported("operands that are not matrices")
    turned = Operands(given.a, given.b.t(), given.scale_a, given.scale_b.t(), None, given.dtype)
    if _multiplied(turned) != "scaled_mm":
        raise Unsupported("block scales belong to fp8")
    (m, k), n = turned.a.shape, turned.b.shape[1]
    _check_blocks(turned, (m, k // SCALE_BLOCK), (k // SCALE_BLOCK, n // SCALE_BLOCK))
    return Product("scaled_mm", "block", turned=True)


def _plain_int4(given: Operands) -> Product:
    """MSLK's kernel of torchao's int4 weights [N, K / 2], with scales and zero points [K / group, N]."""
    a, b, scale, zeros = given.a, given.b, given.scale_b, given.zeros
    if any(one.device != a.device or one.dim() != 2 for one in (a, b, scale, zeros)):
        raise Unsupported("operands that are not matrices on one device")
    if (a.dtype, b.dtype) != (torch.bfloat16, torch.int8) or not scale.dtype == zeros.dtype == torch.bfloat16:
        raise Unsupported(f"operands of {a.dtype} and {b.dtype}, and scales of {scale.dtype} and {zeros.dtype}")
    if not all(isinstance(size, int) for one in (b, scale, zeros) for size in one.shape):
        raise Unsupported("operands that are not matrices of fixed N and K")
    (n, k), (groups, columns) = (b.shape[0], 2 * b.shape[1]), scale.shape
    if not known(a.shape[1] == k) or not all(map(_dense, (a, b, scale, zeros))):
        raise Unsupported("the rows of an operand do not follow each other in memory")
    if zeros.shape != scale.shape or columns != n or not groups or k % groups or k // groups not in SIZES:
        raise Unsupported(f"scales {list(scale.shape)} and zero points {list(zeros.shape)} of a weight [{n}, {k}]")
    return Product("mixed_mm", "none", groups=Int4Format(k // groups, "bf16", PLAIN))


def _multiplied(given: Operands) -> str:
    """Return the op of the key for two matrices: A dense by rows, B dense by columns, N and K fixed. Raises
    Unsupported."""
    a, b = given.a, given.b
    tensors = [one for one in (a, b, given.scale_a, given.scale_b, given.bias) if one is not None]
    if any(one.device != a.device for one in tensors):
        raise Unsupported("operands on several devices")
    if a.dim() != 2 or b.dim() != 2 or not all(isinstance(size, int) for size in b.shape):
        raise Unsupported("operands that are not matrices of fixed N and K")
    k, n = b.shape
    if not known(a.shape[1] == k) or not _dense(a) or not _dense(b.t()):
        raise Unsupported("the rows of A or the columns of B do not follow each other in memory")
    if given.dtype not in _OUTPUTS:
        raise Unsupported(f"an output of {given.dtype}")
    bias = given.bias
    if bias is not None and not (bias.dtype == given.dtype and tuple(bias.shape) == (n,) and bias.is_contiguous()):
        raise Unsupported("the bias is not a vector over N of the output's dtype")
    if not given.scale_a.dtype == given.scale_b.dtype == torch.float32:
        raise Unsupported(f"scales of {given.scale_a.dtype} and {given.scale_b.dtype}")
    for dtype, op in ((torch.float8_e4m3fn, "scaled_mm"), (torch.int8, "int_mm")):
        if a.dtype == b.dtype == dtype:
            return op
    raise Unsupported(f"operands of {a.dtype} and {b.dtype}")


def _of_rows(given: Operands) -> tuple[str, str] | None:
    """Return the kinds of the scales of A and B, `tensor` or `row`; None if they are neither."""
    sizes, kinds = (given.a.shape[0], given.b.shape[1]), []
    for scale, size in zip((given.scale_a, given.scale_b), sizes, strict=True):
        if not scale.is_contiguous():
            return None
        kinds.append("row" if _equal(scale.numel(), size) else "tensor" if _equal(scale.numel(), 1) else "")
    return (kinds[0], kinds[1]) if all(kinds) else None


def _equal(one: Any, other: Any) -> bool:
    """Whether two sizes are statically equal."""
    return known(one == other)


def _with_rows(op: str, kinds: tuple[str, str]) -> Product:
    if op == "int_mm" or kinds == ("row", "row"):
        return Product(op, "row")
    if kinds == ("tensor", "tensor"):
        return Product(op, "tensor")
    raise Unsupported("one number scales an operand, and a vector the other")


def _check_blocks(given: Operands, a: tuple[Any, Any], b: tuple[Any, Any]) -> None:
    """Raise Unsupported unless the scales have these sizes, and their blocks are whole. With one block along K, scales
    of blocks have as many numbers as row scales, which another kernel would read."""
    k, n = given.b.shape
    if k % SCALE_BLOCK or n % SCALE_BLOCK or k <= SCALE_BLOCK:
        raise Unsupported("no row and column scales, and K and N are not several whole blocks of 128")
    for scale, sizes in ((given.scale_a, a), (given.scale_b, b)):
        if scale.dim() != 2 or not all(map(_equal, scale.shape, sizes)):
            raise Unsupported(f"scales of the sizes {[str(size) for size in scale.shape]}")


def _dense(matrix: Any) -> bool:
    """Whether the rows of a matrix follow each other in memory."""
    rows, columns = matrix.shape
    along = known(matrix.stride(1) == 1) or known(columns == 1)
    return along and (known(matrix.stride(0) == columns) or known(rows == 1))


_VLLM, _SGLANG, _MSLK = "vLLM 0.33.0", "sgl-kernel 0.3.21", "MSLK 1.1.0"
_ALL = (
    EngineOp(
        "_C::cutlass_scaled_mm",
        "(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()",
        (OUT, *_PLAIN, BIAS), _any_scales, _VLLM,
    ),
    EngineOp(
        "vllm::int8_scaled_mm_func",
        "(Tensor qx, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType output_dtype, Tensor? bias=None)"
        " -> Tensor",
        (*_PLAIN, DTYPE, BIAS), _int8_rows, _VLLM,
    ),
    EngineOp(
        "vllm::w8a8_triton_block_scaled_mm_func",
        "(Tensor qx, Tensor weight, Tensor x_scale, Tensor weight_scale, SymInt[] block_size, ScalarType output_dtype)"
        " -> Tensor",
        (*_PLAIN, BLOCK, DTYPE), _triton_blocks, _VLLM,
    ),
    EngineOp(
        "sgl_kernel::fp8_scaled_mm",
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor",
        (*_PLAIN, DTYPE, BIAS), _rows_alone, _SGLANG,
    ),
    EngineOp(
        "sgl_kernel::int8_scaled_mm",
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor? bias) -> Tensor",
        (*_PLAIN, DTYPE, BIAS), _rows_alone, _SGLANG,
    ),
    EngineOp(
        "sgl_kernel::fp8_blockwise_scaled_mm",
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype) -> Tensor",
        (*_PLAIN, DTYPE), _blocks, _SGLANG,
    ),
    EngineOp(
        "mslk::bf16i4bf16_rowwise",
        "(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor",
        (A, B, SCALE_B, ZEROS), _plain_int4, _MSLK,
    ),
)  # fmt: skip
ENGINE_OPS: Mapping[str, EngineOp] = {one.name: one for one in _ALL}
"""Every operator that can be opened, by name."""
