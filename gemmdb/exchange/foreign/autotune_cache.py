"""Inductor's local autotune cache: the JSON file `cache/<hash>` in the TORCHINDUCTOR_CACHE_DIR folder.

`{"system": {...}, "cache": {op: {inputs: {precision: {choice: milliseconds}}}}}`. The inputs contain dtypes, sizes,
strides and offsets. A Triton template choice is named by the digest of its code, which Inductor keeps in the same
folder: its constants are read from that code, as text. Other kinds of choices, and those whose code is gone, are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange.content import Content, Tally
from gemmdb.exchange.foreign import races
from gemmdb.exchange.foreign.races import Choice, Given, Source
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.layout import ALIASES, classify
from gemmdb.key.operands import Bias, TensorInfo, default_numerics
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.table import schema
from gemmdb.table.measurement import Measurement

KIND = "inductor-cache"
OPS = ("mm", "addmm", "bmm", "int_mm")
_TENSOR = re.compile(r"\('(cpu|cuda)', 'torch\.(\w{1,20})'((?:, \d{1,12}){1,13})\)")
_INPUTS = re.compile(rf"\[{_TENSOR.pattern}(?:, {_TENSOR.pattern})*\](_\d{{1,12}})?")
_ATEN = re.compile(r"(?:mm|addmm|bias_addmm|bmm|_int_mm)(?:-(?:alpha|beta)=1(?:\.0)?)*-\w{20,100}")
_TRITON = re.compile(r"(?:triton_)?(mm|mm_persistent_tma|bmm)-(\w{20,100})")
_KERNELS = {"mm": "inductor_mm", "mm_persistent_tma": "inductor_persistent_tma", "bmm": "inductor_bmm"}
_CONSTANT = re.compile(r"^[ \t]*(BLOCK_M|BLOCK_N|BLOCK_K|GROUP_M) : tl\.constexpr = (\d{1,6})[ \t]*$", re.MULTILINE)
_LAUNCH = re.compile(r"^[ \t]*num_(stages|warps)=(\d{1,4}),[ \t]*$", re.MULTILINE)
_MAX_CODE_BYTES = 2**20
PRECISIONS = {"cuda": {"highest": False, "high": True, "medium": True}, "cpu": {"highest": False}}
"""Whether fp32 GEMMs run in TF32, by device and torch's float32_matmul_precision."""


def read(path: Path, tally: Tally, given: Given) -> Content:
    """Read the rows of a cache. Raises InputError with file and line."""
    found, cursor = races.document(path)
    if not isinstance(found, dict) or not isinstance(found.get("cache"), dict):
        raise InputError(f"{path}:1: not Inductor's autotune cache: it has no `cache` object")
    system = found.get("system")
    named, cuda = _word(system, "device", "name"), _word(system, "version", "cuda") or ""
    source = given.source(path, KIND, races.INDUCTOR, named, cuda=cuda)
    return Content(_rows(path.parent.parent, cursor, found["cache"], tally, source), [source.run])


def _rows(
    folder: Path, cursor: races.Cursor, cache: Mapping[str, Any], tally: Tally, source: Source
) -> Iterator[Measurement]:
    for op, by_inputs in cache.items():
        where = cursor.at(op)
        for inputs, by_precision in _object(by_inputs, where).items():
            where = cursor.at(inputs)
            for precision, choices in _object(by_precision, where).items():
                found = _object(choices, where)
                if len(found) > schema.MOST_MEASUREMENTS:
                    raise InputError(f"{where}: more than {schema.MOST_MEASUREMENTS:,} choices")
                times = {choice: races.microseconds(time, where) for choice, time in found.items()}
                problem, place = _problem(where, op, inputs, precision, source), f"{where} {op[:40]}"
                if isinstance(problem, Rejected):
                    tally.leave(problem.reason, place, len(times))
                    continue
                timed = [Choice(_config(folder, name), us, f"{place} {name[:60]}") for name, us in times.items()]
                yield from races.rows(source, problem, timed, tally, place)


