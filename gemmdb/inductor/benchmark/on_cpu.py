"""Trials on a CPU: single calls on the host clock, in turn."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from time import perf_counter

import torch

from gemmdb.inductor.benchmark.host import Sampler
from gemmdb.inductor.benchmark.trial import FEWEST, Trial, clear, differ, inputs
from gemmdb.inductor.lower.adapter.emission import Function
from gemmdb.phases import PHASES
from gemmdb.table.measurement import Protocol

PROTOCOL = Protocol("host", "cold", 1, 20, version=2)
"""As a build's protocol, except that what the graph has just computed is read into the cache before each call."""
LONGEST_S = 3.0
"""A trial ends after this long, once it has the fewest rounds."""


@PHASES("trial")
def trial(functions: tuple[Function, Function], fakes: Sequence[torch.Tensor], warm: Sequence[bool]) -> Trial:
    """Time two functions, ATen's first, on tensors like `fakes`. `warm`: which of them are in the cache."""
    given = inputs(fakes)
    differs = _outputs_differ(functions, given)
    if differs:
        return Trial((), (), PROTOCOL, differs)
    warmed = [tensor for tensor, is_warm in zip(given, warm, strict=True) if is_warm]

    def touch() -> None:
        for tensor in warmed:
            tensor.clone()

    sampler = Sampler.of(PROTOCOL.l2, 2 * PROTOCOL.samples)
    samples: tuple[list[float], list[float]] = ([], [])
    until = perf_counter() + LONGEST_S
    gc.collect()
    gc.disable()
    try:
        for index in range(PROTOCOL.samples):
            if (index >= FEWEST and perf_counter() > until) or clear(*samples):
                break
            for which in (index % 2, 1 - index % 2):
                best_us = min(samples[which], default=math.inf)
                samples[which].append(sampler.time(functions[which], given, best_us, touch))
    finally:
        gc.enable()
    return Trial(*samples, PROTOCOL)


def _outputs_differ(functions: tuple[Function, Function], given: list[torch.Tensor]) -> bool:
    aten, ours = (list(function(list(given))) for function in functions)
    return differ(ours, aten)
