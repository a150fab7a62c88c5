"""Products for which a build has nothing to try but ATen."""

from __future__ import annotations

from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces.backend import Space
from gemmdb.inductor.observe.journal import ONLY_ATEN
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem


def only_aten(problem: Problem, device: Device, space: Space, effort: Effort) -> str:
    """Why ATen is the only candidate of a problem, in a phrase; empty if there are others."""
    others = [one for one in space.candidates(problem, device, effort) if one.config != ATEN]
    if any(not one.illegal for one in others):
        return ""
    return ": ".join([ONLY_ATEN, *dict.fromkeys(one.illegal for one in others)][:2])
