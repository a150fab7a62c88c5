"""Tuned GEMM kernels for `torch.compile`, looked up instead of searched.

    >>> import gemmdb
    >>> hit = gemmdb.lookup(gemmdb.Problem.gemm("mm", m=16, n=4096, k=4096, dtype="bf16"), device="NVIDIA H200")

Importing this package loads only the standard library. `gemmdb.inductor` imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gemmdb.errors import GemmdbError, InputError, MissError, TableError

if TYPE_CHECKING:
    from gemmdb.hit import Hit
    from gemmdb.kernels.config import Config
    from gemmdb.key.device import Device
    from gemmdb.key.problem import Problem, Query
    from gemmdb.key.toolchain import Toolchain
    from gemmdb.lookup import lookup
    from gemmdb.lookup.environment import refresh
    from gemmdb.settings import Policy
    from gemmdb.table.measurement import Measurement, Protocol, Status
    from gemmdb.table.verdict import Verdict

__version__ = "0.1.0"

__all__ = [
    "Config",
    "Device",
    "GemmdbError",
    "Hit",
    "InputError",
    "Measurement",
    "MissError",
    "Policy",
    "Problem",
    "Protocol",
    "Query",
    "Status",
    "TableError",
    "Toolchain",
    "Verdict",
    "lookup",
    "refresh",
]

_ON_DEMAND = {
    "Config": "kernels.config",
    "Device": "key.device",
    "Hit": "hit",
    "Measurement": "table.measurement",
    "Policy": "settings",
    "Problem": "key.problem",
    "Protocol": "table.measurement",
    "Query": "key.problem",
    "Status": "table.measurement",
    "Toolchain": "key.toolchain",
    "Verdict": "table.verdict",
    "refresh": "lookup.environment",
}
"""Public names and their modules, imported on first use, so programs without lookups have almost no overhead."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "lookup":
        return importlib.import_module("gemmdb.lookup")
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"gemmdb.{_ON_DEMAND[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
