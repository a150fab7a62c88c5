"""The data of a comparison's report: a program's time with and without gemmdb, product by product."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem

MOST_US = 1e12


@dataclass(frozen=True, slots=True)
class Compared:
    """One product of the program. `name`: a short name; `count`: how often it is in the program's graphs; `us`,
    `aten_us`: microseconds of one call that the table expects of its kernel and of ATen, None if unknown; `lost_us`:
    microseconds of the program that are gained when this product goes back to ATen, 0 if it is not slower."""

    name: str
    problem: str
    config: str
    rung: str
    count: int
    us: float | None
    aten_us: float | None
    lost_us: float
    note: str = ""


@dataclass(frozen=True)
class ComparisonReport:
    """What `gemmdb compare` found. `default_us`, `gemmdb_us`: median microseconds of one call of the program; `error`:
    the largest difference of the outputs, relative, None if it is not finite. `interval`: that of the speedup, and
    `verdict`: what it means; older versions of `compare` said neither."""

    name: str
    default_us: float
    gemmdb_us: float
    error: float | None
    together_us: float
    products: tuple[Compared, ...]
    interval: tuple[float, float] | None = None
    verdict: str = ""

    @property
    def speedup(self) -> float:
        """How many times faster the program is with gemmdb."""
        return self.default_us / self.gemmdb_us

    def document(self) -> dict[str, Any]:
        """What the page draws."""
        return {
            "kind": "comparison",
            "title": self.name,
            "default_us": self.default_us,
            "gemmdb_us": self.gemmdb_us,
            "speedup": self.speedup,
            "error": self.error,
            "together_us": self.together_us,
            "interval": self.interval,
            "verdict": self.verdict,
            "products": [
                {
                    "name": one.name, "problem": one.problem, "config": one.config, "kernel": _kernel(one.config),
                    "rung": one.rung, "count": one.count, "us": one.us, "aten_us": one.aten_us,
                    "lost_us": one.lost_us, "note": one.note, "aten": one.config == ATEN.text,
                }
                for one in self.products
            ],
        }  # fmt: skip


def of_json(found: Mapping[str, Any], path: Path) -> ComparisonReport:
    """The report of what `gemmdb compare --json` printed. Raises InputError for anything else. What older versions did
    not print, the products' times, is left out."""
    default_us, gemmdb_us = (_time(found, name, path) for name in ("default_us", "gemmdb_us"))
    error = found.get("error")
    slower = _object(found, "slower", path)
    listed = found.get("products")
    if not isinstance(listed, list):
        listed = [{"problem": text, "config": config} for text, config in _object(found, "configs", path).items()]
    products = [_compared(one, slower, path) for one in listed if isinstance(one, dict)]
    products.sort(key=lambda one: (-(one.aten_us or 0.0) * one.count, one.problem))
    return ComparisonReport(
        path.name, default_us, gemmdb_us, _number(error), _number(found.get("together_us")) or 0.0, tuple(products),
        _interval(found.get("interval")), str(found.get("verdict", ""))[:40],
    )  # fmt: skip


def _compared(one: Mapping[str, Any], slower: Mapping[str, Any], path: Path) -> Compared:
    problem, config = one.get("problem"), one.get("config")
    if not isinstance(problem, str) or not isinstance(config, str):
        raise InputError(f"{path}: a product of a comparison has a problem and a config")
    us, gain, count = _number(one.get("expected_us")), _number(one.get("speedup_vs_aten")), one.get("count")
    return Compared(
        _named(problem)[:300],
        problem,
        config,
        str(one.get("rung", "")),
        count if type(count) is int and 0 < count < 2**53 else 1,
        us,
        us * gain if us is not None and gain is not None else None,
        _number(slower.get(problem)) or 0.0,
        str(one.get("note", "")),
    )


def _interval(value: object) -> tuple[float, float] | None:
    ends = [_number(one) for one in value] if isinstance(value, list) else []
    return (ends[0], ends[1]) if len(ends) == 2 and ends[0] is not None and ends[1] is not None else None


def _time(found: Mapping[str, Any], name: str, path: Path) -> float:
    value = _number(found.get(name))
    if value is None or not 0 < value <= MOST_US:
        raise InputError(f"{path}: {name} of a comparison is a positive time in microseconds")
    return value


def _object(found: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = found.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} of a comparison is an object, by problem")
    return value


def _number(value: object) -> float | None:
    """`value` as a finite number of at least 0 and at most MOST_US, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_US:
        return None
    return float(value) if math.isfinite(value) else None


def _named(text: str) -> str:
    try:
        return names.short(Problem.parse(text))
    except InputError:
        return text


def _kernel(text: str) -> str:
    try:
        return names.kernel(Config.parse(text))
    except InputError:
        return text[:100]
