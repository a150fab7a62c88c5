"""The CPU as a Backend of the generator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gemmdb.devices.detect import cpu, last_level_cache_bytes
from gemmdb.errors import InputError
from gemmdb.generators.backend import Backend, Measurer, Space, silent
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.candidates import CachedSpace
from gemmdb.generators.measure.cpu.measurer import CpuMeasurer
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.generators.measure.quiet import Watch
from gemmdb.key.device import Device
from gemmdb.key.toolchain import Toolchain, installed
from gemmdb.table.measurement import Protocol


class CpuBackend(Backend):
    """This machine's CPU with the threads that torch would use. Compiles nothing ahead, which would disturb the times.
    Raises InputError without torch."""

    workers = 1
    chunk = 4
    overlap = False

    def __init__(self, device: Device | None = None) -> None:
        toolchain = installed("cpu")
        if toolchain is None:
            raise InputError("building a table needs torch: pip install torch")
        self.device: Device = device or cpu()
        self.toolchain: Toolchain = toolchain
        self.space: Space = CachedSpace(CpuSpace())
        self.say: Callable[[str], None] = silent

    def protocols(self, effort: Effort) -> Sequence[Protocol]:
        return [Protocol("host", state, 1, effort.samples) for state in effort.states]

    def measurer(self, worker: int, effort: Effort) -> Measurer:
        """It compiles in as many processes as there are usable cores, at most 8, and starts nothing before its first
        use."""
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        watch = Watch(self.device.units, say=lambda text: self.say(text))
        return CpuMeasurer(effort, self.device.units, min(usable, 8), watch=watch)

    def provenance(self) -> dict[str, object]:
        # The governor of the frequency decides how steady the clock is.
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        try:
            steady = governor.read_text().strip()
        except OSError:
            steady = "unknown"
        return {"last_level_cache_bytes": last_level_cache_bytes(), "governor": steady}
