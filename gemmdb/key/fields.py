"""Fields: what a Problem consists of, without checks, so that the rules of the ops can read it."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.key.int4 import Int4Format
from gemmdb.key.operands import IEEE, Bias, Numerics, Operand


@dataclass(frozen=True)
class Fields:
    """The fields of a Problem; `gemmdb.key.rules` says which values they may have.

    `a`, `b`: the operands as the GEMM sees them, so a transposed [N, K] weight is a `col` B. `out`: output dtype.
    `scalars`: alpha and beta, `unit` when both are 1. `fusion`: what the kernel is fused with: `none`, a `scale`
    (with its dtype cast), or the text of an Epilogue, `pointwise` for a light one. `constant`: B is a constant
    (freezing), so packed kernels exist.
    `scales`: of fp8 operands, one of ops.SCALES, how many numbers scale an operand; empty for others.
    `groups`: of a grouped_mm, how many; `ragged`: one of ops.RAGGED, which size they divide. 0 and empty for other ops.
    `int4`: of an int4 weight, how it is scaled and packed; None for other weights.
    """

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
