"""Lookup of the backend for a device, and of this machine's device for an `--arch`."""

from __future__ import annotations

from gemmdb.devices import detect, registry
from gemmdb.errors import InputError, suggestion
from gemmdb.generators.backend import Backend
from gemmdb.key.device import Device


def device_for(arch: str) -> Device:
    """Return this machine's device for `arch`: `native`, `cpu`, or a GPU's arch. Raises InputError if there is none."""
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
    else:
        reason += suggestion(arch, ["native", "cpu", *sorted({device.arch for device in registry.KNOWN})])
    raise InputError(reason)


def is_here(arch: str) -> bool:
    """Whether this machine has the device for `arch`."""
    gpu = detect.cuda()
    return arch in ("native", "cpu") or (gpu is not None and gpu.arch == arch)


def backend_for(device: Device) -> Backend:
    """Return the backend that measures on `device`. Raises InputError for a kind that this version cannot measure."""
    # A backend is imported only when it is used: it needs torch or triton.
    if device.kind == "cpu":
        from gemmdb.generators.measure.cpu.measurer import CpuBackend

        return CpuBackend(device)
    if device.kind == "cuda":
        from gemmdb.generators.measure.cuda.backend import CudaBackend

        return CudaBackend(device)
    raise InputError(f"measuring on {device.kind} devices is not available in this version")
