"""Detect this machine's Device with the standard library alone: /proc/cpuinfo, the environment, and libcuda via
ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path

from gemmdb.key.device import Device

_ISA_LEVELS = {
    "amx_bf16": "amx", "avx512_fp16": "avx512_fp16", "avx512_bf16": "avx512_bf16", "avx512f": "avx512", "avx2": "avx2",
    "asimd": "neon",
}  # fmt: skip
_MULTIPROCESSORS, _MAJOR, _MINOR, _L2, _SHARED, _CLOCK_KHZ = 16, 75, 76, 38, 97, 13
"""CUdevice_attribute numbers (cuda.h)."""


def native(threads: int | None = None) -> Device:
    """Return the Device that torch would compile for on this machine: the first GPU if there is one, else the CPU."""
    return cuda() or cpu(threads)


def cpu(threads: int | None = None) -> Device:
    """Return the CPU as a Device with `threads` threads (default as in torch: OMP_NUM_THREADS, else the number of
    physical cores)."""
    info, flags = _cpuinfo(), _flags()
    isa = next((level for flag, level in _ISA_LEVELS.items() if flag in flags), "-")
    # On aarch64, Linux reports the implementer and part numbers instead of a name.
    arm = [info.get("CPU implementer", ""), info.get("CPU part", "")]
    sku = info.get("model name") or (" ".join(("ARM", *arm)) if all(arm) else "")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads or (int(wanted) if wanted.isdecimal() else 0) or cores()
    return _cpu((sku or platform.processor() or platform.machine()).strip(), threads, isa)


def cpu_multiplies_tf32() -> bool:
    """Whether oneDNN computes fp32 GEMMs in TF32 on this CPU when TF32 is allowed: only with AMX fp16 units. On other
    CPUs, allowing TF32 changes nothing."""
    return "amx_fp16" in _flags()


@functools.cache
def _cpu(sku: str, threads: int, isa: str) -> Device:
    """Cached, because every lookup needs the Device's texts and keys."""
    return Device("cpu", "cpu", sku, threads, isa=isa)


@functools.cache
def cuda(index: int = 0) -> Device | None:
    """Return GPU number `index` as the driver reports it, or None without a driver or a GPU. Creates no CUDA
    context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    calls: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(handle), index),
        lambda: driver.cuDeviceGetName(name, len(name), handle),
        lambda: driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle),
    )
    if any(call() != 0 for call in calls):
        return None

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    sku = name.value.decode(errors="replace")
    figures = {"l2_bytes": attribute(_L2), "smem_bytes": attribute(_SHARED), "clock_mhz": attribute(_CLOCK_KHZ) / 1000}
    return Device(
        "cuda",
        f"sm{attribute(_MAJOR)}{attribute(_MINOR)}",
        sku,
        attribute(_MULTIPROCESSORS),
        round(memory.value / 2**30),
        mig="MIG" in sku,
        figures=figures,
    )


def last_level_cache_bytes() -> int:
    """Return the size of this CPU's largest cache as Linux reports it, or 32 MiB if it does not."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=32 * 2**20)


def flush_bytes(cache_bytes: int) -> int:
    """Return how many bytes to read before each call to flush a last-level cache (L2 on a GPU) of `cache_bytes`: twice
    its size, rounded to a multiple of 64. This defines a cold cache for every measurement. Flushing four times the size
    changed none of 36 kernel medians on an H200 beyond noise."""
    return -(-2 * cache_bytes // 64) * 64


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


@functools.cache
def _cpuinfo() -> dict[str, str]:
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        return {}


def _flags() -> set[str]:
    info = _cpuinfo()
    return set(info.get("flags", info.get("Features", "")).split())


def cores() -> int:
    """Return the number of physical cores that this process may use."""
    info = _cpuinfo()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    siblings, physical = (info.get(name, "") for name in ("siblings", "cpu cores"))
    if not (siblings.isdecimal() and physical.isdecimal() and int(siblings) and int(physical)):
        return usable
    return max(1, usable * int(physical) // int(siblings))
