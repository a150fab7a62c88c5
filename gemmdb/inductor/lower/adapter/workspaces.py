"""Workspaces that only some of the kernels of a graph need, where the number of rows chooses the kernel.

An allocation takes the host microseconds, and zeroing is a launch. Only the kernel that runs pays for what it needs: a
graph whose rows are ATen's has no more calls than in default mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode
from torch._inductor.codegen.wrapper import AllocateLine, WrapperLine
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter.codegen import WORKSPACE
from gemmdb.inductor.lower.adapter.wrapper_lines import Scope


def shared(workspace: WorkspaceArg) -> WorkspaceArg:
    """Return the workspace of a kernel as the part of the one that all kernels on its GPU share."""
    return replace(workspace, outer_name=f"{WORKSPACE}_{workspace.device.index}")


class _Deferred(AllocateLine):  # type: ignore[misc]
    """What the wrapper knows as the allocation of a shared workspace, whose line it does not write. It has the largest
    size that any kernel of the graph needs."""


def defer(wrapper: Any, workspace: WorkspaceArg) -> None:
    """Have the kernels of the graph allocate their shared workspace, unless that has been written before."""
    known = wrapper.allocated_workspaces
    if workspace.get_name() not in known:
        known[workspace.get_name()] = _Deferred(wrapper, workspace)
        empty = "RAIIAtenTensorHandle {};" if V.graph.cpp_wrapper else "{} = None"
        wrapper.writeline(empty.format(workspace.get_name()))
    wrapper.generate_workspace_allocation(workspace)


def ensure(wrapper: Any, workspace: WorkspaceArg) -> None:
    """Write the allocation before the call of a kernel, if it was deferred. The first kernel that runs allocates and
    zeroes; each leaves the counters at zero."""
    known = wrapper.allocated_workspaces.get(workspace.get_name())
    if isinstance(known, _Deferred):
        wrapper.writeline(_Ensured(wrapper, known))


@dataclass
class _Ensured(WrapperLine):  # type: ignore[misc]
    """The lines that allocate and zero a workspace unless an earlier kernel has done so."""

    wrapper: Any
    allocated: _Deferred

    def codegen(self, code: Any) -> None:
        node, name, cpp = self.allocated.node, self.allocated.node.get_name(), V.graph.cpp_wrapper
        code.writeline(f"if (!{name}.get()) {{" if cpp else f"if {name} is None:")
        with code.indent(), Scope(self.wrapper):
            # In C++ an allocation defines a variable, which would end with this block.
            made = replace(node, outer_name=f"{name}_made") if cpp else node
            code.writeline(self.wrapper.make_buffer_allocation(made))
            if cpp:
                code.writeline(f"{name} = std::move({made.get_name()});")
            code.writeline(self.wrapper.make_zero_buffer(name))
        if cpp:
            code.writeline("}")


def of_size(name: str, size: int, device: torch.device) -> WorkspaceArg:
    """Return so many bytes, for an `Allocation`."""
    return WorkspaceArg(count=size, zero_mode=WorkspaceZeroMode.UNINITIALIZED, device=device, outer_name=name)
