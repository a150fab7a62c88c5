"""Tuned GEMM kernels for `torch.compile`, looked up instead of searched.

    >>> import gemmdb
    >>> hit = gemmdb.lookup(gemmdb.Problem.gemm("mm", m=16, n=4096, k=4096, dtype="bf16", device="NVIDIA H200"))

Importing this loads the standard library only; `gemmdb.inductor` is what imports torch.
"""

from gemmdb.api import lookup
from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.errors import GemmdbError, InputError, MissError, TableError
from gemmdb.hit import Hit
from gemmdb.measurement import Measurement, Protocol, Status
from gemmdb.problem import Problem, Query
from gemmdb.settings import Policy
from gemmdb.toolchain import Toolchain
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
