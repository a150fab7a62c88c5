"""Which configs can be carried out for which problems here: each rule with its reason.

These are checked before anything is rewritten; what only the IR knows (a flexible layout) is left to the lowering,
which falls back to ATen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmdb.config import Config
from gemmdb.problem import Problem


def refuses(config: Config, problem: Problem, ranges: Mapping[str, Any] | None = None) -> str | None:
    """Why `config` cannot run `problem`, in one phrase; None when nothing speaks against it."""
    if problem.op not in config.spec.ops:
        return f"{config.name} does not solve {problem.op}"
    rule = _RULES.get((config.backend, config.kernel))
    if rule is None:
        return f"{config.name} cannot be lowered by this version"
    return rule(config, problem, ranges or {})


def _default(config: Config, problem: Problem, ranges: Mapping[str, Any]) -> str | None:
    return None


def _int8pack(config: Config, problem: Problem, ranges: Mapping[str, Any]) -> str | None:
    if problem.b.dtype != "int8":
        return "_weight_int8pack_mm takes an int8 weight"
    if problem.b.layout.order != "col":
        return "_weight_int8pack_mm takes a dense [N, K] weight"
    if problem.a.dtype != "bf16":
        # other dtypes have no kernel of their own: ATen converts the activations at each call
        return "_weight_int8pack_mm is measured for bf16 activations"
    return None


def _packed_gemm(config: Config, problem: Problem, ranges: Mapping[str, Any]) -> str | None:
    if not problem.constant:
        return "the C++ template packs the weight at compile time: it must be a constant"
    if problem.op == "int_mm":
        return "Inductor offers no C++ template for int_mm"
    if problem.a.dtype == "fp64":
        return "the C++ template has no fp64 kernel"
    if "n" in ranges or "k" in ranges:
        return "the C++ template needs static N and K"
    values = config.values
    if "m" in ranges and any(values.values()):
        return "with a symbolic M the C++ template blocks at run time"
    if problem.op == "mixed_mm" and problem.b.layout.order != "col":
        return "the int8 C++ template takes a [N, K] weight"
    return None


_RULES = {
    ("aten", "default"): _default,
    ("aten", "int8pack_mm"): _int8pack,
    ("cpp", "packed_gemm"): _packed_gemm,
}
