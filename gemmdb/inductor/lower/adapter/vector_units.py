"""Vector units for Inductor's generated C++. By default every process tests each unit again, and imports torch for
it."""

from __future__ import annotations

from collections.abc import Mapping

import torch._inductor.config as inductor_config
import torch._inductor.cpu_vec_isa as vec_isa

TRUSTED: Mapping[str, str] = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
"""Environment of a process that trusts all vector units of the CPU without tests. Saves three seconds before its first
C++."""


def all_usable() -> bool:
    """Whether the compiler and the libraries support every vector unit of this CPU. If so, TRUSTED is valid for other
    processes. Tests the units that this process has not tested yet."""
    usable = vec_isa.valid_vec_isa_list()
    vec_isa.valid_vec_isa_list.cache_clear()
    with inductor_config.patch({"cpp.vec_isa_ok": True}):
        present = vec_isa.valid_vec_isa_list()
    vec_isa.valid_vec_isa_list.cache_clear()
    return bool(present == usable)


def trust() -> None:
    """Trust all vector units of the CPU in this process, as TRUSTED does in a new process."""
    inductor_config.cpp.vec_isa_ok = True
    vec_isa.valid_vec_isa_list.cache_clear()
