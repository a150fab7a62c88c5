"""Render a Config of one of our Triton kernels into compilable units and the launches that solve a Problem with them.
Pure: no GPU, torch or triton."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jinja2

from gemmdb.generators.measure.cuda import epilogue
from gemmdb.generators.measure.cuda.epilogue import POINTERS
from gemmdb.kernels import triton
from gemmdb.kernels.config import Config
from gemmdb.key.canonical import lazy
from gemmdb.key.int4 import IN_WORDS, INT4
from gemmdb.key.problem import Problem

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
REDUCE_BLOCK = 512
VECTOR = 16
"""Largest divisor that Triton uses."""


@dataclass(frozen=True)
class Unit:
    """One kernel to compile: Python source, (name, Triton type) arguments, known divisors of the arguments as (name,
    divisor) pairs (pointers: of 16 bytes), warps and pipeline stages. It depends on sizes only through their
    divisibility, so one compiled unit serves many problems."""

    source: str
    args: tuple[tuple[str, str], ...]
    divisors: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    @lazy
    def key(self) -> str:
        """16 hexadecimal digits that identify the unit."""
        text = repr((self.source, self.args, self.divisors, self.warps, self.stages))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Launch:
    """A unit with its grid; its arguments are looked up by name among the problem's tensors and sizes.

    `resident`: maximum programs per multiprocessor along the first grid dimension; 0: no limit.
    """

    unit: Unit
    grid: tuple[int, int, int]
    resident: int = 0


@dataclass(frozen=True)
class Plan:
    """The launches that solve a problem, in order, and their scratch memory.

    `partials`: elements of fp32 (int32 for int_mm) partial sums; `counters`: int32 counters, zero before the first
    launch and after each; `tma`: whether a launch builds tensor maps and so needs a scratch allocator.
    """

    launches: tuple[Launch, ...]
    partials: int = 0
    counters: int = 0
    tma: bool = False


@functools.lru_cache(maxsize=4096)
def plan(problem: Problem, config: Config) -> Plan:
    """Return the Plan of a legal triton config for a problem. Raises KeyError for a kernel without a template."""
    template, value = triton.template(config), config.values
    names, reduction = template.names(config, problem), template.reduction(config)
    split, tma = int(value.get("split_k", 1)), config.spec.maps(config)
    grid = template.grid(problem.m, problem.n, names, lambda size, step: -(-size // step))
    main = Launch(_unit(problem, config, names, reduction), grid, int(value.get("resident", 0)))
    if reduction == "fixup":
        tiles = triton.tiles(config, problem)
        return Plan((main,), tiles * split * int(value["block_m"]) * int(value["block_n"]), tiles, tma)
    if reduction == "kernel":
        last = reduction_launch(problem, split, ("partials", _sums(problem)))
        return Plan((main, last), problem.m * problem.n * split, 0, tma)
    return Plan((main,), tma=tma)


def _sums(problem: Problem) -> str:
    """Return the pointer type of partial sums."""
    return "*i32" if problem.spec.integer else "*fp32"


def _unit(problem: Problem, config: Config, names: Mapping[str, int | str], reduction: str | None) -> Unit:
    hooks = _Hooks(problem, reduction == "fixup", reduction == "kernel", bool(names.get("SCALED")))
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
    """Template hooks of a standalone kernel: dense strides are the sizes, and the epilogue is explicit. `fixup`: its
    last program of each tile sums the others' results. `partial`: another kernel does. `scaled`: the template has
    applied the scale itself."""

    problem: Problem
    fixup: bool
    partial: bool
    scaled: bool = False

    def args(self) -> list[tuple[str, str]]:
        problem, acc = self.problem, _sums(self.problem)
        found = [("A", POINTERS[problem.a.dtype]), *weight_args(problem)]
        found += [("offsets", "*i32")] if problem.spec.grouped else []
        if not self.partial:
            found += epilogue.args(problem)
        found += [("partials", acc) if self.partial else ("out", epilogue.out_type(problem))]
        found += [("partials", acc), ("counters", "*i32")] if self.fixup else []
        found += [("M", "i32"), ("N", "i32"), ("K", "i32")]
        pairs = (("lda", problem.a), ("ldb", problem.b))
        found += [(name, "i32") for name, operand in pairs if operand.layout.order.endswith("-padded")]
        return [*found, ("apart", "i64")] if problem.ragged == "m" else found

    def def_kernel(self, *_: str) -> str:
        names = [name for name, _ in self.args()]
        return f"def kernel({', '.join(f'arg_{n}' if n in 'MNK' else n for n in names)}):\n    #constants#"

    def size(self, name: str, dim: int) -> str:
        if self.problem.int4 is not None and name == "B":
            words = self.problem.int4.inner or self.problem.int4.packing == "awq"
            return "(arg_N // 8)" if words else "arg_N"
        return "arg_" + {("A", 0): "M", ("A", 1): "K", ("B", 0): "K", ("B", 1): "N", ("B", -1): "N"}[name, dim]

    def stride(self, name: str, dim: int) -> str:
        if name.startswith("scale"):
            return self._scale_stride(name, dim)
        if (name, dim) == ("B", 0) and self.problem.ragged == "m":
            return "apart"
        operand, leading = {"A": (self.problem.a, "lda"), "B": (self.problem.b, "ldb")}[name]
        dim %= 2  # A template of groups counts from the last.
        if dim == (1 if operand.row_major else 0):
            return "1"
        if operand.layout.order.endswith("-padded"):
            return leading
        return {("A", 0): "K", ("A", 1): "M", ("B", 0): "N", ("B", 1): "K"}[name, dim]

    def _scale_stride(self, name: str, dim: int) -> str:
        if self.problem.scales == "block":  # Those of A along M, those of B along K padded to a multiple of four.
            return {("scale_a", 1): "M", ("scale_b", 1): "((K + 511) // 512 * 4)"}.get((name, dim), "1")
        return "N" if (name, dim) == ("scale_b", 0) else "1"  # Those of each group follow each other.

    def store_output(
        self, indices: tuple[str, ...], value: str, mask: str, indent_width: int = 4, val_shape: object = None
    ) -> str:
        if self.partial:
            lines = ["tl.store(partials + ({} * M + {}) * N + {}, {}, mask={})".format(*indices, value, mask)]
        else:
            rest = replace(self.problem, fusion="none") if self.scaled else self.problem
            *group, m, n = indices
            place = f"({group[0]}.to(tl.int64) * M + {m}) * N + {n}" if group else ""
            lines = epilogue.statements(rest, (m, n), value, mask, place)
        return ("\n" + " " * indent_width).join(lines)

    def unit(self, source: str, warps: int, stages: int) -> Unit:
        args = tuple((f"arg_{n}" if n in "MNK" else n, t) for n, t in self.args())
        # M steps through memory only where A is transposed; elsewhere one kernel serves every M.
        rows = 1 if self.problem.a.row_major else self.problem.m
        sizes = {"arg_M": rows, "arg_N": self.problem.n, "arg_K": self.problem.k}
        aligns = self.problem.a.layout.align, self.problem.b.layout.align  # In elements.
        sizes |= {"lda": aligns[0], "ldb": aligns[1], "apart": aligns[1]}
        return Unit(source, args, divisors(args, sizes), warps, stages)


def weight_args(problem: Problem) -> list[tuple[str, str]]:
    """Return the (name, type) arguments of the weight: one tensor, or those of a weight with groups."""
    own = problem.int4
    if own is None:
        return [("B", POINTERS[problem.b.dtype])]
    kind = "*i32" if own.inner or own.along_n else POINTERS.get(problem.b.dtype, "*u8")
    found = [("B", kind), ("scale", POINTERS[own.scale or problem.a.dtype])]
    zeros = "*i32" if own.zeros in (INT4, IN_WORDS) else POINTERS.get(own.zeros)
    return found if own.inner or zeros is None else [*found, ("zeros", zeros)]


def reduction_args(problem: Problem, source: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the (name, type) arguments of a kernel that finishes `source`."""
    return source, *epilogue.args(problem), ("out", epilogue.out_type(problem)), ("M", "i32"), ("N", "i32")


