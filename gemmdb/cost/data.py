"""The cost model's fitted data: JSON files beside this module, which `gemmdb.generators.fit` writes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text())


_COEFFICIENTS = _read("coefficients.json")
CAPABILITIES: Sequence[int] = tuple(_COEFFICIENTS["capabilities"])
"""Compute capabilities of the GPUs whose rows the coefficients were fitted to."""
OPS: Sequence[str] = tuple(_COEFFICIENTS["ops"])
"""The ops of these rows: no others are modelled."""
PROVENANCE: Mapping[str, Any] = _COEFFICIENTS["provenance"]
"""What the coefficients were fitted to: numbers of rows and problems, devices, and the digest of each archive."""
RATES, TRAITS, KINDS = (
    {group: tuple(values) for group, values in _COEFFICIENTS[name].items()} for name in ("rates", "traits", "kinds")
)
"""The coefficients of `model.microseconds`, `model.traits` and `model.kinds`, by group of kernels."""

Menus = Mapping[str, Mapping[int, Sequence[str]]]
"""Texts of configs by the name of a menu and the largest M."""


@functools.cache
def menus() -> Menus:
    """The candidates of the ops that are modelled."""
    return _by_rows(_menus()["menus"]) | _by_rows(own()["menus"])


@functools.cache
def rest() -> Menus:
    """What is tried where the model does not know the problem; see `gemmdb.lookup.similar`."""
    return _by_rows(_menus()["rest"])


@functools.cache
def own() -> Mapping[str, Any]:
    """The `menus` of the ops with trees of their own, the `capabilities` of the GPUs that these were fitted to, and
    their `provenance`."""
    return _read("menus-own.json")  # type: ignore[no-any-return]


@functools.cache
def sizes() -> Mapping[str, Any]:
    """The `rates` of `gemmdb.cost.sizes`, the `capabilities` of the GPUs that they are fitted to, their `errors`, and
    their `provenance`."""
    return _read("sizes.json")  # type: ignore[no-any-return]


@functools.cache
def _menus() -> Any:
    return _read("menus.json")


def _by_rows(menus: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, dict[int, tuple[str, ...]]]:
    return {name: {int(rows): tuple(texts) for rows, texts in limits.items()} for name, limits in menus.items()}
