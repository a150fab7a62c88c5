"""What Inductor cannot lower, by the configs, the problems and the ranges of their sizes: each rule with its reason.

`Config.rejection` has the rules of the kernels themselves. A lookup applies the rules here to what it is about to serve
(`gemmdb.lookup.answer`), so that it gives the same answer in a compile and outside of one.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from gemmdb.cost import host
from gemmdb.devices.detect import cpu_multiplies_tf32
from gemmdb.hit import Range
from gemmdb.kernels import cutlass as kernels_cutlass
from gemmdb.kernels import default_mode, rules
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cpp import PACKED_GEMM
from gemmdb.kernels.cublaslt import activation_of
from gemmdb.kernels.registry import GPU_ALONE
from gemmdb.kernels.triton import MAX_COUNTERS, counts_arrivals, tiles
from gemmdb.key import representatives
from gemmdb.key.problem import Problem, Query
from gemmdb.outcome import ONLY_ATEN
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy

PACKED = Config.of("cpp", "packed_gemm", **dict.fromkeys(PACKED_GEMM.params, 0))
"""The C++ template that chooses its own blocking; it has the fewest restrictions."""
WEIGHT_ONLY = Config.of("aten", "int8pack_mm")
"""ATen's weight-only kernel, which the reference calls too where default mode finds it."""
JOINED_OPS = ("mm", "addmm", "int_mm", "mixed_mm", "scaled_mm")
"""The ops of which several kernels can compute one node of a graph."""
_JOINED_BY_CUTLASS = ("mm", "addmm")
"""Those where CUTLASS reads the same operands as the others. Elsewhere, it takes scales of other dtypes or layouts."""
NOT_CONSTANT = "gemmdb's CPU kernels need constant weights: in inference, set torch._inductor.config.freezing = True"
"""Why the C++ template, which packs the weight when it is compiled, cannot run, and what to do."""
NO_WEIGHT = "gemmdb's CPU kernels pack a constant weight, and both operands of this GEMM are inputs or computed"
"""Why it cannot run where nothing can be done."""


def rejection(config: Config, query: Query, rows: Range | None = None) -> Rejected | None:
    """Return why Inductor cannot lower `query` with `config`. `rows`: the range of M that it serves, if it serves a
    part of the range."""
    ranges = {name: ends for name, ends in query.ranges.items() if ends[0] != ends[1]}
    if rows is not None:  # The size is symbolic even if the part has one value.
        ranges["m"] = rows
    query = replace(query, ranges=ranges) if ranges != query.ranges else query
    problem = query.problem
    return (
        config.rejection(problem, query.device, query.ranges)
        or lowering_rejection(config, problem)
        or _activation_rejection(config, query)
        or (_rejection_over_ranges(config, query) if query.ranges else None)
    )


def only_aten(query: Query) -> Rejected | None:
    """Return why only ATen can serve `query`: a build skips it, and no table will ever hit. On a GPU there is always
    another kernel, unless it cannot multiply these operands at all."""
    problem, device = query.problem, query.device
    if device.kind != "cpu":
        refused = rules.reject_fp8(problem, device)
        return refused and Rejected(f"{ONLY_ATEN}: {refused}")
    may_win = (PACKED,) if default_mode.packs_int8(problem) else (PACKED, WEIGHT_ONLY)
    others = () if problem.op in GPU_ALONE else [one for one in may_win if problem.op in one.spec.ops]
    found = [_unmeasurable(problem) or _weightless(query) or rejection(config, query) for config in others]
    if None in found:
        return None
    return Rejected(": ".join([ONLY_ATEN, *dict.fromkeys(map(str, found))][:2]))


def _weightless(query: Query) -> Rejected | None:
    """Return why no weight of a GEMM can be packed: no parameter has a symbolic size."""
    changes = set(query.symbolic) - {"m"}
    return Rejected(NO_WEIGHT) if query.computed or (changes and not query.problem.constant) else None


def _unmeasurable(problem: Problem) -> Rejected | None:
    if problem.numerics.fp32 == "tf32" and not cpu_multiplies_tf32():
        return Rejected("this CPU multiplies fp32 in full, also where TF32 is allowed")
    if problem.empty:
        return Rejected("Inductor skips GEMMs of size zero")
    return representatives.rejection(problem)


def lowering_rejection(config: Config, problem: Problem) -> Rejected | None:
    """Return why Inductor cannot lower `problem` with `config`."""
    if config.spec.template is not None:
        found = _counters_rejection(config, problem)
        if found is None and config.spec.maps(config) and 1 in (problem.m, problem.n, problem.k):
            return Rejected("a tensor map needs aligned strides, and those of a size of 1 are arbitrary")
        return found
    name = f"{config.backend}:{config.kernel}"
    if name in _RULES:
        return _RULES[name](config, problem)
    return None if name in _ALWAYS_LOWERED else Rejected(f"{config.name} cannot be lowered by this version")


def joins(config: Config, problem: Problem) -> bool:
    """Return whether a config can be one of several kernels that compute one node of a graph, by the number of rows at
    run time. Each is one kernel or call, and reads and writes the same memory."""
    if problem.op not in JOINED_OPS or problem.int4 is not None:
        return False
    if config.spec.template is not None:
        return int(config.values.get("split_k", 1)) == 1 or counts_arrivals(config)
    if config.backend == "cutlass":  # Without a workspace, which only one of the calls would need.
        return problem.op in _JOINED_BY_CUTLASS and not kernels_cutlass.streams(config)
    # ATen casts the weight of a mixed_mm, and scales the sums of an int_mm, by kernels of their own.
    return config.spec.extern or (config == ATEN and not problem.spec.dequantises and problem.fusion != "scale")


