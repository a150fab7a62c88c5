"""Our namespace of operators: `gemmdb::mixed_mm`, for products that have no operator of their own in ATen.

Only the int8-weight product needs one: it must survive from the joint stage, where its cast is still to be seen, to
the lowering. mm, addmm, int_mm and packed linears keep their own operators and carry the decision as node metadata, so
that every pass and layout rule of Inductor that names them still applies (graph.py keeps such lists as locals).
"""

from __future__ import annotations

from typing import Any

import torch

_SCHEMA = "mixed_mm(Tensor a, Tensor w, Tensor? scale=None) -> Tensor"
_library: Any = None


def _eager(a: Any, w: Any, scale: Any = None) -> Any:
    product = a @ w.to(a.dtype)
    return product if scale is None else product * scale


def _fake(a: Any, w: Any, scale: Any = None) -> Any:
    return a.new_empty((a.shape[0], w.shape[1]))


def _flops(a: Any, w: Any, *_: Any, **__: Any) -> int:
    """2 m n k, from shapes."""
    return 2 * int(a[0]) * int(a[1]) * int(w[1])


def register() -> Any:
    """Define the operator once per process; returns its overload.

    mixed_mm(a [M, K] float, w [K, N] int8 or uint8, scale [N] or None) -> [M, N] of a's dtype: a @ w, times scale.
    """
    global _library
    if _library is None:
        library = torch.library.Library("gemmdb", "DEF")
        library.define(_SCHEMA)
        library.impl("mixed_mm", _eager, "CompositeExplicitAutograd")
        torch.library.register_fake("gemmdb::mixed_mm", _fake, lib=library)
        _register_flops()
        _library = library
    return torch.ops.gemmdb.mixed_mm.default


def _register_flops() -> None:
    from torch.utils.flop_counter import register_flop_formula

    register_flop_formula(torch.ops.gemmdb.mixed_mm)(_flops)
