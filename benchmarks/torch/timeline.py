"""Where the time of a step goes: its kernels one after the other, and what lies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

LEADING = 24
"""Kernels that a summary names, those that take the longest first."""


class Span(NamedTuple):
    """When a kernel ran, in microseconds from the start of the first one."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """The sum of a step, in microseconds. `busy_us`: at least one kernel ran. `idle_us`: none did, between the first
    and the last one. `shared_us`: how much longer the kernels took together than the time in which any ran, since the
    next one had begun. `kernels`: by name, how often it ran, how long it took in all, and the idle time in front of
    it."""

    span_us: float
    busy_us: float
    idle_us: float
    shared_us: float
    kernels: tuple[tuple[str, int, float, float], ...]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Timeline:
        """The sum of these kernels, in any order."""
        counts: dict[str, int] = defaultdict(int)
        took: dict[str, float] = defaultdict(float)
        before: dict[str, float] = defaultdict(float)
        busy, end = 0.0, None
        for span in sorted(spans, key=lambda one: one.start_us):
            counts[span.name] += 1
            took[span.name] += span.end_us - span.start_us
            begun = span.start_us if end is None else max(span.start_us, end)
            before[span.name] += 0.0 if end is None else max(span.start_us - end, 0.0)
            busy += max(span.end_us - begun, 0.0)
            end = span.end_us if end is None else max(end, span.end_us)
        names = sorted(took, key=lambda name: -took[name])
        kernels = tuple((name, counts[name], round(took[name], 2), round(before[name], 2)) for name in names)
        idle = sum(before.values())
        return cls(round(busy + idle, 2), round(busy, 2), round(idle, 2), round(sum(took.values()) - busy, 2), kernels)

    def as_dict(self) -> dict[str, Any]:
        """What a result keeps of it."""
        return {**asdict(self), "kernels": self.kernels[:LEADING], "count": sum(one[1] for one in self.kernels)}


def profiled(run: Any) -> list[Span]:
    """The kernels of the second of two calls of `run`, by the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    found = [one for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    first = min((one.time_range.start for one in found), default=0.0)
    return [Span(one.name, one.time_range.start - first, one.time_range.end - first) for one in found]
