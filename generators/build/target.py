"""Choice of a build's device: the requested one, with the workload's thread count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.measure import backends
from gemmdb.key.device import Device
from gemmdb.workload import entries


def choose(arch: str, name: str | None) -> tuple[Device, tuple[str, ...]]:
    """Return this machine's device for `arch` and the shapes `name`, and warnings (see `fitted`). Raises InputError if
    there is no such device, or if the choice is ambiguous."""
    return fitted(backends.device_for(arch), arch, name)


def fitted(device: Device, arch: str, name: str | None) -> tuple[Device, tuple[str, ...]]:
    """Return the device found for `arch`, adapted to the shapes `name`, and warnings about devices of the workload that
    the table will not serve.

    A CPU gets the workload's thread count, since rows with another count serve none of its lookups. Raises InputError
    if the choice is ambiguous.
    """
    recorded = devices(name)
    if not recorded:
        return device, ()
    if arch == "native" and device.kind not in {one.kind for one in recorded}:
        here = " or ".join(("--arch cpu", f"--arch {device.arch}"))
        raise InputError(f"{name} was recorded on {_names(recorded)}, but this device is {device.sku}: pass {here}")
    threads = sorted({one.units for one in recorded if replace(one, units=device.units) == device})
    if device.kind == "cpu" and threads and device.units not in threads:
        if len(threads) > 1:
            counts = " and ".join(map(str, threads))
            raise InputError(f"{name} was recorded with {counts} threads: set OMP_NUM_THREADS to the one to measure")
        device = replace(device, units=threads[0])
    others = [one for one in recorded if one != device]
    if not others:
        return device, ()
    return device, (f"{name} names {_names(others)} too: this table, for {_names([device])}, does not serve them",)


def devices(name: str | None) -> list[Device]:
    """Return the devices that the lines of a workload name; empty for a preset, a shapes file, or a missing file."""
    if name is None or name in shapes.presets() or not Path(name).exists():
        return []
    found: dict[Device, None] = {}
    for where, line in entries.lines(Path(name)):
        try:
            item = entries.as_object(line, where)
        except InputError:
            # A line of a JSON document, or one that `shapes.load` will reject.
            continue
        if isinstance(item.get("problem"), str) and item.get("device"):
            try:
                found[Device.parse(str(item["device"]))] = None
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
    return list(found)


def _names(found: Iterable[Device]) -> str:
    return ", ".join(f"{one.sku} with {one.units} threads" if one.kind == "cpu" else one.sku for one in found)
