"""The ops: what each kind of product takes, one record each.

Everything in the library reads the traits of these records (`problem.spec.batched`) and does not compare names. To add
an op, add its record here and follow docs/contributing/op.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmdb.errors import InputError
from gemmdb.key import fp8, grouped, int4

if TYPE_CHECKING:
    from gemmdb.key.problem import Problem

FLOATS = ("bf16", "fp16", "fp32", "fp64")
WEIGHT_DTYPES = ("int8", "uint8", int4.INT4)


def _sound(problem: Problem) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Op:
    """What an op takes.

    `words`: a description for messages. `a`: the dtypes of A, the default first. `b`: the dtypes of B if it may differ
    from A; empty if B has the dtype of A. `out`: the default dtype of the output; `scaled_out`: the default with a
    `scale` fusion; empty for the dtype of A.
    `bias`: `never`, `always` or `maybe`. `unbiased`: the same op without the bias.
    `batched`: A, B and the output have a batch before their two dimensions. `integer`: the sums are int32.
    `dequantises`: B is cast to A's dtype inside the product. `scaled`: the dtypes of A with which A and B have their
    own fp32 scales, and the canonical form names their kind. `grouped`: offsets on the device divide one size into
    groups, and the canonical form has their number. `scale`: whether a `scale` fusion is possible.
    `reason`: why a Problem that fits all fields above is still invalid for the op, None when it is valid.
    """

    name: str
    words: str
    a: tuple[str, ...]
    b: tuple[str, ...] = ()
    out: str = ""
    scaled_out: str = ""
    bias: str = "never"
    unbiased: str = ""
    batched: bool = False
    integer: bool = False
    dequantises: bool = False
    scaled: tuple[str, ...] = ()
    grouped: bool = False
    scale: bool = True
    reason: Callable[[Problem], str | None] = _sound

    def multiplies(self, a: str, b: str) -> bool:
        """Whether it takes operands of these dtypes."""
        return a in self.a and (b in self.b if self.b else b == a)

    def dtypes(self, a: str | None, b: str | None) -> tuple[str, str]:
        """The dtypes of A and B, where None stands for the default. The dtype of B counts only if B may differ from
        A."""
        first = a or self.a[0]
        if not self.b:
            return first, first
        if b is not None:
            return first, b
        return first, self.b[0] if self.dequantises or self.integer else first

    def default_out(self, dtype: str, fusion: str) -> str:
        """The default dtype of the output when A has `dtype`."""
        whole = "bf16" if dtype in self.scaled else dtype
        return (self.scaled_out if fusion == "scale" else "") or self.out or whole


_ALL = (
    Op("mm", "products of two matrices", FLOATS),
    Op("addmm", "products with a bias", FLOATS, bias="always", unbiased="mm"),
    Op("int_mm", "products of int8", ("int8", "uint8"), ("int8",), out="int32", scaled_out="bf16", integer=True),
    Op(
        "mixed_mm", "products with an integer weight", ("bf16", "fp16"), WEIGHT_DTYPES, bias="maybe", dequantises=True,
        reason=int4.unlike,
    ),
    Op("bmm", "products of batches", FLOATS, batched=True, scale=False),
    Op(
        "scaled_mm", "products of fp8", fp8.FP8, fp8.FP8, bias="maybe", scaled=fp8.FP8, scale=False,
        reason=fp8.unlike,
    ),
    Op(
        "grouped_mm", "products of groups", grouped.DTYPES, scaled=grouped.FP8, grouped=True, scale=False,
        reason=grouped.unlike,
    ),
)  # fmt: skip

OPS: Mapping[str, Op] = {op.name: op for op in _ALL}
"""Every op by its name."""


def named(name: str) -> Op:
    """The op of that name; raises InputError."""
    op = OPS.get(name)
    if op is None:
        raise InputError(f"unknown op {name!r}; known: {', '.join(OPS)}")
    return op
