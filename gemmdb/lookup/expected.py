"""Cost model expectations at measured problems. Packed tables store them, so that lookups need not compute them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from gemmdb.cost import sizes
from gemmdb.cost.machine import machine
from gemmdb.cost.model import Coefficients
from gemmdb.cost.transfer import ConfigGroup, Scale, fitted, group_of, member_of, split_group
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.record import (
    DISTURBED,
    FULL,
    MOST_RESIDENT,
    RESIDENT,
    STEADIEST,
    UNKNOWN,
    Record,
    Time,
    coded,
)

VERSION = 2
"""Increment on any change to `Scale` or `group_of` other than the coefficients: lookups then recompute the expectations
of older packed tables until these are packed again. A test checks the shipped tables."""


Codes = tuple[int, int, int]
"""A group's smallest log of measured over expected time, its smallest log time, both in STEPs, and FULL if a time was
measured in full, else 0."""


def expectation(scale: Scale, aten_us: float, config: Config) -> int:
    """Return the log, in STEPs, of the time that `scale` expects for a config over ATen's measured `aten_us`
    microseconds."""
    return coded(math.log(scale.us(member_of(config)) / aten_us))


def codes_of(
    times: Iterable[Time], problem: Problem, device: Device, aten_us: float, stamp: int
) -> dict[ConfigGroup, Codes]:
    """Return the Codes of each group with a steady time. `aten_us`: ATen's time in microseconds; `stamp`: the record's
    stamp; if it is current, the record's own expectations are used."""
    holds = stamp != 0 and stamp == stamp_of(device)
    scale: Scale | None = None
    found: dict[ConfigGroup, Codes] = {}
    for entry, code, width, flags, expected in times:
        if width > STEADIEST or flags & DISTURBED:
            continue
        if holds and expected != UNKNOWN:
            resident = flags // RESIDENT
            key = entry.memo.get(resident)
            if key is None:
                key = entry.memo[resident] = split_group(entry.config, 1 << resident >> 1)
        else:
            scale = scale or Scale.of(problem, device)
            key, expected = group_of(entry.config, problem, device), expectation(scale, aten_us, entry.config)
        if key in found:
            value, least, full = found[key]
            found[key] = min(code - expected, value), min(code, least), flags & FULL | full
        else:
            found[key] = code - expected, code, flags & FULL
    return found


def with_expectations(record: Record, problem: Problem, device: Device) -> Record:
    """Return the record with all expectations filled in, if the cost model knows the device."""
    stamp = stamp_of(device)
    if not stamp:
        return record

    scale = Scale.of(problem, device)

    def added(time: Time, aten_us: float) -> Time:
        config = time.entry.config
        resident = group_of(config, problem, device).resident.bit_length()
        if resident > MOST_RESIDENT:  # It does not fit.
            return time
        flags = time.flags % RESIDENT + RESIDENT * resident
        return time._replace(expected=expectation(scale, aten_us, config), flags=flags)

    groups = (
        one if one.modelled or not one.aten_us
        else replace(one, times=tuple(added(time, one.aten_us) for time in one.times))
        for one in record.groups
    )  # fmt: skip
    return replace(record, groups=tuple(groups), stamp=stamp)


def stamp_of(device: Device) -> int:
    """Return a 32-bit hash of everything that expectations on a device depend on except problem and config; 0 if the
    cost model does not know the device."""
    return _stamp(device, _texts(fitted()))


@functools.lru_cache(maxsize=32)
def _stamp(device: Device, coefficients: str) -> int:
    known = machine(device)
    if known is None:
        return 0
    text = f"{VERSION} {known} {device.units} {coefficients} {sorted(sizes.RATES.items())}"
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") or 1


_last: list[tuple[Coefficients, str]] = []


def _texts(of: Coefficients) -> str:
    """Return the text of coefficients. Caches the last one, because it is slow to make and there is only one set."""
    known = next((text for one, text in _last if one is of), None)
    if known is None:
        known = repr([sorted(part.items()) for part in (of.rates, of.own, of.common)])
        _last[:] = [(of, known)]
    return known
