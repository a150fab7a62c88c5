"""The registry of device kinds that can be measured, and the device of this machine that an `--arch` means."""

from __future__ import annotations

from collections.abc import Callable

from gemmdb.devices import detect, registry
from gemmdb.errors import InputError
from gemmdb.generators.backend import Backend
from gemmdb.key.device import Device


def _cpu(device: Device) -> Backend:
    from gemmdb.generators.measure.cpu.backend import CpuBackend

    return CpuBackend(device)


def _cuda(device: Device) -> Backend:
    from gemmdb.generators.measure.cuda.backend import CudaBackend

    return CudaBackend(device)


FACTORIES: dict[str, Callable[[Device], Backend]] = {"cpu": _cpu, "cuda": _cuda}
"""What makes the backend of each device kind. A backend is imported only when it is used: it needs torch or triton."""


def device_for(arch: str) -> Device:
    """The device of this machine that `arch` means: `native`, `cpu`, or a GPU's arch. Raises InputError if there is
    none."""
    if arch == "native":
        return detect.native()
    if arch == "cpu":
        return detect.cpu()
    gpu = detect.cuda()
    if gpu is not None and gpu.arch == arch:
        return gpu
    here = f"this machine has {gpu.sku} ({gpu.arch})" if gpu else "this machine has no GPU"
    reason = f"--arch {arch}: measuring needs such a GPU, and {here}; run the build on such a machine"
    if registry.find(arch) is not None:
        reason += (
            ", or use --modelled, which compiles for that arch, ranks by a cost model and marks every row as modelled"
        )
    raise InputError(reason)


def is_here(arch: str) -> bool:
    """Whether this machine has the device that `arch` means."""
    gpu = detect.cuda()
    return arch in ("native", "cpu") or (gpu is not None and gpu.arch == arch)


def backend_for(device: Device) -> Backend:
    """The backend that measures on `device`. Raises InputError for a kind that this version cannot measure."""
    if device.kind not in FACTORIES:
        raise InputError(f"measuring on {device.kind} devices is not available in this version")
    return FACTORIES[device.kind](device)
