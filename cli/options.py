"""Options shared by several commands, and PROBLEM: a text printed by gemmdb, or a line of a workload.

A command with many options takes one dataclass whose fields are the options.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from gemmdb.errors import InputError, choices
from gemmdb.key import epilogue
from gemmdb.key.device import Device
from gemmdb.key.ops import OPS
from gemmdb.key.problem import L2_STATES, Problem, Query
from gemmdb.table.catalog import Catalog
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry

JsonFlag = Annotated[bool, Option("--json", help="Print a single JSON document on stdout.")]
WideFlag = Annotated[
    bool, Option("--wide", help="Full texts, as `gemmdb lookup` accepts them; on a terminal also all rows and columns.")
]
ConfirmFlag = Annotated[
    bool,
    Option(
        "--confirm",
        help="Look up as GPU compiles do by default: for a problem that no table has measured, a compile may benchmark"
        " a kernel against ATen first.",
    ),
]
InvariantFlag = Annotated[
    bool,
    Option("--batch-invariant", help="Look up as compiles do whose rows must not depend on the number of rows."),
]
QUERY_FIELDS = ("text", "device", "arch", "l2")
"""Fields of ProblemOptions that are not arguments of `Problem.gemm`."""


@dataclass(frozen=True)
class ProblemOptions:
    """PROBLEM and the flags of `gemmdb lookup` and `gemmdb explain`."""

    text: list[str] | None = Argument(
        None,
        metavar="PROBLEM",
        help="A problem as gemmdb prints it, or WORKLOAD.jsonl:LINE. Only --device, --arch and --l2 may be added."
        " Without it, --op, --m, --n and --k are required.",
        show_default=False,
    )
    op: str | None = Option(None, help="mm, addmm, int_mm, mixed_mm, bmm, scaled_mm (fp8) or grouped_mm (experts).")
    m: int | None = Option(None, help="Rows of the activation.")
    n: int | None = Option(None, help="Columns of the weight.")
    k: int | None = Option(None, help="The inner size: columns of the activation, rows of the weight.")
    dtype: str | None = Option(
        None,
        help="Dtype of the activation: fp32, fp16, bf16 or int8; fp8_e4m3 or fp8_e5m2 for scaled_mm, fp8_e4m3 for"
        " grouped_mm; or torch's name, bfloat16 [default: bf16; int8 for int_mm, fp8_e4m3 for scaled_mm].",
    )
    layout: str = Option(
        "nt", help="How A and B are stored, row-major: n as it is, t transposed. nt: B is an [N, K] weight."
    )
    weight_dtype: str | None = Option(
        None,
        help="Dtype of the weight: int8, uint8, int4 or fp4_e2m1 for mixed_mm [default: int8]; for scaled_mm [default:"
        " as --dtype].",
    )
    bias: str | None = Option(None, help="none, 1d, full or column [default: 1d for addmm, else none].")
    tf32: bool = Option(False, "--tf32", help="Allow TF32 for fp32 inputs.")
    out_dtype: str | None = Option(
        None,
        help="Dtype of the output [default: that of the activation; int32 for int_mm; bf16 for a scaled int_mm and for"
        " fp8].",
    )
    fusion: str = Option(
        "none",
        help="What is fused into the kernel: none, scale, pointwise (such as relu), pointwise:math (such as gelu or"
        f" silu); all classes: {epilogue.GRAMMAR}.",
    )
    constant_weight: bool = Option(
        False, "--constant-weight", help="The weight is a constant (freezing) and can be packed."
    )
    l2: str = Option("cold", help="State of the last-level cache before each call: cold or hot.")
    device: str | None = Option(None, help="The name of a device, for example 'NVIDIA H200' [default: this machine].")
    arch: str | None = Option(None, help="The arch of a device, instead of --device: cpu, sm80, sm90, ...")
    batch: int = Option(1, help="Number of matrices in the batch, for bmm only.")
    interleaved: str = Option(
        "",
        help="For bmm only: a, b or ab, the operands whose matrices lie side by side, as heads do in [tokens, heads,"
        " size].",
    )
    scales: str | None = Option(
        None,
        help="For fp8 only: tensor (one scale per operand), row (one per row of A and per column of B, for grouped_mm"
        " always) or block (1x128 of A by 128x128 of B) [default: tensor; row for grouped_mm].",
    )
    fast_accum: bool = Option(False, "--fast-accum", help="For fp8 only: use_fast_accum, which sums with fewer bits.")
    groups: int | None = Option(None, help="For grouped_mm only: number of groups, such as experts [default: 8].")
    ragged: str | None = Option(
        None,
        help="For grouped_mm only: which size the groups divide, m (the rows of each expert) or k (the gradient of its"
        " weight) [default: m].",
    )
    group: int | None = Option(
        None, help="For mixed_mm only: how many weights share a scale, 32, 64, 128 or 256 [default: 128 for int4]."
    )
    zeros: str | None = Option(
        None,
        help="For weights with groups only: the dtype of the zero points, none, uint8, int8, that of the activation, or"
        " compressed-tensors' in words, int4 for low-first and uint8x4 for byte [default: none; bf16 for tinygemm"
        " packings and plain, and int4 for gptq and awq, which always have them].",
    )
    packing: str | None = Option(
        None,
        help="For weights with groups only: byte or byte-fp32 (by the dtype of the scales) for int8 and uint8,"
        " mxfp4 for fp4_e2m1; for int4 tinygemm8, tinygemm4 or tinygemm2 (aten._weight_int4pack_mm by its inner tiles),"
        " low-first or high-first (two in a byte), plain (torchao's default), gptq or gptq2 (GPTQ's first and second"
        " format), awq"
        " [default: tinygemm8 for bf16, else low-first].",
    )

    def query(self, catalog: Catalog) -> Query:
        """Return the query for the named device, else for the one that the workload was recorded on. Raises
        InputError."""
        name = device_name(self.device, self.arch)
        if self.l2 not in L2_STATES:
            raise InputError(f"unknown l2 state {self.l2!r}; {choices(self.l2, L2_STATES)}")
        entry = self._pasted(self.text) if self.text else Entry(self._from_flags())
        recorded = Device.parse(entry.device) if entry.device and name is None else None
        return replace(entry.query(recorded or catalog.resolve(name)), l2=self.l2)

    def _pasted(self, words: list[str]) -> Entry:
        for field in fields(self):
            declared: Any = field.default  # An Option, which contains the default value.
            if field.name not in QUERY_FIELDS and getattr(self, field.name) != declared.default:
                flag = f"--{field.name.replace('_', '-')}"
                raise InputError(f"{flag} and PROBLEM exclude each other: PROBLEM sets all but the device and --l2")
        found = read_problem(words)
        _reject_empty(found.problem, "{}={}")
        return found

    def _from_flags(self) -> Problem:
        for flag, value in (("--op", self.op), ("--m", self.m), ("--n", self.n), ("--k", self.k)):
            if value is None:
                raise InputError(f"{flag} is missing: name --op, --m, --n and --k, or a PROBLEM as gemmdb prints it")
        flags: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in QUERY_FIELDS
        }
        problem = Problem.gemm(**flags)
        if self.weight_dtype is not None and not problem.spec.b:
            named = f"--weight-dtype is for {' and '.join(op.name for op in OPS.values() if len(op.b) > 1)} only"
            raise InputError(f"{named}; both operands of {self.op} have the same dtype")
        _reject_empty(problem, "--{} {}")
        return problem


def device_name(device: str | None, arch: str | None) -> str | None:
    """Return the name that --device or --arch gives; None without one. Raises InputError for both, or for no name."""
    if device is not None and arch is not None:
        raise InputError("--device and --arch exclude each other: both name the device")
    for flag, name in (("--device", device), ("--arch", arch)):
        if name == "":  # Probably an unset variable in a script. It does not mean this machine.
            raise InputError(f"{flag} is empty: name a device, or leave {flag} out for this machine")
    return device or arch


def _reject_empty(problem: Problem, spelled: str) -> None:
    for name in ("batch", "m", "n", "k", *(["groups"] if problem.spec.grouped else [])):
        if getattr(problem, name) == 0:
            raise InputError(f"{spelled.format(name, 0)}: there is nothing to compute; name a size of at least 1")


_LINE = re.compile(r"(?P<path>[^\0]+):(?P<number>[1-9]\d{0,17})")
_RANGE = r"[mnk] \d{1,10}\.\.(?:\d{1,10})?"
_RANGED = re.compile(rf"(?P<text>.*\S) ?\((?P<ranges>{_RANGE}(?:, {_RANGE})*)\)")
_SHORT = re.compile(r"\w+ (?:\d+ of )?\d+x\d+x\d+ ")


def read_problem(words: Sequence[str]) -> Entry:
    """Parse the words of PROBLEM into a problem, with its device and ranges if given.

    The words are the canonical text of a problem, with ranges as `names.ranged` formats them; a JSON line of a
    workload; or FILE:LINE, a line of a workload. Raises InputError.
    """
    text = " ".join(" ".join(words).split())
    if text.startswith("{"):
        return entries.entry(entries.as_object(text, "PROBLEM"), "PROBLEM")
    place = _LINE.fullmatch(text)
    if place is not None and ("=" not in text or os.path.isfile(place["path"])):  # noqa: PTH113 - as below
        return _line(Path(place["path"]), int(place["number"]))
    text = text.strip("`'\";,. ").removeprefix("problem ").strip()  # Strip what surrounds it in messages.
    found = _RANGED.fullmatch(text)
    ranges = []
    for item in found["ranges"].split(", ") if found else ():
        name, low, high = re.split(r" |\.\.", item)
        ranges.append((name, int(low), int(high) if high else None))
    try:
        return Entry(Problem.parse(found["text"] if found else text), ranges=tuple(sorted(ranges)))
    except InputError as error:
        raise InputError(_not_a_problem(text, error)) from error


def _line(path: Path, number: int) -> Entry:
    last = ""
    for where, text in entries.lines(path):
        if where != f"{path}:{number}":
            last = where
            continue
        item = entries.as_object(text, where)
        if isinstance(item.get("uncovered"), str):
            raise InputError(f"{where}: gemmdb does not support {item['uncovered'][:80]}, so no table has it")
        return entries.entry(item, where)
    end = f"its last line is {last}" if last else "it holds no lines"
    raise InputError(f"{path}:{number}: there is no such line, or it is empty; {end}")


def _not_a_problem(text: str, error: InputError) -> str:
    if "=" in text:
        return f"{error}; paste all of the text, from the op to the last field"
    if os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a long name
        return f"{text} is a file: name a line of it, {text}:1"
    if _SHORT.match(text):
        full = "paste the whole text, as --wide prints it, or name WORKLOAD.jsonl:LINE"
        return f"{text[:80]!r} is a short name that omits fields: {full}"
    return f"not a problem: {text[:80]!r}; paste one as `gemmdb explain` prints it, or name WORKLOAD.jsonl:LINE"


def takes(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose first parameter is the dataclass `options`: each field becomes an option."""
    hints = get_type_hints(options, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    expanded = [inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(options)]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            function(options(**{field.name: values.pop(field.name) for field in fields(options)}), **values)

        rest = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [*expanded, *(parameter.replace(kind=kind) for parameter in rest)]
        # Typer reads the parameters from these two.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def require(package: str, what: str, install: str = "torch 'gemmdb[build]'") -> None:
    """Raise InputError if a package is not installed. `what` needs it; `install`: the arguments for pip install."""
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{what} needs {package}, which is not installed: pip install {install}")
