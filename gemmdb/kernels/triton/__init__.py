"""Our own Triton kernels as jinja2 templates, one source for the generator and for Inductor.

A template is written against the hooks that Inductor gives a TritonTemplate (`def_kernel`, `size`, `stride`,
`store_output`) and reads its parameters as names, so that it renders as a kernel of its own and as a choice whose
epilogue Inductor fuses. The standard library suffices to read a template; rendering takes jinja2.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from gemmdb.kernels.config import Config
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

TEMPLATES = ("tile", "gemv", "persistent", "narrow")
TL = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8", "uint8": "uint8", "int32": "int32",
      "fp8_e4m3": "float8e4nv", "fp8_e5m2": "float8e5"}  # fmt: skip
"""Triton's name of each dtype."""
_LAUNCH = ("warps", "stages")


@functools.cache
def source(name: str) -> str:
    """The jinja2 source of the template of that name, one of TEMPLATES."""
    return _read("dequant") + _read(name)


@functools.cache
def digest(name: str) -> str:
    """16 hexadecimal digits that change with the template's source: rows of it hold while they stay the same."""
    return hashlib.sha256(source(name).encode()).hexdigest()[:16]


EQUIVALENT = {
    "079aeed31ef3a5a2": "b8961afbe98e678a",
    "d207994d8700ded2": "078daff6141357c6",
    "f1cfe0fb8fcf5453": "012c2e9c955b0691",
    "3799dccb4110a658": "1d94976414df7a58",
}
"""Former digests and the later one that the same kernels are rendered from, so that rows of the former hold on. The
templates were respelled to take expressions instead of Python values: for all 7,369 problems and configs of the
shipped H200 table, both rendered the same code, launch and compile options, up to constants that no line of it read.
`gemv` and `narrow` were respelled once more to take fp8: of all 14,049 problems and configs of theirs in that table,
both render the same, to the letter."""


def is_current(kernel: str, source: str) -> bool:
    """Whether a row whose toolchain says `source` was measured with the kernel as it is rendered now. Rows that name no
    source, and kernels without a template, always were."""
    if not source or kernel not in TEMPLATES:
        return True
    while source in EQUIVALENT:
        source = EQUIVALENT[source]
    return source == digest(kernel)


def names(config: Config, problem: Problem) -> dict[str, int | str]:
    """The parameters that the template of `config` reads, for `problem`.

    Every value is written as it stands into the kernel (`NAME: tl.constexpr = value`), as Inductor does it, so a value
    is a number, a truth value or a Triton expression. What depends on sizes is recomputed here for the problem at hand:
    a copied EVEN_K would be a wrong result.
    """
    value = config.values
    found: dict[str, int | str] = {
        name.upper(): number for name, number in value.items() if isinstance(number, int) and name not in _LAUNCH
    }
    found |= {
        "MIXED": problem.op == "mixed_mm",
        "INTEGER": problem.op == "int_mm",
        "A_ROW": row_major(problem.a),
        "B_ROW": row_major(problem.b),
        "A_DTYPE": f"tl.{TL[problem.a.dtype]}",
        "B_SIGNED": problem.b.dtype != "uint8",
        "BITS": value["dequant"] == "bits",
        "EVEN_K": problem.k % int(value["block_k"]) == 0,
    }
    scaled = problem.op == "mixed_mm" and problem.fusion == "scale"
    if config.kernel == "gemv":
        rows = 1 << (problem.m - 1).bit_length()
        return found | {"ROWS": rows, "STAGES": value["stages"], "SCALED": scaled}
    found |= {"SWAP": value["swap"] == 1, "TF32": problem.numerics.fp32 == "tf32"}
    if config.kernel == "persistent":
        return found
    # M is stepped along in memory only where A is transposed; elsewhere one kernel serves every M.
    found |= {"M_EVEN": not row_major(problem.a) and problem.m % 16 == 0, "N_EVEN": problem.n % 16 == 0}
    if config.kernel == "narrow":
        return found | {"SCALED": scaled, "STAGGER": value["stagger"] == 1, "MASK": value["rows"] == "mask"}
    return found | {"TMA": value["load"] == "tma", "FIXUP": value["reduce"] == "fixup"}


def row_major(operand: Operand) -> bool:
    """Whether the last dimension of an operand is the one along memory."""
    return operand.layout.order.startswith("row")


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.py.jinja").read_text()
