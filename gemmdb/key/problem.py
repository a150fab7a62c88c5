"""Problem: one GEMM to solve, the key of everything in a table. Query: a Problem to look up for a Device."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from gemmdb.errors import InputError
from gemmdb.key import canonical, epilogue, rules
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.epilogue import Epilogue
from gemmdb.key.flags import Flags
from gemmdb.key.flags import fields as described
from gemmdb.key.int4 import Int4Format
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.operands import Bias, Numerics, Operand, TensorInfo, default_numerics
from gemmdb.key.ops import OPS, SCALE_BLOCK, Fields, Op, named

L2_STATES = ("cold", "hot")
"""The states of the last-level cache before a call that a lookup may ask for."""
SPARSEST = 4
"""In the sparsest split of a grouped_mm that is measured, one group of so many has work."""
_SIZE, _WORD = r"(?:0|[1-9]\d{0,9})", r"[a-z0-9_:\-]+"
_TEXT = re.compile(
    rf"(?P<op>[a-z_]+)(?: batch=(?P<batch>{_SIZE}))? m=(?P<m>{_SIZE}) n=(?P<n>{_SIZE}) k=(?P<k>{_SIZE})"
    rf" a=(?P<a>{_WORD}) b=(?P<b>{_WORD})"
    rf" out=(?P<out>{_WORD}) bias=(?P<bias>{_WORD}) scalars=(?P<scalars>{_WORD}) fusion=(?P<fusion>{_WORD})"
    r" fp32=(?P<fp32>[a-z0-9]+) acc=(?P<acc>[a-z0-9]+) reduced=(?P<reduced>[01])"
    r" deterministic=(?P<deterministic>[01]) constant=(?P<constant>[01])"
    r"(?: scales=(?P<scales>[a-z]+) fast=(?P<fast>[01]))?"
    rf"(?: groups=(?P<groups>{_SIZE}) ragged=(?P<ragged>[a-z]+))?"
    r"(?: group=(?P<group>[1-9]\d{0,3}) zeros=(?P<zeros>[a-z0-9]+) packing=(?P<packing>[a-z0-9\-]+))?"
)
"""The canonical form of a Problem."""


@dataclass(frozen=True)
class Problem(Fields):
    """One GEMM with concrete sizes: C[m, n] = A[m, k] @ B[k, n], with what the kernel is fused with; of a bmm `batch`
    of these, C[batch, m, n] = A[batch, m, k] @ B[batch, k, n]; of a scaled_mm fp8 operands, each with its fp32 scales.
    Of a grouped_mm, offsets divide `m` or `k` into groups, each with a GEMM of its own; fp8 operands have scales.

    `a`, `b`: the operands as the GEMM sees them, so a transposed [N, K] weight is a `col` B. `out`: output dtype.
    `scalars`: alpha and beta, `unit` when both are 1. `fusion`: what the kernel is fused with: `none`, a `scale`
    (with its dtype cast), or the text of an Epilogue, `pointwise` for a light one. `constant`: B is a constant
    (freezing), so packed kernels exist.
    `scales`: of fp8 operands, one of ops.SCALES, how many numbers scale an operand; empty for others.
    `groups`: of a grouped_mm, how many; `ragged`: one of ops.RAGGED, which size they divide. 0 and empty for other ops.
    `int4`: of a weight with a scale for each group, how it is scaled and packed: of four bits, always, or of eight;
    None for other weights.

    Raises InputError for values outside these.
    """

    def __post_init__(self) -> None:
        rules.check(self)

    @property
    def spec(self) -> Op:
        """What the op takes."""
        return OPS[self.op]

    @property
    def scaled(self) -> bool:
        """Whether the operands are fp8, with fp32 scales."""
        return self.a.dtype in self.spec.scaled

    @property
    def epilogue(self) -> Epilogue | None:
        """The class of the epilogue; None without one, and for a `scale`."""
        return None if self.fusion in ("none", "scale") else epilogue.parse(self.fusion)

    __getstate__ = canonical.state

    @lazy
    def family(self) -> str:
        """The canonical form without op and sizes: problems of one family may stand in for each other (rung `near`)."""
        return self._family()

    def _family(self) -> str:
        a, b, numerics = self.a, self.b, self.numerics
        bias = "none" if self.bias is None else self.bias.text
        more = f" scales={self.scales} fast={'01'[numerics.fast]}" if self.scaled else ""
        more += f" groups={self.groups} ragged={self.ragged}" if self.spec.grouped else ""
        more += f" {self.int4.text}" if self.int4 is not None else ""
        return (
            f"a={a.text} b={b.text} out={self.out} bias={bias} scalars={self.scalars} fusion={self.fusion}"
            f" fp32={numerics.fp32} acc={numerics.acc} reduced={'01'[numerics.reduced]}"
            f" deterministic={'01'[numerics.deterministic]} constant={'01'[self.constant]}{more}"
        )

    @property
    def head(self) -> str:
        """What the canonical form has before the family: op and sizes."""
        batch = f" batch={self.batch}" if self.spec.batched else ""
        return f"{self.op}{batch} m={self.m} n={self.n} k={self.k}"

    @lazy
    def text(self) -> str:
        """The canonical form, `mm m=16 n=4096 k=4096 a=bf16:row:8 b=bf16:col:8 ...`; `parse` reads it back."""
        return f"{self.head} {self._family()}"

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form."""
        return canonical.key(self.text)

    @lazy
    def doublings(self) -> tuple[float, float, float]:
        """The base-2 logarithms of M, N and K; of a size of 0 that of 1."""
        return math.log2(self.m or 1), math.log2(self.n or 1), math.log2(self.k or 1)

    @lazy
    def family_key(self) -> int:
        """The 64-bit key of the op and the family."""
        return canonical.key(f"{self.op} {self.family}")

    @classmethod
    def parse(cls, text: str) -> Problem:
        """The problem of a canonical form; raises InputError unless `text` is exactly what `Problem.text` writes."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InputError(f"malformed problem {text[:200]!r}")
        problem = cls(**_fields(match.groupdict()))
        if problem.text != text:
            raise InputError(f"not a canonical problem: {text[:200]!r}")
        return problem

    @classmethod
    def gemm(cls, op: str, *, m: int, n: int, k: int, **flags: Unpack[Flags]) -> Problem:
        """A problem with dense operands of M, N and K elements, as the flags of `gemmdb lookup` describe it, with the
        same defaults.

        `dtype`: of the activation. Default bf16; int8 for int_mm; fp8_e4m3 for scaled_mm. Torch's names are understood
        here and below: `bfloat16`, `torch.float16`. A grouped_mm takes bf16, fp16 and fp8_e4m3.
        `weight_dtype`: only for mixed_mm (default int8) and scaled_mm (default `dtype`).
        `layout`: two letters, for A and for B. `n`: stored row-major. `t`: stored transposed. `nt`, the default, is an
        [M, K] activation times the transpose of an [N, K] weight.
        `bias`: defaults to `1d` for addmm. The bias of a scaled_mm has the output's dtype.
        `constant_weight`: the weight is a constant of the graph (freezing), so it can be packed.
        `batch`: the number of matrices, for bmm. `interleaved`: the operands of a bmm whose matrices lie side by side,
        like the heads of an attention [tokens, heads, size]: `a`, `b` or `ab`.
        `scales` (default `tensor`; `row` for grouped_mm), `fast_accum`: only for fp8.
        `groups` (default 8), `ragged` (default `m`): only for grouped_mm.
        `group`, `zeros`, `packing`: only for a weight with a scale for each group, see `gemmdb.key.int4`. An int4
        weight always has groups, by default of 128 in the layout of `aten._weight_int4pack_mm`; an int8 or uint8 weight
        has them if one of these is given.

        Raises InputError.
        """
        return cls(**described(op, m, n, k, flags))

    @classmethod
    def from_tensors(cls, op: str, a: TensorInfo, b: TensorInfo, **rest: Any) -> Problem:
        """A problem from literal tensors: `a` is [M, K], `b` is [K, N] as the GEMM sees it, each with the batch
        before that for bmm, and B of a grouped_mm with the groups, if they divide M; `rest` are fields.

        Raises InputError, for example when the inner sizes differ.
        """
        spec = named(op)
        wanted, words = (3, "three") if spec.batched else (2, "two")
        matrices = b.sizes
        if spec.grouped and len(b.sizes) == 3:
            matrices = b.sizes[1:]
            rest |= {"groups": b.sizes[0], "ragged": "m"}
        if not len(a.sizes) == len(matrices) == wanted:
            raise InputError(f"{op}: operands have {words} dimensions, got {list(a.sizes)} and {list(b.sizes)}")
        if a.sizes[-1] != b.sizes[-2]:
            raise InputError(f"{op}: K differs: A is {list(a.sizes)} and B is {list(b.sizes)}")
        if a.sizes[:-2] != matrices[:-2]:
            raise InputError(f"{op}: the batch differs: A is {list(a.sizes)} and B is {list(b.sizes)}")
        m, k, n = *a.sizes[-2:], b.sizes[-1]
        rest |= {"batch": a.sizes[0]} if spec.batched else {}
        rest.setdefault("out", spec.default_out(a.dtype, rest.get("fusion", "none")))
        rest.setdefault("numerics", default_numerics(a.dtype))
        return cls(op, m, n, k, a.operand, b.operand, **rest)

    def resized(self, m: int, n: int, k: int) -> Problem:
        """The same problem at other sizes, its classes unchanged. But a matrix that is added has one row where M is 1:
        it is a vector there, as in the key of that size alone."""
        bias = self.bias
        if m == 1 and bias is not None and bias.kind == "full":
            bias = replace(bias, kind="1d")
        if (m, n, k, bias) == (self.m, self.n, self.k, self.bias):
            return self  # Its text and key are made once.
        return replace(self, m=m, n=n, k=k, bias=bias)

    @property
    def empty(self) -> bool:
        """Whether a size is 0, so that there is nothing to multiply."""
        return 0 in (self.batch, self.m, self.n, self.k) or (self.spec.grouped and self.groups == 0)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The sizes of A, B and the output as tensors: matrices, or batches of them for bmm. A grouped_mm has a matrix
        for each group in B if the groups divide M, in the output if they divide K."""
        batch = (self.batch,) if self.spec.batched else ()
        weights = (self.groups,) if self.ragged == "m" else batch
        outputs = (self.groups,) if self.ragged == "k" else batch
        return (*batch, self.m, self.k), (*weights, self.k, self.n), (*outputs, self.m, self.n)

    @property
    def scale_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the scales of A and B, of a problem that is `scaled`; none for a single number."""
        m, n, k = self.m, self.n, self.k
        if self.groups:  # Int4Format have scales of their own for B, as vectors.
            return (m,), (self.groups, n)
        if self.scales == "row":
            return (m, 1), (1, n)
        deep, wide = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
        return ((m, deep), (deep, wide)) if self.scales == "block" else ((), ())

    @property
    def active_groups(self) -> int:
        """How many groups of a grouped_mm have work at most: as many as there are rows, or elements of K, to divide."""
        return min(self.groups, self.m if self.ragged == "m" else self.k)

    @property
    def fewest_groups(self) -> int:
        """How many groups have work in the sparsest split that is measured."""
        return max(self.active_groups // SPARSEST, 1)

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations: 2 m n k, for each of a batch, and for all groups together."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> int:
        """The bytes of B, each matrix of a batch or of an active group once. A weight with a scale for each group has
        the scales and zero points of its groups."""
        size = ITEM_SIZES
        if self.int4 is not None:
            return self.int4.bytes(self.n, self.k, size[self.a.dtype])
        matrices = 1 if self.b.layout.batch == "broadcast" else self.batch
        return self.k * self.n * size[self.b.dtype] * (self.active_groups if self.ragged == "m" else matrices)

    @property
    def bytes(self) -> int:
        """The fewest bytes to move: each operand read once, the output written once, and what its epilogue reads and
        stores beside it. Of the groups, as many have work as can have some."""
        size, batch = ITEM_SIZES, self.batch
        outputs = size[self.out]
        if (follows := self.epilogue) is not None:
            outputs = size[follows.stored or self.out] + (follows.reads + follows.kept) * size[self.out]
        moved = batch * self.m * self.n * outputs * (self.groups if self.ragged == "k" else 1)
        moved += self.m * self.k * size[self.a.dtype] * (1 if self.a.layout.batch == "broadcast" else batch)
        moved += self.weight_bytes
        if self.bias is not None:
            elements = {"1d": self.n, "full": self.m * self.n, "column": self.m}[self.bias.kind]
            moved += elements * size[self.bias.dtype]
        scales = self.scale_sizes if self.scaled else ()
        return moved + size["fp32"] * sum(math.prod(sizes) for sizes in scales)


def _fields(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Problem from the groups of _TEXT. The caller compares whether the text is canonical."""
    numerics = Numerics(
        part["fp32"], part["acc"], part["reduced"] == "1", part["deterministic"] == "1", part["fast"] == "1"
    )
    return {
        **{name: part[name] for name in ("op", "out", "scalars", "fusion")},
        **{name: int(part[name]) for name in ("m", "n", "k")},
        "a": Operand.parse(part["a"]), "b": Operand.parse(part["b"]), "bias": Bias.parse(part["bias"]),
        "numerics": numerics, "constant": part["constant"] == "1", "batch": int(part["batch"] or 1),
        "scales": part["scales"] or "", "groups": int(part["groups"] or 0), "ragged": part["ragged"] or "",
        "int4": Int4Format(int(part["group"]), part["zeros"], part["packing"]) if part["group"] else None,
    }  # fmt: skip


@dataclass(frozen=True)
class Query:
    """A Problem to look up on a Device. `ranges` holds (smallest, largest or None) for each size that is symbolic;
    the problem then carries the hints. `l2` says which protocol's verdict is asked for. `activation`: the whole
    epilogue, if it is one that a library computes, `relu` or `gelu_tanh`; its class in the problem covers others, too.
    `aten_splits`: whether ATen's own call splits K, so that it launches a second kernel; False where nobody asked
    cuBLAS. `computed`: whether neither operand is a weight, but an input of the program or computed; False if unknown.
    """

    problem: Problem
    device: Device
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    l2: str = "cold"
    activation: str = ""
    aten_splits: bool = False
    computed: bool = False

    @property
    def symbolic(self) -> tuple[str, ...]:
        """The names among `m`, `n`, `k` that have more than one value."""
        return symbolic(self.ranges) if self.ranges else ()


def symbolic(ranges: Mapping[str, tuple[int, int | None]]) -> tuple[str, ...]:
    """The names of `ranges` that have more than one value."""
    return tuple([name for name, (low, high) in ranges.items() if low != high])
