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


@pytest.mark.parametrize("workspace", [None, workspaces.of_size("space", 64, torch.device("cpu"))])
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
def test_the_cpp_wrapper_gets_a_workspace_for_the_hint_s_rows(cpp_wrapper: bool, runs: bool) -> None:
    one = 4 * 16 * 64  # Elements of a tile's partial sums.
    with V.set_graph_handler(graph(cpp_wrapper)), inductor_config.patch({"triton.autotune_at_compile_time": runs}):
        found = [triton.template_kernel(SPLIT, {}, MM, {"m": (1, most)}).partials // one for most in (16, 64, 512)]
        assert found == [4 * 64 if cpp_wrapper and runs else 64, 4 * 64, 32 * 64]


def test_a_workspace_for_the_hint_s_rows_may_be_too_large() -> None:
    many = Problem.gemm("mm", m=8192, n=4096, k=14336)
    runs = inductor_config.patch({"triton.autotune_at_compile_time": True})
    with V.set_graph_handler(graph(True)), runs, pytest.raises(triton.Refused, match="too small"):
        triton.template_kernel(SPLIT, {}, many, {"m": (1, 16)})


def test_inductor_still_has_what_leaves_a_kernel_out() -> None:
    """If it goes, so does the protection of other tensors."""
    import inspect

    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    assert "kernel_name not in self.kernel_autotune_names" in inspect.getsource(PythonWrapperCodegen)
