"""Options that several commands share, as dataclasses: a command takes one object instead of one parameter per
option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from gemmdb.cli import question
from gemmdb.errors import InputError
from gemmdb.key import epilogue
from gemmdb.key.device import Device
from gemmdb.key.ops import OPS
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.table.catalog import Catalog
from gemmdb.workload.entries import Entry

NO_KEY = ("text", "device", "arch", "l2")
"""The options of ProblemOptions that are no flags of `Problem.gemm`."""
JsonFlag = Annotated[bool, typer.Option("--json", help="Print a single JSON document on stdout.")]

WideFlag = Annotated[
    bool,
    typer.Option("--wide", help="Full texts, as `gemmdb lookup` takes them; on a terminal also all rows and columns."),
]

ConfirmFlag = Annotated[
    bool,
    typer.Option(
        "--confirm",
        help="Answer as a compile that times a kernel beside ATen first if nobody measured this very problem. By"
        " default, compiles for a GPU do so where it repays.",
    ),
]


@dataclass(frozen=True)
class ProblemOptions:
    """The argument and flags of `gemmdb lookup` and `gemmdb explain`: the keyword arguments of `Problem.gemm`, and the
    device and state of its cache."""

    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROBLEM",
            help="A problem as gemmdb prints it, or WORKLOAD.jsonl:LINE. Only --device, --arch and --l2 may be added."
            " Without it, --op, --m, --n and --k are required.",
            show_default=False,
        ),
    ] = None
    op: Annotated[
        str | None, typer.Option(help="mm, addmm, int_mm, mixed_mm, bmm, scaled_mm (fp8) or grouped_mm (experts).")
    ] = None
    m: Annotated[int | None, typer.Option(help="Rows of the activation.")] = None
    n: Annotated[int | None, typer.Option(help="Columns of the weight.")] = None
    k: Annotated[int | None, typer.Option(help="The inner size: columns of the activation, rows of the weight.")] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Dtype of the activation: fp32, fp16, bf16 or int8; fp8_e4m3 or fp8_e5m2 for scaled_mm, fp8_e4m3 for"
            " grouped_mm; or torch's name, bfloat16 [default: bf16; int8 for int_mm, fp8_e4m3 for scaled_mm]."
        ),
    ] = None
    layout: Annotated[
        str,
        typer.Option(help="How A and B are stored, row-major: n as it is, t transposed. nt: B is an [N, K] weight."),
    ] = "nt"
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            help="Dtype of the weight: int8, uint8 or int4 for mixed_mm [default: int8]; for scaled_mm [default: as"
            " --dtype]."
        ),
    ] = None
    bias: Annotated[str | None, typer.Option(help="none, 1d, full or column [default: 1d for addmm, else none].")] = (
        None
    )
    tf32: Annotated[bool, typer.Option("--tf32", help="Allow TF32 for fp32 inputs.")] = False
    out_dtype: Annotated[
        str | None,
        typer.Option(
            help="Dtype of the output [default: that of the activation; int32 for int_mm; bf16 for a scaled int_mm and"
            " for fp8]."
        ),
    ] = None
    fusion: Annotated[
        str,
        typer.Option(
            help="What is fused into the kernel: none, scale, pointwise (such as relu), pointwise:math (such as gelu or"
            f" silu); all classes: {epilogue.GRAMMAR}."
        ),
    ] = "none"
    constant_weight: Annotated[
        bool, typer.Option("--constant-weight", help="The weight is a constant (freezing) and can be packed.")
    ] = False
    l2: Annotated[str, typer.Option(help="State of the last-level cache before each call: cold or hot.")] = "cold"
    device: Annotated[
        str | None, typer.Option(help="The name of a device, for example 'NVIDIA H200' [default: this machine].")
    ] = None
    arch: Annotated[
        str | None, typer.Option(help="The arch of a device, instead of --device: cpu, sm80, sm90, ...")
    ] = None
    batch: Annotated[int, typer.Option(help="Number of matrices in the batch, for bmm only.")] = 1
    interleaved: Annotated[
        str,
        typer.Option(
            help="For bmm only: a, b or ab, the operands whose matrices lie side by side, as heads do in [tokens,"
            " heads, size]."
        ),
    ] = ""
    scales: Annotated[
        str | None,
        typer.Option(
            help="For fp8 only: tensor (one scale per operand), row (one per row of A and per column of B, for"
            " grouped_mm always) or block (1x128 of A by 128x128 of B) [default: tensor; row for grouped_mm]."
        ),
    ] = None
    fast_accum: Annotated[
        bool, typer.Option("--fast-accum", help="For fp8 only: use_fast_accum, which sums with fewer bits.")
    ] = False
    groups: Annotated[
        int | None, typer.Option(help="For grouped_mm only: number of groups, such as experts [default: 8].")
    ] = None
    ragged: Annotated[
        str | None,
        typer.Option(
            help="For grouped_mm only: which size the groups divide, m (the rows of each expert) or k (the gradient of"
            " its weight) [default: m]."
        ),
    ] = None
    group: Annotated[
        int | None,
        typer.Option(help="For int4 weights only: how many share a scale, 32, 64, 128 or 256 [default: 128]."),
    ] = None
    zeros: Annotated[
        str | None,
        typer.Option(
            help="For int4 weights only: the dtype of the zero points, none, uint8, int8 or that of the activation"
            " [default: none; bf16 for tinygemm packings, which always have them]."
        ),
    ] = None
    packing: Annotated[
        str | None,
        typer.Option(
            help="For int4 weights only: tinygemm8, tinygemm4 or tinygemm2 (aten._weight_int4pack_mm by its inner"
            " tiles), low-first or high-first (two in a byte) [default: tinygemm8 for bf16, else low-first]."
        ),
    ] = None

    def query(self, catalog: Catalog) -> Query:
        """What the argument or the flags ask, of the device that they name or that the workload was recorded on. Raises
        InputError."""
        if self.device is not None and self.arch is not None:
            raise InputError("--device and --arch exclude each other: both name the device")
        for flag, name in (("--device", self.device), ("--arch", self.arch)):
            if name == "":  # Probably an unset variable of a script. It does not mean this machine.
                raise InputError(f"{flag} is empty: name a device, or leave {flag} out for this machine")
        if self.l2 not in L2_STATES:
            raise InputError(f"unknown l2 state {self.l2!r}; known: {', '.join(L2_STATES)}")
        asked = self._pasted(self.text) if self.text else Entry(self._described())
        where = self.device or self.arch
        recorded = Device.parse(asked.device) if asked.device and where is None else None
        ranges = {name: (low, high) for name, low, high in asked.ranges}
        return Query(asked.problem, recorded or catalog.resolve(where), ranges, self.l2)

    def _pasted(self, words: list[str]) -> Entry:
        """The problem of the argument."""
        for field in fields(self):
            if field.name not in NO_KEY and getattr(self, field.name) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                raise InputError(f"{flag} and PROBLEM exclude each other: PROBLEM says all but the device and --l2")
        found = question.read(words)
        self._refuse_empty(found.problem, "{}={}")
        return found

    def _described(self) -> Problem:
        """The problem of the flags."""
        for flag, value in (("--op", self.op), ("--m", self.m), ("--n", self.n), ("--k", self.k)):
            if value is None:
                raise InputError(f"{flag} is missing: name --op, --m, --n and --k, or a PROBLEM as gemmdb prints it")
        flags: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in NO_KEY
        }
        problem = Problem.gemm(**flags)
        if self.weight_dtype is not None and not problem.spec.b:
            named = f"--weight-dtype is for {' and '.join(op.name for op in OPS.values() if len(op.b) > 1)} only"
            raise InputError(f"{named}; both operands of {self.op} have the same dtype")
        self._refuse_empty(problem, "--{} {}")
        return problem

    def _refuse_empty(self, problem: Problem, spelled: str) -> None:
        for name in ("batch", "m", "n", "k", *(["groups"] if problem.spec.grouped else [])):
            if getattr(problem, name) == 0:
                raise InputError(f"{spelled.format(name, 0)}: there is nothing to compute; name a size of at least 1")


def takes(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for a command whose first parameter is the dataclass `options`: each field becomes an option."""
    hints = get_type_hints(options, include_extras=True)
    names = [field.name for field in fields(options)]
    expanded = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            function(options(**{name: values.pop(name) for name in names}), **values)

        signature = inspect.signature(function, eval_str=True)
        rest = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(signature.parameters.values())[1:]]
        # Typer reads the parameters from this signature.
        command.__signature__ = inspect.Signature([*expanded, *rest])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*expanded, *rest)}
        return command

    return decorate
