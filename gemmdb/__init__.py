"""Tuned GEMM kernels for `torch.compile`, looked up instead of searched.

    >>> import gemmdb
    >>> hit = gemmdb.lookup(gemmdb.Problem.gemm("mm", m=16, n=4096, k=4096, dtype="bf16", device="NVIDIA H200"))

Importing this loads the standard library only; `gemmdb.inductor` is what imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gemmdb.api import lookup
from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.errors import GemmdbError, InputError, MissError, TableError
from gemmdb.hit import Hit
from gemmdb.problem import Problem, Query
from gemmdb.settings import Policy
from gemmdb.toolchain import Toolchain

if TYPE_CHECKING:
    from gemmdb.measurement import Measurement, Protocol, Status
    from gemmdb.verdict import Verdict

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
]

_ON_DEMAND = {"Measurement": "measurement", "Protocol": "measurement", "Status": "measurement", "Verdict": "verdict"}
"""Names that only building and reading tables needs: a fifth of what `import gemmdb` would cost."""


def __getattr__(name: str) -> Any:
    """The names that are imported at their first use."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"gemmdb.{_ON_DEMAND[name]}"), name)
