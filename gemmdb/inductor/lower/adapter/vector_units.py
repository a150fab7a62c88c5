"""The vector units that Inductor generates C++ for. Every process tries each of them again, and imports torch to."""

from __future__ import annotations

from collections.abc import Mapping

import torch._inductor.config as inductor_config
import torch._inductor.cpu_vec_isa as vec_isa

TRUSTED: Mapping[str, str] = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
"""The environment of a process that trusts all vector units of the CPU without trying them. It saves three seconds
before its first C++."""


def all_usable() -> bool:
    """Whether the compiler and the libraries can use every vector unit of this CPU. If so, TRUSTED is right for other
    processes. Tries the units that this process has not tried yet."""
    usable = vec_isa.valid_vec_isa_list()
    vec_isa.valid_vec_isa_list.cache_clear()
    with inductor_config.patch({"cpp.vec_isa_ok": True}):
        present = vec_isa.valid_vec_isa_list()
    vec_isa.valid_vec_isa_list.cache_clear()
    return bool(present == usable)


def trust() -> None:
    """Trust all vector units of the CPU in this process, as TRUSTED does in a process to come."""
    inductor_config.cpp.vec_isa_ok = True
    vec_isa.valid_vec_isa_list.cache_clear()
