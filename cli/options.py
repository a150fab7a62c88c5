"""Options that commands share, as dataclasses: a command takes one object instead of a parameter per option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from gemmdb.errors import InputError
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on stdout.")]


@dataclass(frozen=True)
class ProblemOptions:
    """The flags of `gemmdb lookup` and `gemmdb explain`: the keyword arguments of `Problem.gemm`."""

    op: Annotated[str, typer.Option(help="mm, addmm, int_mm, mixed_mm, bmm or scaled_mm (fp8).")]
    m: Annotated[int, typer.Option(help="Rows of the activation.")]
    n: Annotated[int, typer.Option(help="Columns of the weight.")]
    k: Annotated[int, typer.Option(help="The inner size.")]
    dtype: Annotated[
        str | None,
        typer.Option(
            help="The activation's: fp32, fp16, bf16 or int8; fp8_e4m3 or fp8_e5m2 for scaled_mm [default: bf16;"
            " int8 for int_mm, fp8_e4m3 for scaled_mm]."
        ),
    ] = None
    layout: Annotated[
        str,
        typer.Option(help="A then B, each as stored row-major: n as it is, t transposed. nt: B is an [N, K] weight."),
    ] = "nt"
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            help="The weight's, for mixed_mm, int8 or uint8 [default: int8], and scaled_mm [default: as --dtype]."
        ),
    ] = None
    bias: Annotated[str | None, typer.Option(help="none, 1d, full or column [default: 1d for addmm, else none].")] = (
        None
    )
    tf32: Annotated[bool, typer.Option("--tf32", help="fp32 inputs may be multiplied as TF32.")] = False
    out_dtype: Annotated[
        str | None,
        typer.Option(
            help="The output's [default: the activation's; int32 for int_mm, bf16 when it is scaled and for scaled_mm]."
        ),
    ] = None
    fusion: Annotated[str, typer.Option(help="What the kernel is fused with: none, scale or pointwise.")] = "none"
    constant_weight: Annotated[
        bool, typer.Option("--constant-weight", help="The weight is a constant (freezing), so it can be packed.")
    ] = False
    l2: Annotated[str, typer.Option(help="State of the last-level cache before each call: cold or hot.")] = "cold"
    device: Annotated[
        str | None, typer.Option(help="A device by its name, e.g. 'NVIDIA H200' [default: this machine].")
    ] = None
    arch: Annotated[str | None, typer.Option(help="A device by its arch instead: cpu, sm80, sm90, ...")] = None
    batch: Annotated[int, typer.Option(help="How many matrices are multiplied by as many, for bmm only.")] = 1
    scales: Annotated[
        str | None,
        typer.Option(
            help="For scaled_mm only: tensor, one number scales each operand, or row, one for each row of A and each"
            " column of B [default: tensor]."
        ),
    ] = None
    fast_accum: Annotated[
        bool, typer.Option("--fast-accum", help="For scaled_mm only: use_fast_accum, whose sums keep fewer bits.")
    ] = False

    def problem(self) -> Problem:
        """The Problem that the flags describe. Raises InputError."""
        if self.device is not None and self.arch is not None:
            raise InputError("--device and --arch exclude each other: both name the device")
        for flag, name in (("--device", self.device), ("--arch", self.arch)):
            if name == "":  # A variable of a script that is not set; it does not mean this machine.
                raise InputError(f"{flag} is empty: name a device, or leave {flag} out for this machine")
        problem = Problem.gemm(**{field.name: getattr(self, field.name) for field in fields(self)})
        if self.weight_dtype is not None and not problem.spec.b:
            named = f"--weight-dtype is for {' and '.join(op.name for op in OPS.values() if op.b)} only"
            raise InputError(f"{named}; both operands of {self.op} have the same dtype")
        return problem


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
        # Typer reads the parameters from here: a keyword-only function with the options spelled out.
        command.__signature__ = inspect.Signature([*expanded, *rest])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*expanded, *rest)}
        return command

    return decorate
