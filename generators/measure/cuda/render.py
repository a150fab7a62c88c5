"""Renders a Config of one of our Triton kernels into compilable units and the launches that solve a Problem with them.

Pure: no GPU, torch or triton. A unit does not depend on sizes beyond their divisibility, so one compiled unit serves
every problem of a sweep. A launch adds the grid.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jinja2

from gemmdb.generators.measure.literals import SCALARS
from gemmdb.kernels import triton
from gemmdb.kernels.config import Config
from gemmdb.key.operands import Bias
from gemmdb.key.problem import Problem

POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "int8": "*i8", "uint8": "*u8", "int32": "*i32",
            "fp8_e4m3": "*fp8e4nv", "fp8_e5m2": "*fp8e5"}  # fmt: skip
HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
REDUCE_BLOCK = 512


@dataclass(frozen=True)
class Unit:
    """One kernel to compile: Python source, argument (name, Triton type) pairs, the arguments known to be multiples of
    16 (pointers: 16-byte aligned), warps and pipeline stages."""

    source: str
    args: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    warps: int
    stages: int

    @functools.cached_property
    def key(self) -> str:
        """16 hexadecimal digits that name the unit."""
        text = repr((self.source, self.args, self.divisible, self.warps, self.stages))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Launch:
    """A unit with its grid; its arguments are looked up by name among the tensors and sizes of the problem.

    `resident`: at most that many programs per multiprocessor along the first dimension of the grid; 0: no limit.
    """

    unit: Unit
    grid: tuple[int, int, int]
    resident: int = 0


@dataclass(frozen=True)
class Plan:
    """The launches that solve a problem, in order, and the scratch they need.

    `partials`: elements of fp32 (int32 for int_mm) partial sums; `counters`: int32 counters, zero before the first
    launch and after each; `tma`: whether a launch builds tensor maps and so needs a scratch allocator.
    """

    launches: tuple[Launch, ...]
    partials: int = 0
    counters: int = 0
    tma: bool = False


@functools.lru_cache(maxsize=4096)
def plan(problem: Problem, config: Config) -> Plan:
    """The Plan of a legal triton config for a problem. Raises KeyError for a kernel that has no template."""
    template, value = triton.template(config), config.values
    names, reduction = template.names(config, problem), template.reduction(config)
    split = int(value.get("split_k", 1))
    grid = template.grid(problem.m, problem.n, names, lambda size, step: -(-size // step))
    fixup, partial = reduction == "fixup", reduction == "kernel"
    main = _unit(problem, config, names, ["partials", "counters"] if fixup else [], partial)
    launches = [Launch(main, grid, int(value.get("resident", 0)))]
    if partial:
        launches.append(reduction_launch(problem, split, ("partials", _sums(problem))))
    tiles = grid[0] if fixup else 0
    partials = tiles * split * int(value["block_m"]) * int(value["block_n"]) if fixup else 0
    partials = problem.m * problem.n * split if partial else partials
    return Plan(tuple(launches), partials, tiles, config.spec.maps(config))


def _sums(problem: Problem) -> str:
    """The type of a pointer to sums."""
    return "*i32" if problem.spec.integer else "*fp32"


def _unit(problem: Problem, config: Config, names: Mapping[str, int | str], extra: list[str], partial: bool) -> Unit:
    hooks = _Hooks(problem, tuple(extra), partial, bool(names.get("SCALED")))
    text = _template(config.kernel).render(
        **names, def_kernel=hooks.def_kernel, size=hooks.size, stride=hooks.stride, store_output=hooks.store_output
    )  # fmt: skip
    constants = "".join(f"    {name}: tl.constexpr = {value}\n" for name, value in sorted(names.items()))
    warps, stages = (int(config.values[name]) for name in ("warps", "stages"))
    return hooks.unit(HEAD + text.lstrip().replace("    #constants#\n", constants), warps, stages)


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(triton.source(name))


@dataclass(frozen=True)
class _Hooks:
    """The template hooks of a kernel that stands alone: dense strides are the sizes, and the epilogue is explicit.

    `scaled`: the template has applied the scale itself.
    """

    problem: Problem
    extra: tuple[str, ...]
    partial: bool
    scaled: bool = False

    def args(self) -> list[tuple[str, str]]:
        problem, acc = self.problem, _sums(self.problem)
        found = [("A", POINTERS[problem.a.dtype]), ("B", POINTERS[problem.b.dtype])]
        if not self.partial:
            found += _epilogue_args(problem)
        found += [("partials" if self.partial else "out", acc if self.partial else POINTERS[problem.out])]
        found += [(name, {"partials": acc, "counters": "*i32"}[name]) for name in self.extra]
        return [*found, ("M", "i32"), ("N", "i32"), ("K", "i32"), *self._strides()]

    def _strides(self) -> list[tuple[str, str]]:
        pairs = (("lda", self.problem.a), ("ldb", self.problem.b))
        return [(name, "i32") for name, operand in pairs if operand.layout.order.endswith("-padded")]

    def def_kernel(self, *_: str) -> str:
        names = [name for name, _ in self.args()]
        return f"def kernel({', '.join(f'arg_{n}' if n in 'MNK' else n for n in names)}):\n    #constants#"

    def size(self, name: str, dim: int) -> str:
        return "arg_" + {("A", 0): "M", ("A", 1): "K", ("B", 0): "K", ("B", 1): "N"}[name, dim]

    def stride(self, name: str, dim: int) -> str:
        if name == "scale":
            return "1"
        operand, leading = {"A": (self.problem.a, "lda"), "B": (self.problem.b, "ldb")}[name]
        if dim == (1 if operand.row_major else 0):
            return "1"
        if operand.layout.order.endswith("-padded"):
            return leading
        return {("A", 0): "K", ("A", 1): "M", ("B", 0): "N", ("B", 1): "K"}[name, dim]

    def store_output(
        self, indices: tuple[str, ...], value: str, mask: str, indent_width: int = 4, val_shape: object = None
    ) -> str:
        if self.partial:
            lines = ["tl.store(partials + ({} * M + {}) * N + {}, {}, mask={})".format(*indices, value, mask)]
        else:
            rest = replace(self.problem, fusion="none") if self.scaled else self.problem
            lines = epilogue(rest, indices, value, mask)
        return ("\n" + " " * indent_width).join(lines)

    def unit(self, source: str, warps: int, stages: int) -> Unit:
        args = tuple((f"arg_{n}" if n in "MNK" else n, t) for n, t in self.args())
        # M steps through memory only where A is transposed; elsewhere one kernel serves every M.
        rows = 1 if self.problem.a.row_major else self.problem.m
        sizes = {"arg_M": rows, "arg_N": self.problem.n, "arg_K": self.problem.k}
        sizes |= {"lda": self.problem.a.layout.align, "ldb": self.problem.b.layout.align}  # in elements
        divisible = tuple(n for n, t in args if t.startswith("*") or sizes[n] % 16 == 0)
        return Unit(source, args, divisible, warps, stages)


def _bias(problem: Problem) -> Bias | None:
    # A bias with beta zero is not read: it may hold NaN.
    return None if problem.scalars == "beta0" else problem.bias


def _epilogue_args(problem: Problem) -> list[tuple[str, str]]:
    bias = _bias(problem)
    found = [] if bias is None else [("bias", POINTERS[bias.dtype])]
    if problem.fusion == "scale":
        found.append(("scale", POINTERS[problem.out] if problem.out in ("bf16", "fp16") else "*fp32"))
    return [*found, ("scale_a", "*fp32"), ("scale_b", "*fp32")] if problem.scales else found


def epilogue(problem: Problem, indices: tuple[str, ...], value: str, mask: str) -> list[str]:
    """Statements that apply the problem's alpha, scales, bias and pointwise function to `value` and store it.

    The scale is one value per column, in the output's dtype, as in weight-only and dynamic quantisation. The scales of
    fp8 operands are one value each, or one per row and one per column. The pointwise function is relu, as an example of
    any cheap one.
    """
    (m, n), (alpha, beta), bias, lines = indices, SCALARS[problem.scalars], _bias(problem), []
    if problem.fusion != "none" or problem.bias is not None or problem.scales:
        lines.append(f"result = {value}.to(tl.float32)")
        value = "result"
    if alpha != 1:
        lines.append(f"result = result * {alpha}")
    if problem.fusion == "scale":
        lines.append(f"result = result * tl.load(scale + {n}, mask={n} < N, other=0).to(tl.float32)")
    if problem.scales == "tensor":
        lines.append("result = result * tl.load(scale_a) * tl.load(scale_b)")
    elif problem.scales == "row":
        lines.append(f"result = result * tl.load(scale_a + {m}, mask={m} < M, other=0)")
        lines.append(f"result = result * tl.load(scale_b + {n}, mask={n} < N, other=0)")
    if bias is not None:
        where = {"1d": f"{n}", "full": f"{m} * N + {n}", "column": f"{m}"}[bias.kind]
        times = "" if beta == 1 else f" * {beta}"
        lines.append(f"result = result + tl.load(bias + {where}, mask={mask}, other=0).to(tl.float32){times}")
    if problem.fusion == "pointwise":
        lines.append("result = tl.maximum(result, 0.0)")
    lines.append(f"tl.store(out + {m}.to(tl.int64) * N + {n}, {value}.to(out.dtype.element_ty), mask={mask})")
    return lines


def reduction(problem: Problem, split: int, source: tuple[str, str]) -> Unit:
    """Sums `split` results [split, M, N] of the (name, type) `source` in a fixed order and applies the epilogue."""
    args = [source, *_epilogue_args(problem), ("out", POINTERS[problem.out]), ("M", "i32"), ("N", "i32")]
    body = [
        f"at = tl.program_id(0) * {REDUCE_BLOCK} + tl.arange(0, {REDUCE_BLOCK})",
        "inside = at < M * N",
        f"acc = tl.load({source[0]} + at, mask=inside, other=0)",
        f"for part in tl.static_range(1, {split}):",
        f"    acc += tl.load({source[0]} + part * M * N + at, mask=inside, other=0)",
        "idx_m = at // N",
        "idx_n = at % N",
        *epilogue(problem, ("idx_m", "idx_n"), "acc", "inside"),
    ]
    text = f"{HEAD}def kernel({', '.join(n for n, _ in args)}):\n" + "".join(f"    {line}\n" for line in body)
    divisible = tuple(n for n, t in args if t.startswith("*") or (n == "N" and problem.n % 16 == 0))
    return Unit(text, tuple(args), divisible, 4, 1)


def reduction_launch(problem: Problem, split: int, source: tuple[str, str]) -> Launch:
    """`reduction` with its grid."""
    return Launch(reduction(problem, split, source), (math.ceil(problem.m * problem.n / REDUCE_BLOCK), 1, 1))
