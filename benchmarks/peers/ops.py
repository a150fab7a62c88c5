"""The ops that are compared, and the classes of M."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.key.problem import Problem

CLASSES = ((1, 1), (2, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096))
"""Ranges of M, both ends included."""
EXPERTS = (
    (8, 28672, 4096), (8, 4096, 14336),  # Mixtral 8x7B
    (32, 4096, 7168), (32, 7168, 2048),  # DeepSeek-V3, 256 experts on 8 GPUs
    (128, 1536, 2048), (128, 2048, 768),  # Qwen3-30B-A3B
    (32, 5760, 2880), (16, 16384, 5120),  # gpt-oss-20b; Llama-4-Scout
)  # fmt: skip
"""Experts, N and K of public models' expert layers: the fused gate and up projection, or the down projection."""
DEEPSEEK = ((24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048), (2112, 7168))
"""N and K of the layers of DeepSeek-V3 whose fp8 weights have block scales, as DeepGEMM's own benchmark has."""


@dataclass(frozen=True)
class Op:
    """An op of the comparison. `flags`: of `Problem.gemm`. `step`: N is a multiple of it. `deep`: K is one of this.
    `layers`: (N, K) of which half of the problems are drawn, if any."""

    name: str
    op: str
    flags: dict[str, Any] = field(default_factory=dict)
    step: int = 128
    deep: int = 128
    layers: tuple[tuple[int, int], ...] = ()

    def problem(self, m: int, n: int, k: int, groups: int = 0) -> Problem:
        """A problem of this op."""
        more: dict[str, Any] = {"groups": groups} if groups else {}
        return Problem.gemm(self.op, m=m, n=n, k=k, **self.flags, **more)

    @property
    def grouped(self) -> bool:
        """Whether its problems have experts."""
        return self.op == "grouped_mm"


ROWS_AT_ONCE, LEAST_INT8_ROWS, INT8_ROWS = 4, 17, 32
"""With block scales, cuBLAS takes a multiple of 4 rows. torch's int8 GEMM takes 17 rows or more; a program with
fewer pads them to 32."""
SYMMETRIC: dict[str, Any] = {
    "weight_dtype": "int4", "group": 128, "zeros": "none", "packing": "low-first", "constant_weight": True,
}  # fmt: skip
OPS = {
    one.name: one
    for one in (
        Op("fp8-block", "scaled_mm", {"scales": "block"}, deep=4 * SCALE_BLOCK, layers=DEEPSEEK),
        Op("int4", "mixed_mm", SYMMETRIC),
        Op("int8-weight", "mixed_mm", {"fusion": "scale", "constant_weight": True}),
        Op("fp8-row", "scaled_mm", {"scales": "row", "fast_accum": True}),
        Op("grouped", "grouped_mm"),
        Op("int8", "int_mm", {"fusion": "scale"}),
        Op("bf16", "mm", step=8, deep=8),
        Op("grouped-fp8", "grouped_mm", {"dtype": "fp8_e4m3", "fast_accum": True}),
        Op("fp8-tensor", "scaled_mm", {"scales": "tensor", "fast_accum": True}),
    )
}
"""By name, those first whose rivals matter most. fp8 sums as every serving engine does, in the matrix unit; blocks are
added up in fp32 by all. cuBLAS reads the block scales along K in fours."""


def padded(problem: Problem) -> Problem:
    """The problem that a program gives to torch: with more rows if torch does not take so few. What quantizes the
    activation writes these rows, and nobody reads the results, so they cost the program no kernel."""
    m = problem.m
    if problem.scales == "block":
        m = -(-m // ROWS_AT_ONCE) * ROWS_AT_ONCE
    elif problem.op == "int_mm" and m < LEAST_INT8_ROWS:
        m = INT8_ROWS
    return replace(problem, m=m)


def class_of(m: int) -> str:
    """The name of M's range."""
    low, high = next((low, high) for low, high in CLASSES if low <= m <= high)
    return f"{low:,} to {high:,}" if low < high else str(low)
