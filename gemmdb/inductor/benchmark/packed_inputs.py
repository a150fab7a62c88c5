"""Which inputs of a GEMM are packed numbers, for which a trial draws all bits: values of zero would be the same in any
order, and so hide a kernel that reads them in a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gemmdb.inductor.benchmark.tensors import EXPONENTS, PACKED
from gemmdb.key.int4 import MXFP4

_INT4_MM = "gemmdb.int4_mm.default"
_OPERANDS = {"aten._weight_int4pack_mm.default": (1,), _INT4_MM: (1, 3)}
"""Argument indices of the operands of a GEMM that may be words of packed numbers: the weight, and its zero points."""


def packed(node: Any) -> Iterator[tuple[Any, str]]:
    """Yield the packed tensors that a GEMM with a weight in groups reads, each with its kind for `tensors.inputs`."""
    for place in _OPERANDS.get(str(node.target), ()):
        if isinstance(node.args[place], torch.fx.Node):
            yield node.args[place], PACKED
    if str(node.target) == _INT4_MM and node.args[5] == MXFP4:
        yield node.args[2], EXPONENTS
