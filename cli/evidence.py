"""Human-readable evidence of a hit: in full, or in a few short lines with short names and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gemmdb import Hit
from gemmdb.cli.output import microseconds
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import over_sizes

Facts = Iterator[tuple[str, str]]
SHARES = ("spread", "regret", "expected_loss", "mean_gain", "worst_regret", "gain", "needed")
"""Evidence that is a share."""
UNKNOWN = "-"
"""What is printed where there is no value, such as the rung of a size that no rung answers."""
ONLY_WIDE = (
    "protocol", "runs", "pick", "table", "margin", "toolchain", "class", "verified", "distance", "configs", "corrected",
    "modelled", "aten_us", "hint",
)  # fmt: skip
"""Evidence that the step's reason already contains, or that few users need."""


def full_facts(evidence: Mapping[str, Any], but: Iterable[str] = ()) -> Facts:
    """Return the name and value of each JSON-ready piece of evidence, without the names in `but`. Each object in a list
    gets its own line."""
    for name, value in evidence.items():
        if name in set(but):
            continue
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            yield from ((name if place == 0 else "", _full(item)) for place, item in enumerate(value))
        else:
            yield name, _ranges(value) if name == "range" else _full(value).removeprefix(f"{name} ")


def _full(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value + 0.0:.4g}"  # Without the sign of -0.0.
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_full(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_full, value))
    return str(value)


def brief_facts(evidence: Mapping[str, Any], is_hit: bool = False) -> Facts:
    """Yield the name and value of each line about one step of a lookup. `is_hit`: whether the step serves a kernel."""
    hidden = (*ONLY_WIDE, "proposals") if is_hit else ONLY_WIDE
    for name, value in evidence.items():
        if name not in hidden and (text := _brief(name, value)):
            yield name.removesuffix("_us").replace("_", " "), text


def over_range(hit: Hit, query: Query) -> str:
    """Format the sizes that the time of a hit holds for, and its gain over all sizes of the range; empty for fixed
    sizes."""
    if not query.symbolic or (hit.config == ATEN and not hit.branches):
        return ""
    here = " ".join(f"{name}={getattr(query.problem, name)}" for name in query.ranges)
    found = over_sizes.expected(query, hit.expected_us, hit.speedup, hit.evidence, {}).gain
    return f" at {here}, {found.short} over the range" if found.ranged else f" at {here}"


def expected_time(hit: Hit, query: Query) -> str:
    """Format the expected time of a hit, and ATen's."""
    aten_us = hit.evidence.get("aten_us", hit.expected_us * hit.speedup)
    if hit.config == ATEN and hit.speedup == 1:
        return microseconds(hit.expected_us)
    gain = f"{hit.speedup:.2f}x{over_range(hit, query)}"
    return f"{microseconds(hit.expected_us)}, {microseconds(aten_us)} with ATen: {gain}"


def config_name(text: str, wide: bool = False) -> str:
    """Return the short name of a config with its slices of K; with `wide`, its full text."""
    try:
        found = Config.parse(text)
    except InputError:
        return text
    slices = [f" {name}={found.values[name]}" for name in ("split_k", "slices") if found.values.get(name, 1) != 1]
    return text if wide else names.kernel(found) + "".join(slices)


def problem_name(text: str, wide: bool = False) -> str:
    """Return the short name of a problem; with `wide`, its full text."""
    try:
        return text if wide else names.short(Problem.parse(text))
    except InputError:
        return text


def _brief(name: str, value: Any) -> str:
    if name == "ties":
        return "" if len(value) < 2 else f"{len(value)} tied configs"
    if name == "neighbours":
        return _neighbours(value)
    if name == "least_gain":
        return f"{value:.2f}x ATen"
    if name == "range":
        return _ranges(value)
    if isinstance(value, Mapping) and value and all(":" in key for key in value):  # Configs that were left out.
        return "; ".join(f"{config_name(key)}: {reason}" for key, reason in value.items())
    if name.endswith("_us") and isinstance(value, Mapping):
        return ", ".join(f"{bound} {microseconds(us)}" for bound, us in value.items())
    if isinstance(value, Mapping):
        return _words(value)
    if isinstance(value, list | tuple):
        return "; ".join(_words(one) if isinstance(one, Mapping) else _one(name, one) for one in value)
    return _one(name, value)


def _one(name: str, value: Any) -> str:
    """Format one value by its name: a config, a share, a time or a number."""
    if name == "config":
        return config_name(value)
    if isinstance(value, list | tuple):
        return ", ".join(_one("", one) for one in value)
    if not isinstance(value, float):
        return UNKNOWN if value is None else str(value)
    value += 0.0  # Without the sign of -0.0.
    if name == "speedup":
        return f"{value:.2f}x ATen"
    if name in SHARES:
        return f"{round(value, 3) + 0.0:.1%}"
    return microseconds(value) if name.endswith("_us") else f"{value:.4g}"


def _ranges(found: Mapping[str, Sequence[int | None]]) -> str:
    """Format the ranges of symbolic sizes: `m 2..64, n 1..`."""
    return ", ".join(f"{size} {low}..{'' if high is None else high}" for size, (low, high) in found.items())


def _neighbours(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the nearest neighbours, and how many more there are."""
    first = "; ".join(f"{problem_name(one['problem'])} at {one['distance']:.2f}" for one in found[:3])
    return f"{first}{f'; and {len(found) - 3} more' if len(found) > 3 else ''}"


def _words(found: Mapping[str, Any]) -> str:
    """Format an evidence object: a config and its facts."""
    words = []
    for name, value in found.items():
        bare = name in ("config", "reason", "speedup") or name.endswith("_us")
        words.append(_one(name, value) if bare else f"{name.replace('_', ' ')} {_one(name, value)}")
    return ", ".join(words)
