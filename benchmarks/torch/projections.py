"""The work of `invariance`: the projections of a layer, in several ways, for several numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gemmdb.inductor
from benchmarks.torch.llama import Shape
from gemmdb.kernels.config import Config

NAMES = ("output", "query, key and value, with a bias", "gate and up, with a GELU", "down")
"""The results of Projections, in order."""
Results = dict[int, tuple[Tensor, ...]]
"""The first row of each result, by the number of rows."""


class Projections(nn.Module):
    """The GEMMs of a decoder layer, each of an input of its own. `weights`: [N, K] in bf16."""

    def __init__(self, device: str, shape: Shape | None = None) -> None:
        super().__init__()
        shape = shape or Shape()
        torch.manual_seed(0)
        query, key = shape.heads * shape.head, shape.key_heads * shape.head
        sizes = (
            (shape.hidden, query), (query + 2 * key, shape.hidden), (2 * shape.feed, shape.hidden),
            (shape.hidden, shape.feed),
        )  # fmt: skip
        self.weights = [torch.randn(n, k, device=device).to(torch.bfloat16) * k**-0.5 for n, k in sizes]
        self.bias = torch.randn(query + 2 * key, device=device).to(torch.bfloat16)

    def forward(self, x: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
        """`x` [rows, hidden], `wide` [rows, feed]. Returns the results in the order of NAMES."""
        output, mixed, up, down = self.weights
        return F.linear(x, output), F.linear(x, mixed, self.bias), F.gelu(F.linear(x, up)), F.linear(wide, down)


def inputs(rows: int, device: str, shape: Shape | None = None) -> tuple[Tensor, Tensor]:
    """The arguments of Projections."""
    shape = shape or Shape()
    torch.manual_seed(1)
    x, wide = (torch.randn(rows, size, device=device).to(torch.bfloat16) for size in (shape.hidden, shape.feed))
    return x, wide


def compiled(program: nn.Module, invariant: bool = False) -> Callable[..., Any]:
    """The program in default mode, or with gemmdb's batch invariance; compiled for each number of rows."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    how: dict[str, Any] = {"backend": "gemmdb", "options": {"gemmdb.batch_invariant": True}} if invariant else {}
    run: Callable[..., Any] = torch.compile(program, dynamic=False, **how)
    return run


def results(run: Callable[..., Any], given: tuple[Tensor, Tensor], rows: Sequence[int]) -> Results:
    """The first rows of the results for the first of the `given` rows."""
    return {m: tuple(one[0].clone() for one in run(*(x[:m].clone() for x in given))) for m in rows}


def symbolic(program: nn.Module, given: tuple[Tensor, Tensor], sizes: tuple[Sequence[int], int]) -> Results:
    """The first rows of one compile for all numbers of rows. `sizes`: these, and that of the first call."""
    rows, hint = sizes
    torch._dynamo.reset()
    run = torch.compile(program, backend="gemmdb", options={"gemmdb.batch_invariant": True})
    marked = [x[:hint].clone() for x in given]
    for x in marked:
        torch._dynamo.mark_dynamic(x, 0, min=2, max=len(given[0]))
    run(*marked)
    with torch._dynamo.config.patch(error_on_recompile=True):
        return results(run, given, rows)


def kernels(x: Tensor, weight: Tensor, configs: Mapping[str, Config]) -> dict[str, Tensor]:
    """The result of each kernel for 16 rows of `x` [rows, K], times the transpose of `weight` [N, K], bf16 or int8."""
    found = {}
    for name, config in configs.items():
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with gemmdb.inductor.force(config):
            result = torch.compile(lambda x, weight: x @ weight.to(x.dtype).t())(x[:16].clone(), weight)
        if config.text in {one["config"] for one in gemmdb.inductor.stats()["products"]}:
            found[name] = result
    return found


def covered() -> Any:
    """What `stats()` says of batch invariance since the latest `compiled`."""
    return gemmdb.inductor.stats()["batch_invariant"]