def reduction_launch(problem: Problem, split: int, source: tuple[str, str], place: str = "") -> Launch:
    """Sum `split` results [split, M, N] of the (name, type) `source` in a fixed order and apply the epilogue. `place`:
    as in `epilogue.statements`."""
    args = reduction_args(problem, source)
    body = [
        f"at = tl.program_id(0) * {REDUCE_BLOCK} + tl.arange(0, {REDUCE_BLOCK})",
        "inside = at < M * N",
        f"acc = tl.load({source[0]} + at, mask=inside, other=0)",
        f"for part in tl.static_range(1, {split}):",
        f"    acc += tl.load({source[0]} + part * M * N + at, mask=inside, other=0)",
        "idx_m = at // N",
        "idx_n = at % N",
        *epilogue.statements(problem, ("idx_m", "idx_n"), "acc", "inside", place),
    ]
    return Launch(kernel(problem, body, args), (math.ceil(problem.m * problem.n / REDUCE_BLOCK), 1, 1))


def kernel(problem: Problem, body: Sequence[str], args: tuple[tuple[str, str], ...], warps: int = 4) -> Unit:
    """Return a kernel with these statements over the [M, N] output of a problem."""
    return unit(body, args, {"N": problem.n}, warps, 1)


def unit(
    lines: Sequence[str], args: tuple[tuple[str, str], ...], sizes: Mapping[str, int], warps: int, stages: int
) -> Unit:
    """Return a kernel with these statements and arguments, of which some are `sizes`."""
    source = f"{HEAD}def kernel({', '.join(n for n, _ in args)}):\n" + "".join(f"    {line}\n" for line in lines)
    return Unit(source, args, divisors(args, sizes), warps, stages)


def divisors(args: Sequence[tuple[str, str]], sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return known divisors of the arguments, at most 16, as (name, divisor) pairs: without them, Triton would load
    single elements where Inductor, which writes K = 1480 into its code, uses 16-byte loads."""
    found = ((name, VECTOR if kind.startswith("*") else math.gcd(sizes.get(name, 1), VECTOR)) for name, kind in args)
    return tuple((name, divisor) for name, divisor in found if divisor > 1)
