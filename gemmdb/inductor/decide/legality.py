"""What Inductor cannot carry out although the backend could: each rule with its reason.

`Config.rejection` has the rules of the kernels themselves. These are checked before anything is rewritten; what
only the IR knows (a flexible layout) is left to the lowering, which falls back to ATen.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdb.devices.detect import cpu_multiplies_tf32
from gemmdb.hit import Hit, Range
from gemmdb.inductor.decide import compiled, refused
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cpp import PACKED_GEMM
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.registry import GPU_ALONE
from gemmdb.kernels.triton import counts_arrivals, tiles
from gemmdb.key import representatives
from gemmdb.key.problem import Problem, Query

ONLY_ATEN = "ATen is the only kernel for it"
ON_CPU = (Config.of("cpp", "packed_gemm", **dict.fromkeys(PACKED_GEMM.params, 0)), Config.of("aten", "int8pack_mm"))
"""What may beat ATen on a CPU: a C++ template of any blocking, of which its own choice has the fewest limits, and the
weight-only product."""
FREEZING = "torch._inductor.config.freezing"
"""The setting of torch that makes constants of weights, where no gradient is computed."""
MOST_COUNTERS = 2**14
"""How many tiles the kernels of a graph can count arrivals at: int32 counters at the beginning of their workspace."""


def objection(config: Config, query: Query) -> str | None:
    """Why `config` cannot be compiled for `query`, in one phrase; None when nothing speaks against it."""
    rejected = config.rejection(query.problem, query.device, query.ranges)
    found = rejected.reason if rejected else refuses(config, query.problem)
    found = found or refused.why(config, query.problem)
    return found or (_over_ranges(config, query) if query.ranges else None)


def excluded(query: Query, config: Config, rows: Range | None = None) -> str | None:
    """As `objection`, for some rows of `query`; None: for all of its sizes. The ladder asks this of what it serves."""
    return objection(config, query if rows is None else replace(query, ranges={**query.ranges, "m": rows}))


def refusal(hit: Hit, query: Query) -> tuple[Config, str] | None:
    """The first config of a hit that Inductor cannot carry out, and why; None when it can carry out all."""
    for config, rows in hit.kernels(query.ranges):
        if config != ATEN and (reason := excluded(query, config, rows)):
            return config, reason
    return None


def only_aten(query: Query) -> str:
    """Why no kernel but ATen can serve `query`, in a phrase: a build leaves it out, and no table will ever answer it.
    Empty if there are others. On a GPU there always are."""
    problem, device = query.problem, query.device
    if device.kind != "cpu":
        return ""
    others = () if problem.op in GPU_ALONE else [one for one in ON_CPU if problem.op in one.spec.ops]
    reasons = [_unmeasurable(problem) or objection(config, query) or "" for config in others]
    return "" if "" in reasons else ": ".join([ONLY_ATEN, *dict.fromkeys(reasons)][:2])


def alone(reason: str) -> str:
    """The part of a reason that says that ATen is the only kernel; empty if it does not."""
    first = reason.partition("; ")[0]
    return first if first.startswith(ONLY_ATEN) else ""


def _unmeasurable(problem: Problem) -> str:
    if problem.numerics.fp32 == "tf32" and not cpu_multiplies_tf32():
        return "this CPU multiplies fp32 in full, also where TF32 is allowed"
    if problem.empty:
        return "Inductor leaves nothing to compute of a product of size zero"
    return str(representatives.rejection(problem) or "")


def refuses(config: Config, problem: Problem) -> str | None:
    """Why Inductor cannot lower `problem` with `config`; None when it can."""
    if config.spec.template is not None:
        return _counted(config, problem) or (_mapped(problem) if config.spec.maps(config) else None)
    rule = _RULES.get((config.backend, config.kernel))
    if rule is None:
        return f"{config.name} cannot be lowered by this version"
    return rule(config, problem)


def _default(config: Config, problem: Problem) -> str | None:
    return None


def _loaded(config: Config, problem: Problem) -> str | None:
    archive = prebuilt.archive()
    name = prebuilt.name(config, problem) if archive is not None else ""
    if archive is None or name not in archive.kernels or not archive.runs_with(compiled.running()):
        return None  # nvcc compiles it, if the policy allows that.
    return None if compiled.usable(name) else "its compiled kernel cannot be loaded here"


def _int8pack(config: Config, problem: Problem) -> str | None:
    if problem.b.dtype != "int8":
        return "_weight_int8pack_mm takes an int8 weight"
    if problem.b.layout.order != "col":
        return "_weight_int8pack_mm takes a dense [N, K] weight"
    if problem.a.dtype != "bf16":
        # other dtypes have no kernel of their own: ATen converts the activations at each call
        return "_weight_int8pack_mm is measured for bf16 activations"
    return None


def _packed_gemm(config: Config, problem: Problem) -> str | None:
    if problem.spec.integer:
        return "Inductor offers no C++ template for int_mm"
    if problem.a.dtype == "fp64":
        return "the C++ template has no fp64 kernel"
    if not problem.constant:
        return f"the C++ template packs the weight at compile time: it must be a constant ({FREEZING})"
    if problem.a.layout.order not in ("row", "row-padded"):
        return "the C++ template needs unit stride along K of the activations"
    if problem.spec.dequantises and problem.b.layout.order != "col":
        return "the int8 C++ template takes a [N, K] weight"
    return None


def _counted(config: Config, problem: Problem) -> str | None:
    if counts_arrivals(config) and tiles(config, problem) > MOST_COUNTERS:
        return f"the workspace has counters for {MOST_COUNTERS} tiles"
    return None


def _mapped(problem: Problem) -> str | None:
    if 1 in (problem.m, problem.n, problem.k):
        return "a tensor map needs aligned strides, and that of a size of 1 may be anything"
    return None


def _over_ranges(config: Config, query: Query) -> str | None:
    """Why a config that is legal at the hints of symbolic sizes is not legal at all of their values."""
    smallest, largest = _end(query, 0), _end(query, 1)
    for end in (smallest, largest):
        if reason := config.rejection(end, query.device, query.ranges):
            return f"at m={end.m} n={end.n} k={end.k}: {reason}"
    if config.spec.maps(config) and _rows(query.problem) & set(query.ranges):
        return "the tensor copy engine wants rows of a known length"
    if reason := _nothing(config, query):
        return reason
    open_ended = any(high is None for name, (_, high) in query.ranges.items() if name != "k")
    grows = counts_arrivals(config) and not query.problem.spec.grouped  # Groups have sums for all programs at once.
    if open_ended and (grows or (config.backend == "cutlass" and config.values["split_k"] != 1)):
        return "the workspace has a fixed size, and that of the product has no bound"
    return _counted(config, largest) if config.backend == "triton" else None


def _nothing(config: Config, query: Query) -> str | None:
    """Why a config cannot be served where a size may be zero, which only sizes that come out of data may."""
    empty = {name for name, (low, _) in query.ranges.items() if low == 0}
    if empty and config.backend == "cutlass":
        return "CUTLASS refuses a product of size zero"
    if empty and config.backend == "cpp":
        return "the C++ template divides by a size that may be zero"
    return "there may be nothing to sum, and no kernel was tried with that" if "k" in empty else None


def _end(query: Query, which: int) -> Problem:
    """The problem at the lower (0) or upper (1) end of all ranges; at the hint where there is no upper end, since
    Inductor then guards what the kernel was generated for."""
    sizes = {name: getattr(query.problem, name) for name in ("m", "n", "k")}
    for name, ends in query.ranges.items():
        bound = ends[which]
        sizes[name] = sizes[name] if bound is None else max(bound, 1)
    return query.problem.resized(**sizes)


def _rows(problem: Problem) -> set[str]:
    """The sizes that are the length of a row of an operand in memory."""
    a, b = (problem.a.row_major, problem.b.row_major)
    return {"k" if a else "m", "n" if b else "k"}


_RULES = {
    ("aten", "default"): _default,
    ("aten", "padded"): _default,
    ("aten", "dequantised"): _default,
    ("triton", "inductor_bmm"): _default,
    ("triton", "inductor_grouped"): _default,
    ("triton", "inductor_mm"): _default,
    ("triton", "inductor_persistent_tma"): _default,
    ("triton", "inductor_scaled_tma"): _default,
    ("triton", "inductor_sum"): _default,
    ("aten", "int8pack_mm"): _int8pack,
    ("cpp", "packed_gemm"): _packed_gemm,
    ("cutlass", "gemm"): _loaded,
}
