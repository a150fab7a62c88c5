"""Lines of the output code inside of blocks that run only sometimes, in Python and in C++ alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.virtualized import V


class Scope:
    """Context manager for a block: the C++ wrapper forgets which variables were defined in it. Inductor writes code in
    two passes, and defines variables in both."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        names = ("codegen_int_array_var_cache", "kernel_numel_expr") if V.graph.cpp_wrapper else ()
        self._before = {name: copy.copy(getattr(self._wrapper, name)) for name in names}

    def __exit__(self, *error: object) -> None:
        vars(self._wrapper).update(self._before)


@dataclass
class Allocation(WrapperLine):  # type: ignore[misc]
    """The allocation of a buffer that only one branch needs, which Inductor must not plan: the memory of others may be
    reused only where no branch decides."""

    wrapper: Any
    node: Any

    def codegen(self, code: Any) -> None:
        code.writeline(self.wrapper.make_buffer_allocation(self.node))
