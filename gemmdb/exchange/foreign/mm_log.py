"""Inductor's log of timings: the JSON file that TORCHINDUCTOR_MM_LOGGING_FILE names.

A list of objects (one object in older versions), each with one key `(M, K, N)` whose value lists the choices of one
race: `{"type": "cublas" or "triton", "time": milliseconds, "BLOCK_M": ...}`, or null for a choice of another kind.
Newer versions say the op beside it, as `kernel_type`; torch 2.11 does not. An object `{"invoke": "(M, K, N)"}` stands
where a race begins, or where an earlier one answers. The log says neither dtypes nor layouts nor the device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.exchange import files
from gemmdb.exchange.foreign.given import INDUCTOR, Cursor, Given, Source, Timed, microseconds, race, run_of
from gemmdb.exchange.importing import Content
from gemmdb.exchange.report import Tally
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table import schema
from gemmdb.table.measurement import Measurement

KIND = "inductor-log"
OPS = ("mm", "addmm", "int_mm")
_KEY = re.compile(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)")
_SYMBOLIC = re.compile(r"\([\w +*/()-]{1,200}, [\w +*/()-]{1,200}, [\w +*/()-]{1,200}\)")
_BESIDE = ("kernel_type", "invoke")
"""Keys that are no race."""
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
GROUP_M = 8
"""Not in the log. Inductor's own configs for NVIDIA GPUs all have it."""


def read(path: Path, tally: Tally, given: Given) -> Content:
    """The rows of a log. `given` must say device, dtype and CUDA. Raises InputError with file and line."""
    if given.dtype is None:
        raise InputError(f"--dtype is missing: {path} does not say of which dtype the operands were")
    device = given.device_for(path)
    run = run_of(path, KIND, given)
    source = Source(device, given.toolchain(path, device), INDUCTOR, run["run"])
    return Content(_rows(path, tally, given, source), [run])


def _rows(path: Path, tally: Tally, given: Given, source: Source) -> Iterator[Measurement]:
    text = files.whole(path)
    document = files.parse_json(text, path)
    cursor = Cursor(path, text)
    for entry in document if isinstance(document, list) else [document]:
        if not isinstance(entry, dict):
            raise InputError(f"{path}: not a log of Inductor: {entry!r:.60} is no object")
        for key, choices in entry.items():
            if key not in _BESIDE:
                where = cursor.at(key)
                yield from _race(where, key, choices, _op(where, entry, given), tally, given, source)


def _op(where: str, entry: dict[str, Any], given: Given) -> str:
    """The op of a race. Raises InputError if neither the log nor the caller says it."""
    op = entry.get("kernel_type", given.op)
    if op is None:
        raise InputError(f"--op is missing: {where} does not say the op; name it if the whole log is of one")
    if not isinstance(op, str):
        raise InputError(f"{where}: kernel_type must be a text, got {op!r:.60}")
    return op


def _race(
    where: str, key: str, choices: Any, op: str, tally: Tally, given: Given, source: Source
) -> Iterator[Measurement]:
    if not isinstance(choices, list) or len(choices) > schema.MOST_MEASUREMENTS:
        raise InputError(f"{where}: not a log of Inductor: {key[:60]!r} has no list of choices, or too many")
    name = f"{where} {op[:40]} {key[:60]}"
    if not (sizes := _KEY.fullmatch(key)):
        if not _SYMBOLIC.fullmatch(key):
            raise InputError(f"{where}: {key[:60]!r} is not (M, K, N)")
        return tally.leave("a size is symbolic", name, len(choices))
    if op not in OPS:
        return tally.leave(f"the log does not describe a product of {op[:40]}", name, len(choices))
    m, k, n = map(int, sizes.groups())
    problem = _problem(where, op, (m, n, k), given)
    described = [_choice(where, choice) for choice in choices]
    aten = [us for kind, us, _ in described if kind == "cublas" and us != float("inf")]
    if not aten:
        return tally.leave("ATen has no time in the race, so no time can be compared with it", name, len(choices))
    found = _timed(described, name, tally)
    best = min(us for _, us, _ in described)
    # A choice that the log does not describe may have been the fastest.
    whole = None not in choices and best in (min(aten), *(one.us for one in found))
    yield from race(source, problem, min(aten), found, whole)
    return None


def _problem(where: str, op: str, sizes: tuple[int, int, int], given: Given) -> Problem:
    m, n, k = sizes
    try:
        return Problem.gemm(op, m=m, n=n, k=k, dtype=given.dtype, layout=given.layout or "nt")
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _choice(where: str, choice: Any) -> tuple[str, float, tuple[int, ...]]:
    """Kind, microseconds and tile of a choice; the tile is empty for ATen, and the kind for a choice without one."""
    if choice is None:
        return "", float("inf"), ()
    if not isinstance(choice, dict) or choice.get("type") not in ("cublas", "triton"):
        raise InputError(f"{where}: not a choice of Inductor: {choice!r:.60}")
    us = microseconds(choice.get("time"), where)
    if choice["type"] == "cublas":
        return "cublas", us, ()
    tile = tuple(choice.get(name) for name in _TILE)
    if not all(type(value) is int for value in tile):
        raise InputError(f"{where}: {', '.join(_TILE)} must be integers, got {tile!r:.80}")
    return "triton", us, tuple(int(value) for value in tile if value is not None)


def _timed(described: list[tuple[str, float, tuple[int, ...]]], name: str, tally: Tally) -> list[Timed]:
    """The Triton choices as configs. Two with one tile are of different templates, and the log does not say which."""
    tiles = Counter(tile for kind, _, tile in described if kind == "triton")
    found = []
    for kind, us, tile in described:
        if kind == "":
            tally.leave("the log does not describe the choice (null)", name)
        elif kind == "triton" and tiles[tile] > 1:
            tally.leave("several templates have this tile, and the log does not say which is which", name)
        elif kind == "triton":
            block_m, block_n, block_k, warps, stages = tile
            try:
                config = Config.of(
                    "triton", "inductor_mm", block_m=block_m, block_n=block_n, block_k=block_k, group_m=GROUP_M,
                    warps=warps, stages=stages,
                )  # fmt: skip
            except InputError:
                tally.leave("the tile is outside what gemmdb takes", f"{name} {tile}")
                continue
            found.append(Timed(config, us))
    return found
