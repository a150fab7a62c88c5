"""What a GPU would be handed: the lowering as it is, with an H200's rules, up to where a GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.lowered import Operand, Output
from torch._inductor import graph, utils
from torch._inductor.fx_passes import mkldnn_fusion
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import cutlass, inductor_templates, templates
from gemmdb.inductor.match import extract


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that would have been generated; what is served instead is ATen. Inductor has to think of
    inputs on a CPU as it does of those on a GPU, which it copies when they begin at no multiple of 16 bytes although
    the one did that it compiled for."""
    found: list[str] = []

    def stop(kernel: Any, *rest: object) -> object:
        found.append(getattr(kernel, "template", "other"))
        raise triton.Refused("that far")

    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    # A CPU with bf16 instructions has a GEMM of its own for frozen weights.
    monkeypatch.setattr(mkldnn_fusion, "is_mkldnn_bf16_supported", lambda device: False, raising=False)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(templates, "multiprocessors", lambda node: 132)
    monkeypatch.setattr(templates, "gemm", stop)
    monkeypatch.setattr(templates, "choice", stop)
    monkeypatch.setattr(inductor_templates, "gemm", stop)
    monkeypatch.setattr(inductor_templates, "tma_constants", lambda *orders: {})
    monkeypatch.setattr(cutlass, "compiler_rejection", lambda: None)
    monkeypatch.setattr(cutlass, "gemm", stop)
    return found


@pytest.fixture
def tensor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operand]:
    """Makes inputs of a graph that is being lowered. What is missing on this machine is nvcc, not the renderer."""
    monkeypatch.setattr(cutlass, "compiler_rejection", lambda: None)
    lowered = GraphLowering(torch.fx.symbolic_trace(lambda x: x))
    lowered.wrapper_code = Output()
    with V.set_graph_handler(lowered):
        yield Operand(lowered)
