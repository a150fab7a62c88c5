"""Graphs with GEMMs of one activation, as if they were compiled for an H200.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch._inductor.compile_fx  # `enable` waits for it.
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.match import gemms
from gemmdb.inductor.match import horizontal as groups
from gemmdb.inductor.match.horizontal import Group
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy
from kit.devices import H200
from kit.gpu import make
from kit.sessions import FakeSession, Find, nothing

NARROW = make("narrow", block_n=16, block_k=32, stagger=0, rows="wrap")
POLICY = Policy(on_miss="aten", confirm=True, confirm_s=3.0)


def session(us: float = 5.0, policy: Policy = POLICY, config: Config = NARROW, find: Find = nothing) -> Session:
    """A session that knows one kernel for GEMMs of one activation, which takes `us` microseconds."""

    def kernel(query: Any, allowed: Callable[[Config], bool]) -> Hit | None:
        return Hit("exact", config, us, 1.0, "a table") if allowed(config) else None

    return FakeSession(find, policy, kernel=kernel)


def traced(function: Callable[..., Any], *tensors: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of `function`, with fake values."""
    return make_fx(function, tracing_mode="fake")(*tensors)


def decided(
    graph: torch.fx.GraphModule, of: Session | None = None, us: float | None = 10.0
) -> list[tuple[Any, Decision]]:
    """The GEMMs of a graph, each with the decision for ATen, of `us` microseconds each."""
    found = []
    for node in graph.graph.nodes:
        product = gemms.read(node) if node.op == "call_function" else None
        if product is not None:
            query = replace(product.query, device=H200)
            event = Event(query.problem.text, "near", ATEN.text, H200.text, expected_us=us, speedup=1.0)
            found.append((node, Decision(of or session(), query, ATEN, event)))
    return found


def grouped(graph: torch.fx.GraphModule, **options: Any) -> list[Group[Decision]]:
    """The groups of a graph."""
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    pairs = decided(graph, **options)
    return groups.find(pairs, groups.numbered(pairs, places))


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in fp8 with a scale for each row, as torchao quantises it."""
    scale = (x.abs().amax(-1, keepdim=True) / 448).float()
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A linear layer of torchao's fp8 with dynamic activations: each layer quantises its input anew."""
    values, rows = quantised(x)
    rows = rows.unsqueeze(-1).reshape(-1, 1)
    values = values.reshape(-1, values.shape[-1])
    found = torch._scaled_mm(
        values, weight.t(), rows, scale.t(), bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return found.view(*x.shape[:-1], weight.shape[0])


def half(*sizes: int) -> torch.Tensor:
    """A random tensor in bf16."""
    return torch.randn(*sizes).bfloat16()
