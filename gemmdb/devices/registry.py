"""Registry of known GPUs with their public specs, so that lookups and builds for them work on any machine.

Sources: NVIDIA's data sheets and architecture whitepapers. Memory is what the driver reports, slightly less than the
nominal size; bandwidth in GB/s; `tc_tflops`: dense bf16 (fp16 on sm75) tensor-core rate; boost clocks in MHz.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemmdb.key.device import Device

KIB = 1024
_COLUMNS = ("smem_bytes", "l2_bytes", "copy_gb_per_s", "tc_tflops", "clock_mhz")


def _gpu(arch: str, sku: str, sms: int, memory_gib: int, figures: tuple[float, ...]) -> Device:
    smem_kib, l2_mib, *rest = figures
    values = (smem_kib * KIB, l2_mib * KIB * KIB, *rest)
    return Device("cuda", arch, sku, sms, memory_gib, figures=dict(zip(_COLUMNS, values, strict=True)))


KNOWN: tuple[Device, ...] = (
    # arch, driver name, SMs, GiB, (shared memory per block KiB, L2 MiB, GB/s, TFLOP/s, MHz)
    _gpu("sm75", "Tesla T4", 40, 15, (64, 4, 320, 65, 1590)),
    _gpu("sm80", "NVIDIA A100-SXM4-80GB", 108, 79, (163, 40, 2039, 312, 1410)),
    _gpu("sm80", "NVIDIA A100-SXM4-40GB", 108, 39, (163, 40, 1555, 312, 1410)),
    _gpu("sm80", "NVIDIA A100 80GB PCIe", 108, 79, (163, 40, 1935, 312, 1410)),
    _gpu("sm80", "NVIDIA A100-PCIE-40GB", 108, 39, (163, 40, 1555, 312, 1410)),
    _gpu("sm86", "NVIDIA A10", 72, 22, (99, 6, 600, 125, 1695)),
    _gpu("sm86", "NVIDIA A10G", 80, 22, (99, 6, 600, 70, 1710)),
    _gpu("sm86", "NVIDIA GeForce RTX 3090", 82, 24, (99, 6, 936, 71, 1695)),
    _gpu("sm89", "NVIDIA L4", 58, 22, (99, 48, 300, 121, 2040)),
    _gpu("sm89", "NVIDIA L40S", 142, 44, (99, 96, 864, 362, 2520)),
    _gpu("sm89", "NVIDIA GeForce RTX 4090", 128, 24, (99, 72, 1008, 165, 2520)),
    _gpu("sm90", "NVIDIA H100 80GB HBM3", 132, 79, (227, 50, 3350, 989, 1980)),
    _gpu("sm90", "NVIDIA H100 PCIe", 114, 79, (227, 50, 2039, 756, 1755)),
    _gpu("sm90", "NVIDIA H200", 132, 140, (227, 60, 4800, 989, 1980)),
    _gpu("sm90", "NVIDIA H20", 78, 95, (227, 60, 4000, 148, 1980)),
    _gpu("sm90", "NVIDIA GH200 480GB", 132, 95, (227, 60, 4000, 989, 1980)),
    _gpu("sm100", "NVIDIA B200", 148, 178, (227, 126, 8000, 2250, 1965)),
    _gpu("sm120", "NVIDIA GeForce RTX 5090", 170, 31, (99, 96, 1792, 209, 2407)),
)
"""Known devices by arch; the first device of an arch is its default."""


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names that `name` may stand for, likeliest first: names that contain all its words
    (`NVIDIA H200` for `H200`), else names that differ by a letter or two."""
    names, words = sorted(set(known)), set(_words(name))
    whole = [one for one in names if words and words <= set(_words(one))]
    if whole:
        return whole[:3]
    import difflib  # Needed for unknown names only.

    by_lower = {one.lower(): one for one in names}
    return [by_lower[one] for one in difflib.get_close_matches(name[:120].lower(), by_lower, 3, 0.8)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def find(name: str) -> Device | None:
    """Return the known device with that SKU, or the first one of that arch, or None."""
    by_sku = (device for device in KNOWN if device.sku.lower() == name.lower())
    return next(by_sku, None) or next((device for device in KNOWN if device.arch == name.lower()), None)
