"""Inductor's timing log: the JSON file that TORCHINDUCTOR_MM_LOGGING_FILE names.

A list of objects (one object in older versions), each with one key `(M, K, N)` whose value lists the choices of one
autotuning run: `{"type": "cublas" or "triton", "time": milliseconds, "BLOCK_M": ...}`, or null for another kind of
choice. Newer versions add the op, as `kernel_type`; torch 2.11 does not. An object `{"invoke": "(M, K, N)"}` marks
where a run begins, or where an earlier one is reused. The log contains neither dtypes nor layouts nor the device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange.content import Content, Tally
from gemmdb.exchange.foreign import races
from gemmdb.exchange.foreign.races import Choice, Given, Source
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.table import schema
from gemmdb.table.measurement import Measurement

KIND = "inductor-log"
OPS = ("mm", "addmm", "int_mm")
_KEY = re.compile(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)")
_SYMBOLIC = re.compile(r"\([\w +*/()-]{1,200}, [\w +*/()-]{1,200}, [\w +*/()-]{1,200}\)")
_NO_RACE = ("kernel_type", "invoke")
_TILE = {"BLOCK_M": "block_m", "BLOCK_N": "block_n", "BLOCK_K": "block_k", "num_warps": "warps", "num_stages": "stages"}
GROUP_M = 8
"""Not in the log. All of Inductor's own configs for NVIDIA GPUs use it."""


def read(path: Path, tally: Tally, given: Given) -> Content:
    """Read the rows of a log. `given` must specify device, dtype and CUDA. Raises InputError with file and line."""
    if given.dtype is None:
        raise InputError(f"--dtype is missing: {path} does not specify the operands' dtype")
    source = given.source(path, KIND, races.INDUCTOR)
    return Content(_rows(path, tally, given, source), [source.run])


def _rows(path: Path, tally: Tally, given: Given, source: Source) -> Iterator[Measurement]:
    found, cursor = races.document(path)
    for entry in found if isinstance(found, list) else [found]:
        if not isinstance(entry, dict):
            raise InputError(f"{path}: not an Inductor log: {entry!r:.60} is not an object")
        for key, choices in entry.items():
            if key in _NO_RACE:
                continue
            where = cursor.at(key)
            op = entry.get("kernel_type", given.op)
            if op is None:
                raise InputError(f"--op is missing: {where} does not name the op; pass it if the log has only one")
            if not isinstance(op, str):
                raise InputError(f"{where}: kernel_type must be a string, got {op!r:.60}")
            if not isinstance(choices, list) or len(choices) > schema.MOST_MEASUREMENTS:
                raise InputError(f"{where}: not an Inductor log: {key[:60]!r} has no list of choices, or too many")
            problem, place = _problem(where, key, op, given), f"{where} {op[:40]} {key[:60]}"
            if isinstance(problem, Rejected):
                tally.leave(problem.reason, place, len(choices))
            else:
                yield from races.rows(source, problem, _choices(where, choices, place), tally, place)


def _problem(where: str, key: str, op: str, given: Given) -> Problem | Rejected:
    sizes = _KEY.fullmatch(key)
    if not sizes and not _SYMBOLIC.fullmatch(key):
        raise InputError(f"{where}: {key[:60]!r} is not (M, K, N)")
    if not sizes:
        return Rejected("a size is symbolic")
    if op not in OPS:
        return Rejected(f"the log does not describe the GEMM {op[:40]}")
    m, k, n = map(int, sizes.groups())
    try:
        return Problem.gemm(op, m=m, n=n, k=k, dtype=given.dtype, layout=given.layout or "nt")
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _choices(where: str, choices: list[Any], place: str) -> list[Choice]:
    """Return the choices of one autotuning run. Two choices with the same tile come from different templates, and the
    log does not show which."""
    described = [_described(where, choice) for choice in choices]
    uses = Counter(tile for _, tile in described)
    found = []
    for us, tile in described:
        config: Config | Rejected = ATEN
        if tile is None:
            config = Rejected("the log does not describe the choice (null)")
        elif tile and uses[tile] > 1:
            config = Rejected("several templates have this tile, and the log does not distinguish them")
        elif tile:
            values = dict(zip(_TILE.values(), tile, strict=True))
            config = races.template_config("inductor_mm", group_m=GROUP_M, **values)
        found.append(Choice(config, us, f"{place} {tile}" if tile and uses[tile] == 1 else place))
    return found


def _described(where: str, choice: Any) -> tuple[float, tuple[int, ...] | None]:
    """Return the microseconds and tile of a choice: an empty tile for ATen, None for a choice that the log does not
    describe."""
    if choice is None:
        return 0.0, None
    if not isinstance(choice, dict) or choice.get("type") not in ("cublas", "triton"):
        raise InputError(f"{where}: not an Inductor choice: {choice!r:.60}")
    us = races.microseconds(choice.get("time"), where)
    if choice["type"] == "cublas":
        return us, ()
    tile = tuple(choice.get(name) for name in _TILE)
    if not all(type(value) is int for value in tile):
        raise InputError(f"{where}: {', '.join(_TILE)} must be integers, got {tile!r:.80}")
    return us, tuple(int(value) for value in tile if value is not None)