def slow_calls(config: Config, query: Query, us: float, speedup: float, policy: Policy) -> Rejected | None:
    """Return why the calls of a config take the host too long. They count on a GPU, unless a CUDA graph captures the
    program. `us`, `speedup`: of the config, over ATen."""
    if query.device.kind != "cuda" or policy.captured or policy.batch_invariant or config == ATEN:
        return None
    return host.rejection(config, query, us, us * speedup, bool(policy.training))


def _activation_rejection(config: Config, query: Query) -> Rejected | None:
    activation = activation_of(config)
    if activation in ("", query.activation):
        return None
    return Rejected(f"the GEMM's epilogue is not {activation} alone")


def _int8pack(config: Config, problem: Problem) -> Rejected | None:
    if problem.b.dtype != "int8":
        return Rejected("_weight_int8pack_mm takes an int8 weight")
    if problem.b.layout.order != "col":
        return Rejected("_weight_int8pack_mm takes a dense [N, K] weight")
    if problem.a.dtype != "bf16":
        # other dtypes have no dedicated kernel: ATen converts the activations at each call
        return Rejected("_weight_int8pack_mm is measured for bf16 activations")
    return None


def _packed_gemm(config: Config, problem: Problem) -> Rejected | None:
    if problem.spec.integer:
        return Rejected("Inductor offers no C++ template for int_mm")
    if problem.a.dtype == "fp64":
        return Rejected("the C++ template has no fp64 kernel")
    if not problem.constant:
        return Rejected(NOT_CONSTANT)
    if problem.a.layout.order not in ("row", "row-padded"):
        return Rejected("the C++ template needs unit stride along K of the activations")
    if problem.spec.dequantises and problem.b.layout.order != "col":
        return Rejected("the int8 C++ template takes a [N, K] weight")
    return None


_RULES = {"aten:int8pack_mm": _int8pack, "cpp:packed_gemm": _packed_gemm}
_ALWAYS_LOWERED = {
    "aten:default", "aten:padded", "aten:dequantised", "cublaslt:matmul",
    "cublaslt:matmul_activation", "cutlass:gemm", "cutlass:int4", "cutlass:int4_stream", "cutlass:scaled_blocks",
    "triton:inductor_bmm", "triton:inductor_grouped", "triton:inductor_mm", "triton:inductor_persistent_tma",
    "triton:inductor_scaled_tma", "triton:inductor_sum",
}  # fmt: skip


def _counters_rejection(config: Config, problem: Problem) -> Rejected | None:
    if counts_arrivals(config) and tiles(config, problem) > MAX_COUNTERS:
        return Rejected(f"the workspace has counters for {MAX_COUNTERS} tiles")
    return None


def _rejection_over_ranges(config: Config, query: Query) -> Rejected | None:
    """Return why a config that is legal at the hints of symbolic sizes is illegal at some of their values."""
    ends = _ends(query.problem, tuple(query.ranges.items()))
    for end in ends:
        if found := config.rejection(end, query.device, query.ranges):
            return Rejected(f"at m={end.m} n={end.n} k={end.k}: {found}")
    a, b = query.problem.a, query.problem.b
    row_lengths = {"k" if a.row_major else "m", "n" if b.row_major else "k"}
    if config.spec.maps(config) and row_lengths & set(query.ranges):
        return Rejected("the tensor copy engine needs rows of a known length")
    if found := _empty_rejection(config, query):
        return found
    unbounded = any(high is None for name, (_, high) in query.ranges.items() if name != "k")
    grows = counts_arrivals(config) and not query.problem.spec.grouped  # Groups have partial sums for all programs.
    if unbounded and (grows or (config.backend == "cutlass" and kernels_cutlass.streams(config))):
        return Rejected("the workspace has a fixed size, and the GEMM's sizes have no bound")
    return _counters_rejection(config, ends[1]) if config.backend == "triton" else None


def _empty_rejection(config: Config, query: Query) -> Rejected | None:
    """Return why a config cannot be served if a size may be zero, which only happens for data-dependent sizes."""
    empty = {name for name, (low, _) in query.ranges.items() if low == 0}
    if empty and config.backend == "cutlass":
        return Rejected("CUTLASS rejects a GEMM of size zero")
    if empty and config.backend == "cublaslt":
        return Rejected("cuBLASLt rejects a GEMM of size zero")
    if empty and config.backend == "cpp":
        return Rejected("the C++ template divides by a size that may be zero")
    return Rejected("K may be 0; untested") if "k" in empty else None


@functools.lru_cache(maxsize=256)  # A lookup checks twenty configs at the ends of one range.
def _ends(problem: Problem, ranges: tuple[tuple[str, Range], ...]) -> tuple[Problem, Problem]:
    """Return the problem at the lower and at the upper end of all ranges. A range without an upper end uses the hint,
    since Inductor guards the sizes that the kernel was generated for."""

    def end(which: int) -> Problem:
        sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
        for name, bounds in ranges:
            bound = bounds[which]
            sizes[name] = sizes[name] if bound is None else max(bound, 1)
        return problem.resized(**sizes)

    return end(0), end(1)
