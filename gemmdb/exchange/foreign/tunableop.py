"""TunableOp's results: the CSV file of PYTORCH_TUNABLEOP_FILENAME.

A line `GemmTunableOp_BFloat16_TN,tn_N_M_K_ld_LDB_LDA_LDC,SOLUTION,MILLISECONDS` contains the time of a BLAS library's
best solution; its sizes are those of the transposed GEMM. Older versions omit the leading dimensions, and newer ones
may add the library's own description of the call. `Default` is the kernel that ATen uses without TunableOp, so its time
is evidence about ATen. The other solutions run only with TunableOp and its file. They are no evidence about ATen's time
without it, and gemmdb has no such kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.exchange import bounded
from gemmdb.exchange.content import Content, Tally
from gemmdb.exchange.foreign import races
from gemmdb.exchange.foreign.races import Choice, Given, Source
from gemmdb.kernels.config import ATEN
from gemmdb.key.operands import TensorInfo, default_numerics, dense_bias
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement, Protocol

KIND = "tunableop"
DTYPES = {"BFloat16": "bf16", "Half": "fp16", "float": "fp32", "tf32": "fp32", "double": "fp64"}
PROTOCOL = Protocol("graph", "hot", 1, 1, reference="tunableop")
"""Mean over back-to-back calls."""
_UNSAID = {"GemmStridedBatched": "the batch stride", "ScaledGemm": "whether fast accumulation is allowed"}
_OPERATOR = re.compile(r"(Gemm|GemmAndBias|GemmStridedBatched|ScaledGemm)TunableOp_([\w:<>]{1,80})_([NT])([NT])")
_OTHER = re.compile(r"\w{1,60}TunableOp_[\w:<>]{1,120}")
_PARAMETERS = re.compile(r"[nt]{2}_(\d{1,10})_(\d{1,10})_(\d{1,10})(?:_ld_(\d{1,10})_(\d{1,10})_(\d{1,10}))?")
_AMD = ("GCN_ARCH_NAME", "ROCM_VERSION", "HIPBLASLT_VERSION", "ROCBLAS_VERSION")
"""Validators that only torch's build for AMD GPUs writes."""
_MAX_CELLS = 60
_WORDS = re.compile(r"[\w.:<>+\-]{1,200}")


def read(path: Path, tally: Tally, given: Given) -> Content:
    """Read the rows of a file. `given` must specify the device and CUDA. Raises InputError with file and line, and for
    a file of an AMD GPU or without results."""
    known = dict(_validators(path))
    if amd := next((f"{name} {known[name]}" for name in _AMD if name in known), ""):
        raise InputError(f"{path} was measured on an AMD GPU ({amd}); gemmdb knows NVIDIA GPUs and CPUs only")
    if known and not any(cells.strip() and not cells.startswith("Validator,") for _, cells in bounded.lines(path)):
        raise InputError(
            f"{path} has no results, only what they are valid for: run the program with PYTORCH_TUNABLEOP_ENABLED=1 and"
            " PYTORCH_TUNABLEOP_TUNING=1 until it ends by itself, when they are written"
        )
    source = given.source(path, KIND, PROTOCOL, torch=known.get("PT_VERSION", ""))
    return Content(_rows(path, tally, source), [source.run])


def _validators(path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and versions of the software that the file applies to."""
    for number, line in bounded.lines(path):
        word, _, rest = line.strip().partition(",")
        if word == "Validator":
            name, _, value = rest.partition(",")
            if not _WORDS.fullmatch(name) or len(value) > 80:
                raise InputError(f"{path}:{number}: malformed validator")
            yield name, value


def _rows(path: Path, tally: Tally, source: Source) -> Iterator[Measurement]:
    for number, line in bounded.lines(path):
        where, cells = f"{path}:{number}", line.strip().split(",")
        if cells[0] == "Validator" or cells == [""]:
            continue
        unknown = cells[4:] and not cells[4].lstrip().startswith("- {")
        if unknown or not 3 <= len(cells) <= _MAX_CELLS or not all(map(_WORDS.fullmatch, cells[:3])):
            raise InputError(f"{where}: not a TunableOp result line: {line.strip()[:80]!r}")
        try:
            us = _microseconds(cells[3], where) if cells[3:] else None
            problem = _problem(cells[0], cells[1])
        except InputError as error:
            raise error if str(error).startswith(where) else InputError(f"{where}: {error}") from error
        if isinstance(problem, Rejected):
            tally.leave(problem.reason, where)
        elif cells[2] != "Default":
            reason = "a library's algorithm that only TunableOp chooses; it is no evidence about ATen without TunableOp"
            tally.leave(reason, f"{where} {cells[2]}")
        elif us is None:
            tally.leave("the line has no time", where)
        else:
            yield from races.rows(source, problem, [Choice(ATEN, us)], tally, where)


def _microseconds(cell: str, where: str) -> float | None:
    """Return a time in microseconds; None if the cell has none. Raises InputError."""
    if cell.strip().lower() in ("", "nan", "inf", "-nan"):
        return None
    return races.microseconds(bounded.number(cell, float), where)


def _problem(operator: str, parameters: str) -> Problem | Rejected:
    found = _OPERATOR.fullmatch(operator)
    if found is None and _OTHER.fullmatch(operator) and not operator.startswith("GemmTunableOp_"):
        return Rejected("gemmdb does not know this operator of TunableOp")
    if found is None:
        raise InputError(f"unknown operator {operator[:80]!r}")
    kind, dtype, first, second = found.groups()
    if kind in _UNSAID:
        return Rejected(f"a {kind} line does not contain {_UNSAID[kind]}")
    if dtype not in DTYPES:
        return Rejected(f"GEMMs of {dtype} have no key")
    sizes = _PARAMETERS.fullmatch(parameters)
    if sizes is None:
        raise InputError(f"not GEMM sizes: {parameters[:80]!r}")
    # The library computes B^T A^T, the transpose of a row-major C.
    n, m, k = map(int, sizes.groups()[:3])
    dense = (k if first == "T" else n, m if second == "T" else k, n)
    ldb, lda, ldc = dense if sizes[4] is None else map(int, sizes.groups()[3:])
    if ldc != n:
        return Rejected("the output has gaps between its rows")
    name = DTYPES[dtype]
    a = TensorInfo(name, (m, k), (1, lda) if second == "T" else (lda, 1))
    b = TensorInfo(name, (k, n), (1, ldb) if first == "T" else (ldb, 1))
    bias = {} if kind == "Gemm" else {"bias": dense_bias("1d", m, n, name)}
    numerics = default_numerics(name, tf32=dtype == "tf32")
    return Problem.from_tensors("addmm" if bias else "mm", a, b, numerics=numerics, **bias)
