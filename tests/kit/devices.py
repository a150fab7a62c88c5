"""Devices that tests ask about: none of them need be here."""

from __future__ import annotations

from gemmdb.devices import registry
from gemmdb.key.device import Device


def known(name: str) -> Device:
    """The registry's device of that SKU, or the first of that arch."""
    device = registry.find(name)
    assert device is not None, name
    return device


H200 = known("NVIDIA H200")
H100 = known("NVIDIA H100 80GB HBM3")
A100 = known("NVIDIA A100-SXM4-80GB")
L4 = known("NVIDIA L4")
