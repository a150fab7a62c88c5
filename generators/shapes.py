"""The problems of a build: from a preset, a shapes file, or a workload written by `gemmdb record`.

A shapes file is JSON (a list, or an object with a list `problems`) or JSONL. An item describes a problem by the
keywords of `Problem.gemm`, which are the flags of `gemmdb lookup`. Any of them may be a list, which stands for one
problem per value:

{"op": ["mm", "addmm"], "m": [1, 16], "n": 4096, "k": 4096, "dtype": "bf16", "constant_weight": true}

A bmm also has a `batch` and `interleaved`, fp8 `scales` and `fast_accum`, a grouped_mm `groups` and `ragged`,
an int4 weight `group`, `zeros` and `packing`. Sizes may also be given as `"a": [16, 4096], "b": [4096, 1024]`, the
operands as they are multiplied. A line of a workload is an item too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, choices
from gemmdb.key.layout import ITEM_SIZES, dtype_name, unknown_dtype
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem
from gemmdb.workload import entries

DEFAULTS = {"cpu": "cpu-quick", "cuda": "h200", "hip": "h200"}
"""Default preset by device kind."""
FLAGS = {
    "op": str, "batch": int, "m": int, "n": int, "k": int, "dtype": str, "layout": str, "weight_dtype": str,
    "bias": str, "tf32": bool, "out_dtype": str, "fusion": str, "constant_weight": bool, "scales": str,
    "fast_accum": bool, "interleaved": str, "groups": int, "ragged": str, "group": int, "zeros": str, "packing": str,
}  # fmt: skip
"""Keywords of an item and their types."""
_REMEDY = "; name a preset, a shapes file or a workload of `gemmdb record`"
LARGEST = 1_000_000
"""Most problems that one item may stand for."""


def presets() -> list[str]:
    """Return the names of the presets in the package."""
    folder = resources.files("gemmdb.generators") / "presets"
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))


def load(name: str | None, kind: str) -> list[Problem]:
    """Return the distinct problems of a preset or a file; None is the device kind's default preset.

    Raises InputError, with file and line, for an unknown preset, an unreadable file, or an invalid problem.
    """
    name = name or DEFAULTS[kind]
    if name in presets():
        path = resources.files("gemmdb.generators") / "presets" / f"{name}.json"
        return _unique(_document(path.read_text(encoding="utf-8"), name))
    if not Path(name).exists():
        raise InputError(f"no preset and no file is named {name!r}; presets: {', '.join(presets())}")
    numbered = list(entries.lines(Path(name)))
    if numbered and numbered[0][1].lstrip().startswith("["):
        return _unique(_document(Path(name).read_text(encoding="utf-8"), name))
    try:
        whole = json.loads("\n".join(line for _, line in numbered) or "null")
    except (ValueError, RecursionError):
        return _unique((where, entries.as_object(line, where, _REMEDY)) for where, line in numbered)
    if isinstance(whole, dict) and "problems" in whole:
        return _unique(_document(Path(name).read_text(encoding="utf-8"), name))
    if whole is None:
        raise InputError(f"{name} contains no problems: gemmdb record --out {name} -- COMMAND... records some")
    return _unique([(numbered[0][0], whole)])


def select(problems: Sequence[Problem], ops: Sequence[str], dtypes: Sequence[str]) -> list[Problem]:
    """Return the problems with these ops and activation dtypes (torch's names also work); empty stands for all. Raises
    InputError for unknown names."""
    dtypes = [dtype_name(name) for name in dtypes]
    for name in ops:
        if name not in OPS:
            raise InputError(f"unknown op {name!r}; {choices(name, OPS)}")
    for name in dtypes:
        if name not in ITEM_SIZES:
            raise InputError(unknown_dtype(name))
    return [p for p in problems if (not ops or p.op in ops) and (not dtypes or p.a.dtype in dtypes)]


def nothing_left(verb: str, listed: Sequence[Problem], name: str | None) -> str:
    """Return the error message for `verb` when none of the problems `listed` in the preset or file `name` is left."""
    if not listed:
        return f"{name} contains no problems that gemmdb can {verb}, only unsupported GEMMs"
    return f"no problem is left to {verb}: --ops or --dtypes exclude all shapes"


def _document(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, item) of a JSON list, or of the list `problems` of a JSON object."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{name}:{line}: not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name}: not JSON: nested too deeply") from error
    items = whole.get("problems") if isinstance(whole, dict) else whole
    if not isinstance(items, list) or not items:
        raise InputError(f"{name}: a shapes file must contain a list of problems")
    begin = re.search(r'"problems"\s*:\s*\[', text) if isinstance(whole, dict) else re.search(r"\[", text)
    position, decoder = begin.end() if begin else 0, json.JSONDecoder()
    line, counted = 1, 0
    for _ in items:
        position = _skip(text, position)
        item, end = decoder.raw_decode(text, position)
        line, counted = line + text.count("\n", counted, position), position
        yield f"{name}:{line}", item
        position = _skip(text, end) + 1


def _skip(text: str, position: int) -> int:
    return next(at for at in range(position, len(text)) if not text[at].isspace())


def _unique(items: Iterable[tuple[str, Any]]) -> list[Problem]:
    found: dict[Problem, None] = {}
    for where, item in items:
        found.update(dict.fromkeys(_problems(item, where)))
    return list(found)


def _problems(item: Any, where: str) -> list[Problem]:
    if not isinstance(item, dict):
        raise InputError(f"{where}: a problem must be a JSON object, not {str(item)[:40]!r}")
    if isinstance(item.get("uncovered"), str):
        return []
    if "problem" in item:
        return [entries.entry(item, where).problem]
    rest = dict(item)
    sizes = _operand_sizes(rest, where)
    unknown = [name for name in rest if name not in FLAGS]
    if unknown or "op" not in rest:
        raise InputError(f"{where}: unknown field {unknown[0]!r}" if unknown else f'{where}: a problem has an "op"')
    choices = {name: value if isinstance(value, list) else [value] for name, value in (rest | sizes).items()}
    count = prod(len(values) for values in choices.values())
    if not 0 < count <= LARGEST:
        raise InputError(f"{where}: stands for {count} problems; from 1 to {LARGEST} are allowed")
    return [_problem(dict(zip(choices, values, strict=True)), where) for values in product(*choices.values())]


def _operand_sizes(item: dict[str, Any], where: str) -> dict[str, int]:
    """Remove `a` and `b` from the item. Returns the sizes m, n and k that they specify."""
    if "a" not in item and "b" not in item:
        return {}
    a, b = item.pop("a", None), item.pop("b", None)
    for sizes in (a, b):
        if not isinstance(sizes, list) or len(sizes) != 2 or any(type(size) is not int for size in sizes):
            raise InputError(f"{where}: a and b must be matrix sizes, [rows, columns]; got {sizes!r}")
    if a[1] != b[0]:
        raise InputError(f"{where}: K differs: a is {a} and b is {b}")
    said = {"m": a[0], "n": b[1], "k": a[1]}
    for name, size in said.items():
        if item.setdefault(name, size) != size:
            raise InputError(f"{where}: {name} is {item[name]!r}, but a is {a} and b is {b}")
    return said


def _problem(flags: dict[str, Any], where: str) -> Problem:
    for name, value in flags.items():
        if type(value) is not FLAGS[name]:
            raise InputError(f"{where}: {name} must be of type {FLAGS[name].__name__}, got {value!r}")
    missing = [name for name in ("m", "n", "k") if name not in flags]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing")
    try:
        return Problem.gemm(**flags)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
