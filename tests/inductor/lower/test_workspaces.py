"""Workspaces of kernels that serve a part of a range of rows, where Inductor runs kernels while it compiles.

`standalone_compile`, the C++ wrapper and AOTInductor run each Triton kernel once, at the hint's sizes. A kernel for
fewer rows would write past the end of its workspace there, into other tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make
from torch._inductor import config as inductor_config
from torch._inductor.select_algorithm import TritonTemplateKernel
from torch._inductor.virtualized import V

from gemmdb import Problem
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import templates, workspaces

SPLIT = make("narrow", block_m=16, block_n=64, split_k=4)
MM = Problem.gemm("mm", m=64, n=4096, k=14336)
"""With the hint's rows."""


def graph(cpp_wrapper: bool) -> Any:
    wrapper = SimpleNamespace(kernel_autotune_names=set(), allocated_workspaces={})
    return SimpleNamespace(cpp_wrapper=cpp_wrapper, wrapper_code=wrapper)


@pytest.mark.parametrize("workspace", [None, workspaces.uninitialised("space", 64, torch.device("cpu"))])
@pytest.mark.parametrize("cpp_wrapper", [False, True])
def test_a_kernel_with_a_workspace_is_not_run_while_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, workspace: object, cpp_wrapper: bool
) -> None:
    """The C++ wrapper needs the run: it learns from it how to launch the kernel."""
    called: list[str] = []
    monkeypatch.setattr(TritonTemplateKernel, "call_kernel", lambda self, name, *args: called.append(name))
    kernel = templates._Kernel.__new__(templates._Kernel)
    kernel.workspace_arg = workspace
    with V.set_graph_handler(graph(cpp_wrapper)):
        kernel.call_kernel("triton_tem_0", None)
        left_out = V.graph.wrapper_code.kernel_autotune_names
    assert called == ["triton_tem_0"]
    assert left_out == ({"triton_tem_0"} if workspace and not cpp_wrapper else set())


@pytest.mark.parametrize(("cpp_wrapper", "runs"), [(True, True), (True, False), (False, True)])
def test_the_cpp_wrapper_gets_no_kernel_for_fewer_rows_than_the_hint_s(cpp_wrapper: bool, runs: bool) -> None:
    with V.set_graph_handler(graph(cpp_wrapper)), inductor_config.patch({"triton.autotune_at_compile_time": runs}):
        for most in (64, 512):
            assert triton.template_kernel(SPLIT, {}, MM, {"m": (1, most)}).partials > 0
        if cpp_wrapper and runs:
            with pytest.raises(triton.Refused, match="at the hint's rows"):
                triton.template_kernel(SPLIT, {}, MM, {"m": (1, 16)})
        else:
            few = triton.template_kernel(SPLIT, {}, MM, {"m": (1, 16)})
            assert few.partials == 64 * 4 * 16 * 64


def test_inductor_still_has_what_leaves_a_kernel_out() -> None:
    """If it goes, so does the protection of other tensors."""
    import inspect

    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    assert "kernel_name not in self.kernel_autotune_names" in inspect.getsource(PythonWrapperCodegen)
