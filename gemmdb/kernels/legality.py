"""Which config may run on which problem at all. Each kernel's own rules are in its folder, with their reasons."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import rules
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str] = ()) -> str | None:
    """Why `config` cannot run on `problem`, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed when the
    kernel is compiled."""
    reason = rules.unsigned(problem, device) or rules.unpacked(config, problem)
    return reason or config.spec.illegal(config, problem, device, symbolic)
