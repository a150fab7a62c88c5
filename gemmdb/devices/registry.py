"""GPUs that gemmdb knows by public figures, so that lookups and builds for them work on any machine. One row each.

Sources: NVIDIA's data sheets and architecture whitepapers. Memory is what the driver reports, a little less than the
name says; bandwidth in GB/s; `tc_tflops`: dense bf16 (fp16 on sm75) tensor-core rate; boost clocks in MHz.
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
    # arch, name of the driver, SMs, GiB, (shared memory per block KiB, L2 MiB, GB/s, TFLOP/s, MHz)
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
"""Every device that a name can stand for on a machine without it, by arch; the first of an arch stands for the arch."""


def similar(name: str, known: Iterable[str]) -> list[str]:
    """The known names that `name` may be meant for, at most three, the likeliest first: those that hold all its words
    (`NVIDIA H200` for `H200`), else those that differ by a letter or two."""
    names, words = sorted(set(known)), set(_words(name))
    whole = [one for one in names if words and words <= set(_words(one))]
    if whole:
        return whole[:3]
    import difflib  # Only a wrong name needs it.

    by_lower = {one.lower(): one for one in names}
    return [by_lower[one] for one in difflib.get_close_matches(name[:120].lower(), by_lower, 3, 0.8)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def find(name: str) -> Device | None:
    """The known device of that SKU, or the first of that arch; None for any other name."""
    by_sku = (device for device in KNOWN if device.sku.lower() == name.lower())
    return next(by_sku, None) or next((device for device in KNOWN if device.arch == name.lower()), None)
