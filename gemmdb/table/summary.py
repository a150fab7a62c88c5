"""What `gemmdb tables` says of a file: an entry for each device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmdb.key.device import Device

Ops = Sequence[tuple[int, str, int]]
"""The key of a device, an op, and the number of its problems."""
Counts = Sequence[tuple[int, bool, int]]
"""The key of a device, whether the cost model computed them, and the number of times and failures; each pair once."""


def entries(file: Mapping[str, Any], devices: Iterable[Device], ops: Ops, counts: Counts) -> list[dict[str, Any]]:
    """The entries, JSON-ready. `file`: what they share; `ops`, `counts`: those of a `Held`."""
    return [_entry(file, device, ops, counts) for device in devices]


def _entry(file: Mapping[str, Any], device: Device, ops: Ops, counts: Counts) -> dict[str, Any]:
    numbers = {modelled: number for owner, modelled, number in counts if owner == device.key}
    measured, computed = numbers.get(False, 0), numbers.get(True, 0)
    return {
        "path": file["path"],
        "arch": device.arch,
        "device": device.sku,
        "schema_version": file["schema_version"],
        "packed": file["packed"],
        "digest": file["digest"],
        "origin": "modelled" if computed and not measured else "measured",
        "problems": {op: count for owner, op, count in ops if owner == device.key},
        "measurements": measured + computed,
    }
