"""Machine: what the cost model knows about a GPU, from the public figures of its Device."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from gemmdb.devices import registry
from gemmdb.kernels import hardware
from gemmdb.key.device import Device

SYNC_FLOPS = 2540.0
"""Dense 16-bit operations per clock and SM that `mma.sync` reaches from Hopper on, 62% of Hopper's tensor-core rate
(arXiv:2402.13499, table of mma throughput on H800). Assumed for newer data-centre GPUs too; before Hopper, `mma.sync`
reaches the full rate."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates per microsecond: `dram` and `l2` in bytes, `tensor` and `sync` in 16-bit operations of one SM on the tensor
    cores (warp-group and `mma.sync` instructions), `fma` in fp32 operations of one SM. `clock`: cycles per microsecond.
    `smem`: bytes of shared memory of an SM that programs may share; `warps`: resident warps of an SM. `capability`: 90
    for sm90. Its repr is a part of the stamp of a packed table's expectations (`lookup.expected.stamp_of`), so every
    field belongs to the format of the shipped tables."""

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
        return hardware.has_warp_groups(self.capability)


@functools.lru_cache(maxsize=32)
def machine(device: Device) -> Machine | None:
    """The Machine of a GPU; None for other devices, and for a GPU of an unknown arch.

    Missing figures come from the registry's device of that name, else from the first device of its arch, with bandwidth
    and rate scaled by the number of SMs.
    """
    capability = device.capability
    known = registry.find(device.sku) or registry.find(device.arch)
    if not capability or known is None or device.mig:
        return None
    share = device.units / known.units
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
        tensor if capability < hardware.HOPPER else min(tensor, SYNC_FLOPS * clock),
        2 * hardware.FMA_LANES.get(capability, hardware.OTHER_FMA_LANES) * clock,
        clock,
        int(public["smem_bytes"]),
        hardware.RESIDENT_WARPS.get(capability, hardware.OTHER_RESIDENT_WARPS),
    )


def _home() -> Machine:
    device = registry.find("NVIDIA H200")
    found = None if device is None else machine(device)
    if found is None:
        raise AssertionError("the registry knows the H200")
    return found


HOME = _home()
"""The machine that the model's coefficients were fitted on."""
