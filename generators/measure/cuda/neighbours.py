"""The small kernels between which a product stands in a program: one writes its activation, one reads its result."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.calls import Call, Tensors, launcher


def between(call: Call | None, copies: Sequence[Tensors], early: bool) -> Call:
    """`call` between its neighbours, on the copy with a number; the neighbours alone for None. `early`: each kernel
    begins before the one in front of it has ended, if `call` does so too."""

    def steps(index: int) -> torch.Tensor | None:
        names, other = copies[index], copies[(index + 1) % len(copies)]
        _copy(other["A"], names["A"], early)  # All copies have the same values.
        made = call(index) if call is not None else None
        result = names["out"] if made is None else made
        _copy(result, _sink(_bytes(result)), early)
        return made

    return steps


def _copy(source: torch.Tensor, target: torch.Tensor, early: bool) -> None:
    """Copy the memory of one tensor to that of another, which has room for it."""
    names = {"source": source, "target": target}
    size = _bytes(source)
    launcher(elementwise.neighbour(size, early), names, {"elements": size})()


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes from the first to the last element of a tensor."""
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return int(extent * tensor.element_size())


@functools.cache
def _sink(size: int) -> torch.Tensor:
    """So many bytes that a neighbour may write. Graphs use them, so they stay."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
