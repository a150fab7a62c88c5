"""Programs that dequantise a weight in groups and multiply it: what is found in their graphs, and what the operator in
the weight's place computes.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb.inductor import force
from gemmdb.inductor.match import int4, ops
from gemmdb.kernels.config import ATEN
from kit import inductor as helpers
from kit.program_batch import ProgramBatch, by_rows, compiled


def of_layer(layer: Any, x: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A layer as a program whose inputs are x and the layer's buffers, and these inputs."""
    buffers = dict(layer.named_buffers())

    def program(x: Any, *tensors: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(buffers, tensors, strict=True)), (x,))

    return program, (x, *buffers.values())


def traced(program: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The graph of a program, without the aliases of what is written in place."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in inputs]
        return make_fx(torch.func.functionalize(program), select_decomp_table())(*fakes)


def weights(graph: Any) -> list[Any]:
    """The weights in groups that are found in a graph."""
    return [one for one in map(int4.find, graph.graph.nodes) if one]


def replaced(program: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The groups of the one weight of a program. The graph that has the operator in its place has to compute what the
    program does."""
    graph = traced(program, inputs)
    (found,) = weights(graph)
    found.rewrite(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert [node.target for node in graph.graph.nodes].count(ops.overload("int4_mm")) == 1
    close(graph(*inputs), program(*inputs))
    return found.groups


def compiled_problems(layers: Sequence[Any], k: int) -> list[str]:
    """The problems that the layers compile to, in their order, which ATen serves. Each gets an activation [m, k] of
    bf16, and m counts from 8."""
    rows = range(8, 8 + len(layers))
    with torch.no_grad(), force(ATEN):
        compiled(layers, [(torch.randn(m, k).bfloat16(),) for m in rows])
    found = by_rows()
    assert {config for _, config in found.values()} == {ATEN}
    assert gemmdb.inductor.stats()["errors"] == []
    return [found.pop(m)[0] for m in rows if m in found] + [text for text, _ in found.values()]


def check_problems(layers: Sequence[Any], sizes: tuple[int, int], ends: Sequence[tuple[str, str]]) -> None:
    """Each of the layers compiles to a mixed_mm with N and K of these `sizes`. `ends`: the dtype of its weight, and how
    its text ends."""
    n, k = sizes
    for m, (text, (weight, end)) in enumerate(zip(compiled_problems(layers, k), ends, strict=True), 8):
        assert text.startswith(f"mixed_mm m={m} n={n} k={k} a=bf16:row:8 b={weight}:col:16 out=bf16 bias=none ")
        assert text.endswith(end)


def lowered_to_aten(layers: Sequence[Any], xs: Sequence[Any], calls: Sequence[tuple[Any, ...]]) -> None:
    """Where no kernel multiplies the weight, the operator is elementwise work and ATen's GEMM. Its calls, one for each
    layer and compiled as one graph, have to compute what the layers do, and so has the operator itself."""
    operator = ops.overload("int4_mm")
    with torch.no_grad(), force(ATEN):
        programs = [lambda *given, rest=call[3:]: operator(*given, *rest) for call in calls]
        tensors = [(x, *call[:3]) for x, call in zip(xs, calls, strict=True)]
        found = helpers.compiled(ProgramBatch(programs), *tensors)
        for layer, x, call, one in zip(layers, xs, calls, found, strict=True):
            close(one, layer(x))
            close(operator(x, *call), layer(x))


def close(found: Any, wanted: Any) -> None:
    """Within a hundredth of the largest value."""
    assert (found.float() - wanted.float()).abs().max() <= 0.01 * wanted.float().abs().max()
