"""The decoder of the engine-shaped programs, and the backend that compiles its pieces. Imports torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.passes.split_module import split_module
from torch.nn import functional as F

from benchmarks.programs.building import making, noise
from benchmarks.programs.engine import MAX_ROWS
from benchmarks.programs.program import Built, Compile, Step

HINT = 64
"""The rows of the first call, for which the symbolic compile chooses."""


@dataclass(frozen=True)
class Sizes:
    """Widths of the decoder, and the length of its cache."""

    hidden: int = 4096
    heads: int = 32
    keys: int = 8
    head: int = 128
    feed: int = 14336
    layers: int = 4
    context: int = 128


SIZES = {"gpu": Sizes(), "tiny": Sizes(hidden=64, heads=4, keys=2, head=16, feed=160, layers=2, context=8)}


def _attention(qkv: Tensor, keys: Tensor, values: Tensor, head: int) -> Tensor:
    """Attention of one token per row, opaque to the compiler as an engine's is. `qkv` [rows, ...]; `keys`, `values`
    [most rows, heads, context, head]; returns [rows, heads * head]."""
    rows, heads = qkv.shape[0], keys.shape[1]
    query = qkv[:, : qkv.shape[1] - 2 * heads * head].view(rows, -1, 1, head)
    found = F.scaled_dot_product_attention(query, keys[:rows], values[:rows], enable_gqa=True)
    return found.reshape(rows, -1)


def _attention_sizes(qkv: Tensor, keys: Tensor, values: Tensor, head: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] - 2 * keys.shape[1] * head)


attention = torch.library.custom_op("gemmdb_engine::attention", _attention, mutates_args=())
attention.register_fake(_attention_sizes)


class Layer(nn.Module):
    """One layer. The cache is a buffer of its own; the linear layers have parameters."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        query, key = sizes.heads * sizes.head, sizes.keys * sizes.head
        self.head = sizes.head
        self.before, self.between = nn.RMSNorm(sizes.hidden), nn.RMSNorm(sizes.hidden)
        self.qkv = nn.Linear(sizes.hidden, query + 2 * key, bias=False)
        self.out = nn.Linear(query, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, 2 * sizes.feed, bias=False)
        self.down = nn.Linear(sizes.feed, sizes.hidden, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(MAX_ROWS, sizes.keys, sizes.context, sizes.head))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, hidden] of `x` [rows, hidden]."""
        x = x + self.out(attention(self.qkv(self.before(x)), self.keys, self.values, self.head))
        gate, up = self.up(self.between(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def built(rows: Sequence[int], size: str, device: str) -> Built:
    """The program that runs the decoder at each number of rows, compiled once."""
    sizes = SIZES[size]
    with making(device):
        model = nn.Sequential(*(Layer(sizes) for _ in range(sizes.layers)))
    inputs = [noise(one, sizes.hidden, device=device) for one in rows]
    hint = noise(HINT, sizes.hidden, device=device)
    torch._dynamo.mark_dynamic(hint, 0, min=1, max=MAX_ROWS)

    def step(compile: Compile) -> Step:
        run = compile(model)
        # An engine compiles once, without the guard by which torch would compile a single row anew.
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):
            run(hint)
        return lambda: [run(x) for x in inputs]

    def reference() -> list[Tensor]:
        exact = copy.deepcopy(model).float()
        return [exact(x.float()) for x in inputs]

    return Built(step, reference)


def compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], **how: Any) -> torch.fx.GraphModule:
    """The graph with every piece between two attentions compiled on its own, as vLLM does it."""
    number, places = 0, dict[torch.fx.Node, int]()
    for node in graph.graph.nodes:
        cut = node.target is torch.ops.gemmdb_engine.attention.default
        number += cut
        places[node] = number
        number += cut
    whole: torch.fx.GraphModule = split_module(graph, None, places.__getitem__, keep_original_order=True)
    given = [node.meta["example_value"] for node in whole.graph.find_nodes(op="placeholder")]
    with next(one.fake_mode for one in given if isinstance(one, torch._subclasses.FakeTensor)):
        _Pieces(whole, how.get("mode")).run(*given)
    return whole


class _Pieces(torch.fx.Interpreter):
    """Runs a cut graph on fake tensors, and puts compiled pieces in the place of those that are not attention."""

    def __init__(self, whole: torch.fx.GraphModule, mode: str | None) -> None:
        super().__init__(whole)
        self._options = {"config_patches": torch._inductor.list_mode_options(mode)} if mode else {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The fake result of a piece, after it has been compiled."""
        result = super().call_module(target, args, kwargs)
        piece = self.fetch_attr(target)
        if not any(node.target is torch.ops.gemmdb_engine.attention.default for node in piece.graph.nodes):
            artifact = torch._inductor.standalone_compile(
                piece, list(args), dynamic_shapes="from_graph", options=self._options
            )
            setattr(self.module, str(target), _Piece(artifact, isinstance(result, tuple)))
        return result


class _Piece(nn.Module):
    """A compiled piece, which returns a tensor where the graph does."""

    def __init__(self, artifact: Any, several: bool) -> None:
        super().__init__()
        self._artifact, self._several = artifact, several

    def forward(self, *args: Any) -> Any:
        """What the piece of the graph returns."""
        found = self._artifact(*args)
        return tuple(found) if self._several else found[0] if isinstance(found, (tuple, list)) else found
