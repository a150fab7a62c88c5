"""Machine: what the cost model knows about a GPU, from the public figures of its Device."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from gemmdb.devices import registry
from gemmdb.key.device import Device

SYNC_FLOPS = 2540.0
"""Dense 16-bit operations per clock and SM that `mma.sync` reaches from Hopper on, 62% of Hopper's tensor-core rate
(arXiv:2402.13499, table of mma throughput on H800). Assumed for newer data-centre GPUs too; before Hopper, `mma.sync`
reaches the full rate."""
FMA_LANES = {75: 64, 80: 64}
"""FP32 lanes of an SM by compute capability (NVIDIA's programming guide, arithmetic throughput); 128 for others."""
WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}
"""Resident warps of an SM by compute capability (NVIDIA's programming guide, technical specifications)."""
_ARCH = re.compile(r"sm(\d{2,3})")


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates per microsecond: `dram` and `l2` in bytes, `tensor` and `sync` in 16-bit operations of one SM on the tensor
    cores (warp-group and `mma.sync` instructions), `fma` in fp32 operations of one SM. `clock`: cycles per microsecond.
    `smem`: bytes of shared memory of an SM that programs may share; `warps`: resident warps of an SM. `capability`: 90
    for sm90."""

    capability: int
    sms: int
    dram: float
    l2: float
    l2_bytes: float
    tensor: float
    sync: float
    fma: float
    clock: float
    smem: int
    warps: int

    @property
    def groups(self) -> bool:
        """Whether it has warp-group instructions and a copy engine for tiles."""
        return 90 <= self.capability < 120


@functools.lru_cache(maxsize=32)
def machine(device: Device) -> Machine | None:
    """The Machine of a GPU; None for other devices, and for a GPU of an unknown arch.

    Missing figures come from the registry's device of that name, else from the first device of its arch, with bandwidth
    and rate scaled by the number of SMs.
    """
    match = _ARCH.fullmatch(device.arch)
    known = registry.find(device.sku) or registry.find(device.arch)
    if device.kind != "cuda" or match is None or known is None or device.mig:
        return None
    capability, share = int(match[1]), device.units / known.units
    public = {**known.figures, **{k: v for k, v in device.figures.items() if k in ("smem_bytes", "l2_bytes")}}
    clock = public["clock_mhz"]
    tensor = known.figures["tc_tflops"] * 1e6 * share / device.units
    return Machine(
        capability,
        device.units,
        public["copy_gb_per_s"] * 1e3 * share,
        64 * clock * device.units,  # The crossbar of every arch since Volta delivers 64 bytes per clock and SM.
        public["l2_bytes"],
        tensor,
        tensor if capability < 90 else min(tensor, SYNC_FLOPS * clock),
        2 * FMA_LANES.get(capability, 128) * clock,
        clock,
        int(public["smem_bytes"]),
        WARPS.get(capability, 48),
    )


def _home() -> Machine:
    device = registry.find("NVIDIA H200")
    found = None if device is None else machine(device)
    if found is None:
        raise AssertionError("the registry knows the H200")
    return found


HOME = _home()
"""The machine that the model's coefficients were fitted on."""
