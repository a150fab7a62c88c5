"""Ray custom resources that describe what a node can measure and compile. `python -m` prints this host's, for `ray
start --resources`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gemmdb.devices import detect
from gemmdb.generators.measure.cuda.compilers import cutlass_tools
from gemmdb.kernels import cutlass
from gemmdb.key.device import Device
from gemmdb.key.toolchain import installed

PREFIX = "gemmdb:"
SHARE = 0.001
"""Amount of a resource that a compile task takes; each node has 1, so this only restricts where the task may run."""


def arch(device: Device) -> str:
    """Return the resource of the nodes with a device of this arch: one per GPU, or one for the CPU."""
    return f"{PREFIX}{device.arch}"


def sku(device: Device) -> str:
    """Return the resource of the nodes with this device, in the same amount."""
    return f"{PREFIX}{device.slug}"


def skus(of: Mapping[str, float]) -> list[str]:
    return [name for name in of if re.fullmatch(rf"{PREFIX}(cpu|sm\d+)-.*", name)]


def threads(name: str) -> int | None:
    """Return the thread count in the name of a CPU's resource, or None for a GPU's. Ray sets OMP_NUM_THREADS, which
    hides it from a worker."""
    found = re.fullmatch(rf"{PREFIX}cpu.*-(\d+)t", name)
    return int(found[1]) if found else None


def compilers() -> dict[str, str]:
    """Return the resources of the nodes that compile as this host does: `triton` with the same torch and Triton,
    `inductor` with a GPU as well, whose properties Inductor queries, and `cutlass` with the same nvcc and headers."""
    toolchain = installed("cuda")
    found: dict[str, str] = {}
    if toolchain is not None and toolchain.triton:
        versions = f"torch-{toolchain.torch}-triton-{toolchain.triton}"
        found["triton"] = f"{PREFIX}{versions}"
        if detect.cuda() is not None:
            found["inductor"] = f"{PREFIX}gpu-{versions}"
    if cutlass.compiler() is not None and cutlass.headers() is not None:
        found["cutlass"] = f"{PREFIX}nvcc-{cutlass_tools()}"
    return found


def here() -> dict[str, int]:
    """Return what this host offers: its equal GPUs, or its CPU; and what it can compile for GPUs."""
    device, number = detect.native(), 1
    if device.kind == "cuda":
        while detect.cuda(number) == device:
            number += 1
    return {arch(device): number, sku(device): number, **dict.fromkeys(compilers().values(), 1)}


if __name__ == "__main__":
    print(json.dumps(here()))