def _problem(where: str, op: str, inputs: str, precision: str, source: Source) -> Problem | Rejected:
    if not _INPUTS.fullmatch(inputs):
        raise InputError(f"{where}: not the inputs of a GEMM: {inputs[:80]!r}")
    if op not in OPS:
        return Rejected(f"the cache does not describe the GEMM {op[:40]}")
    found = [
        (kind, dtype, [int(x) for x in numbers.split(", ")[1:]]) for kind, dtype, numbers in _TENSOR.findall(inputs)
    ]
    if {kind for kind, *_ in found} != {source.device.kind}:
        return Rejected("it was measured on another kind of device")
    if precision not in PRECISIONS[source.device.kind]:
        return Rejected(f"fp32 precision {precision[:20]!r} has no key on this device")
    if len(found) != (3 if op == "addmm" else 2) or any(len(numbers) % 2 == 0 for *_, numbers in found):
        return Rejected("the GEMM has inputs besides two operands and a bias")
    *first, a, b = (
        TensorInfo(ALIASES.get(dtype, dtype), tuple(dims[: len(dims) // 2]), tuple(dims[len(dims) // 2 :]), offset)
        for _, dtype, (*dims, offset) in found
    )
    tf32 = PRECISIONS[source.device.kind][precision] and a.dtype == "fp32"
    try:
        bias = {"bias": _bias(first[0], (*a.sizes[:-1], *b.sizes[1:]))} if first else {}
        return Problem.from_tensors(op, a, b, numerics=default_numerics(a.dtype, tf32), **bias)
    except InputError as error:
        return Rejected(f"the GEMM has no key ({str(error)[:100]})")


def _bias(tensor: TensorInfo, out: tuple[int, ...]) -> Bias:
    """Return the class of a bias, which Inductor may have expanded to [M, N]. Raises InputError."""
    m, n = out
    sizes, strides = tensor.sizes, tensor.strides
    if len(sizes) == 1:
        sizes, strides = (1, *sizes), (0, *strides)
    if len(sizes) != 2 or any(size not in (1, whole) for size, whole in zip(sizes, out, strict=True)):
        raise InputError(f"a bias of {list(tensor.sizes)} for an output of {[m, n]}")
    kind, shape, steps = "full", sizes, strides
    if sizes[0] == 1 or strides[0] == 0:
        kind, shape, steps = "1d", (1, sizes[1]), (sizes[1], strides[1])
    elif n != 1 and (sizes[1] == 1 or strides[1] == 0):
        kind, shape, steps = "column", (m, 1), (strides[0], 1)
    return Bias(kind, tensor.dtype, classify(shape, steps, tensor.offset, tensor.dtype).align)


def _config(folder: Path, choice: str) -> Config | Rejected:
    if _ATEN.fullmatch(choice):
        return ATEN
    found = _TRITON.fullmatch(choice)
    if found is None:
        return Rejected("a choice that is neither ATen nor a known template")
    template, digest = found.groups()
    try:
        with (folder / digest[1:3] / f"{digest}.py").open("rb") as file:
            code = file.read(_MAX_CODE_BYTES).decode("utf-8", "replace")
    except OSError:
        return Rejected("the choice's code is no longer in Inductor's cache folder, so its tile is unknown")
    values = {name.lower(): int(value) for name, value in _CONSTANT.findall(code)}
    values |= {name: int(value) for name, value in _LAUNCH.findall(code)}
    return races.template_config(_KERNELS[template], **values)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: not Inductor's autotune cache: {value!r:.60} is not an object")
    return value


def _word(system: Any, part: str, name: str) -> str | None:
    """Return a short text from the part `system`, or None if it is missing."""
    found = system.get(part) if isinstance(system, dict) else None
    word = found.get(name) if isinstance(found, dict) else None
    return word if isinstance(word, str) and 0 < len(word) <= 80 and word.isprintable() else None
