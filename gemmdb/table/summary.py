"""What `gemmdb tables` says of a file: an entry for each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmdb.key.device import Device

Ops = Sequence[tuple[int, str, int]]
"""The key of a device, an op, and the number of its problems."""
Counts = Sequence[tuple[int, bool, int]]
"""The key of a device, whether the cost model computed them, and the number of times and failures; each pair once."""


def entries(file: Mapping[str, Any], devices: Iterable[Device], ops: Ops, counts: Counts) -> list[dict[str, Any]]:
    """The entries, JSON-ready. `file`: what they share; `ops`, `counts`: those of a `Held`."""
    problems: dict[int, dict[str, int]] = defaultdict(dict)
    for device, op, number in ops:
        problems[device][op] = number
    numbers = {(device, modelled): number for device, modelled, number in counts}
    return [
        _entry(file, one, problems[one.key], numbers.get((one.key, False), 0), numbers.get((one.key, True), 0))
        for one in devices
    ]


def _entry(
    file: Mapping[str, Any], device: Device, problems: Mapping[str, int], measured: int, computed: int
) -> dict[str, Any]:
    return {
        "path": file["path"],
        "arch": device.arch,
        "device": device.sku,
        "schema_version": file["schema_version"],
        "packed": file["packed"],
        "digest": file["digest"],
        "origin": "modelled" if computed and not measured else "measured",
        "problems": problems,
        "measurements": measured + computed,
    }
