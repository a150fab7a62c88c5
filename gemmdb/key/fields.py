"""Fields: what a Problem consists of, without checks, so that the rules of the ops can read it."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.key.int4 import Int4Format
from gemmdb.key.operands import IEEE, Bias, Numerics, Operand


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
