"""The ops: what each kind of GEMM takes, one record each; and the fields of a Problem, which their rules read.

Everything in the library reads the traits of these records (`problem.spec.batched`) and does not compare names. To add
an op, add its record here and follow docs/contributing/op.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemmdb.errors import InputError, choices
from gemmdb.key import int4
from gemmdb.key.int4 import Int4Format
from gemmdb.key.operands import IEEE, Bias, Numerics, Operand
from gemmdb.rejected import Rejected

FLOATS = ("bf16", "fp16", "fp32", "fp64")
WEIGHT_DTYPES = ("int8", "uint8", int4.INT4, int4.FP4)
FP8 = ("fp8_e4m3", "fp8_e5m2")
"""torch.float8_e4m3fn and torch.float8_e5m2."""
SCALES = ("tensor", "row", "block")
"""How fp32 numbers scale the fp8 operands of C = (A * scale_a) @ (B * scale_b) + bias, as in `torch._scaled_mm`: one
for each operand; one for each row of A [M, 1] and each column of B [1, N]; or one for each 128 elements of a row of A
[M, K / 128] and each 128 x 128 elements of B [K / 128, N / 128], rounded up. They multiply the sums, those of blocks
the sum of each block along K."""
SCALE_BLOCK = 128
OUTPUTS = ("bf16", "fp16", "fp32")
"""The dtypes of the output and the bias of a scaled_mm."""
RAGGED = ("m", "k")
"""Which size the offsets of a grouped_mm divide, as in `torch._grouped_mm`: they say, on the device, where each group
ends. Nobody knows them before the program runs, so a Problem has the number of groups and the total size, and an answer
holds for every way to divide it. `m`: each group has rows of A [M, K] and a matrix of its own in B [groups, K, N], as
the experts of a mixture have. `k`: each has columns of A [M, K] and rows of B [K, N], and the output is
[groups, M, N]: the gradient of the experts' weights. Groups of fp8 have scales, as in `torch._scaled_grouped_mm`: an
fp32 number for each row of A [M], and one for each column of each group's B [groups, N]."""
GROUPED_FP8 = ("fp8_e4m3",)
_ROWS, _COLUMNS = ("row", "row-padded"), ("col", "col-padded")


