"""What `gemmdb tune` can gain: in one line before the program runs, and in another before anything is measured."""

from __future__ import annotations

from gemmdb.key.device import Device
from gemmdb.tune.plan import Plan

CPU = (
    "it can gain in inference with constant weights (torch._inductor.config.freezing) and a bounded batch;"
    " it cannot gain in training, or in GEMMs of two activations"
)
GPU = (
    "it can gain in most GEMMs of compiled graphs, above all small, skinny and quantized ones;"
    " it cannot gain where ATen is at the limit of the device"
)


def of_device(device: Device) -> str:
    """Return what can be gained on a device."""
    return f"on {device.sku}: {CPU if device.kind == 'cpu' else GPU}"


def of_plan(plan: Plan, gemms: int, answered: int, missed_us: float, total_us: float) -> str:
    """Return what the program can gain from the build of a plan. `gemms`: number of its GEMMs, of which tables answer
    `answered`; `missed_us` of `total_us`: the estimated time of those that the plan builds."""
    number, of = len(plan.wanted), f"{gemms} GEMM{'' if gemms == 1 else 's'}"
    if not number and answered == gemms:
        return f"this program needs no build: tables answer {'its only GEMM' if gemms == 1 else f'all its {of}'}"
    if not number:
        return (
            f"this program can gain nothing from a build: tables answer {answered} of its {of}, and a build cannot help"
            " the others"
        )
    share = f", {missed_us / total_us:.0%} of the time" if total_us else ""
    return f"this program can gain in {number} of {of}{share}; {gemms - number} cannot or are in tables"