@dataclass(frozen=True)
class Fields:
    """The fields of a Problem, which says what each means; `gemmdb.key.rules` says which values they may have."""

    op: str
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    out: str
    bias: Bias | None = None
    scalars: str = "unit"
    fusion: str = "none"
    numerics: Numerics = IEEE
    constant: bool = False
    batch: int = 1
    scales: str = ""
    groups: int = 0
    ragged: str = ""
    int4: Int4Format | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """What an op takes.

    `words`: a description for messages. `a`: the dtypes of A, the default first. `b`: the dtypes of B if it may differ
    from A; empty if B has the dtype of A. `out`: the default dtype of the output; `scaled_out`: the default with a
    `scale` fusion; empty for the dtype of A.
    `bias`: `never`, `always` or `maybe`. `unbiased`: the same op without the bias.
    `batched`: A, B and the output have a batch before their two dimensions. `integer`: the sums are int32.
    `dequantises`: B is cast to A's dtype inside the kernel. `scaled`: the dtypes of A with which A and B have their
    own fp32 scales, and the canonical form names their kind. `grouped`: offsets on the device divide one size into
    groups, and the canonical form has their number. `scale`: whether a `scale` fusion is possible.
    `rejection`: why fields that fit all of these are still invalid for the op, None when they are valid.
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
    rejection: Callable[[Fields], Rejected | None] = lambda fields: None

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


def _mixed_mm(fields: Fields) -> Rejected | None:
    own = fields.int4
    if fields.b.dtype in (int4.INT4, int4.FP4) and own is None:
        return Rejected(f"an {fields.b.dtype} weight has groups of scales")
    if own is None:
        return None
    if fields.b.dtype not in own.dtypes:
        return Rejected(f"packing={own.packing} has numbers of {' or '.join(own.dtypes)}, got {fields.b.dtype}")
    wanted = int4.WEIGHTS[fields.b.dtype]
    if fields.b != wanted:
        return Rejected(f"a weight with groups is {wanted.text}, got {fields.b.text}: its packing says how it lies")
    if fields.fusion == "scale":
        return Rejected("the scales of a weight with groups are those of its groups")
    signed = fields.b.dtype == "int8"
    if own.bits == 8 and own.zeros in (("uint8", int4.IN_WORDS) if signed else ("int8",)):
        return Rejected(f"zero points of {own.zeros} do not belong to a weight of {fields.b.dtype}")
    if own.packing == int4.MXFP4 and fields.a.dtype != "bf16":
        return Rejected(f"{own.packing} has bf16 activations: fp16 has fewer powers of two than its scales")
    if own.inner and (fields.a.dtype, own.zeros) != ("bf16", "bf16"):
        return Rejected(f"{own.packing} has bf16 activations and zero points")
    if own.zeros not in ("none", fields.a.dtype, *int4.INTEGERS):
        return Rejected(f"zero points of {own.zeros} do not belong to activations of {fields.a.dtype}")
    return None


def _scaled_mm(fields: Fields) -> Rejected | None:
    bias = fields.bias
    if fields.scalars != "unit":
        return Rejected("its scales are those of the operands; it has no alpha and beta")
    if fields.scales not in SCALES:
        return Rejected(f"scales are of one of the kinds {', '.join(SCALES)}, got {fields.scales!r}")
    if fields.out not in OUTPUTS:
        return Rejected(f"the output is one of {', '.join(OUTPUTS)}, got {fields.out!r}")
    if bias is not None and (bias.kind != "1d" or bias.dtype not in OUTPUTS):
        return Rejected(f"a bias is 1d and of one of {', '.join(OUTPUTS)}, got {bias.text}")
    return _fp8_layouts(fields)


def _fp8_layouts(fields: Fields) -> Rejected | None:
    """The matrix units of NVIDIA GPUs take fp8 only with K along memory in both operands, and torch requires that on
    every device. A matrix with one row or column has both orders."""
    a, b = fields.a.layout.order, fields.b.layout.order
    if a not in _ROWS:
        return Rejected(f"A lies by rows in memory, not {a}: the layout is nt")
    if b not in _COLUMNS and not (b in _ROWS and min(fields.k, fields.n) <= 1):
        return Rejected(f"B lies by columns in memory, not {b}: the layout is nt")
    return None


def _grouped_mm(fields: Fields) -> Rejected | None:
    dtype, scaled = fields.a.dtype, fields.a.dtype in GROUPED_FP8
    if fields.ragged not in RAGGED:
        return Rejected(f"the offsets divide one of the sizes {', '.join(RAGGED)}, got {fields.ragged!r}")
    if fields.scalars != "unit":
        return Rejected("it has no alpha and beta")
    if scaled and fields.scales != "row":
        return Rejected(f"groups of fp8 have row and column scales, got {fields.scales!r}")
    if scaled and fields.ragged != "m":
        return Rejected("groups of fp8 divide M: no kernel for groups that divide K, each with its scales, is measured")
    if scaled and fields.out != "bf16":
        return Rejected(f"the output of groups of fp8 is bf16, not {fields.out}")
    if not scaled and fields.out != dtype:
        return Rejected(f"the output has the dtype of A, {dtype}, not {fields.out}")
    if fields.a.layout.batch or fields.b.layout.batch:
        return Rejected("the matrices of the groups follow each other in memory")
    return _fp8_layouts(fields) if scaled else None


_ALL = (
    Op("mm", "plain GEMMs", FLOATS),
    Op("addmm", "GEMMs with a bias", FLOATS, bias="always", unbiased="mm"),
    Op("int_mm", "int8 GEMMs", ("int8", "uint8"), ("int8",), out="int32", scaled_out="bf16", integer=True),
    Op(
        "mixed_mm", "GEMMs with an integer weight", ("bf16", "fp16"), WEIGHT_DTYPES, bias="maybe", dequantises=True,
        rejection=_mixed_mm,
    ),
    Op("bmm", "batched GEMMs", FLOATS, batched=True, scale=False),
    Op("scaled_mm", "fp8 GEMMs", FP8, FP8, bias="maybe", scaled=FP8, scale=False, rejection=_scaled_mm),
    Op(
        "grouped_mm", "grouped GEMMs", ("bf16", "fp16", *GROUPED_FP8), scaled=GROUPED_FP8, grouped=True,
        scale=False, rejection=_grouped_mm,
    ),
)  # fmt: skip

OPS: Mapping[str, Op] = {op.name: op for op in _ALL}
"""Every op by its name."""


def named(name: str) -> Op:
    """The op of that name; raises InputError."""
    op = OPS.get(name)
    if op is None:
        raise InputError(f"unknown op {name!r}; {choices(name, OPS)}")
    return op
