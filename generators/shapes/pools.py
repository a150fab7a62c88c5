"""The pools of the preset `h200`: the GEMMs of architectures, gradients and grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from gemmdb.generators.shapes.architectures import (
    ARCHITECTURES,
    ENCODERS,
    HEAD,
    JOINED,
    Architecture,
    Item,
    Pair,
    Product,
    unique,
)

GRID = [256, 1024, 2048, 6144, 16384]
"""N and K of a log grid."""
SIDES = [128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
ODD = ([1, 7, 17, 33, 100, 257, 1009], [250, 1001, 2047, 4099, 11003], [100, 777, 2053, 4098])
TOKENS = [512, 1024, 2048, 4096, 8192]
"""Tokens of a training step: the rows of a layer, and the depth of its weight's gradient."""


def first_models() -> dict[str, Architecture]:
    """The architectures with the splits that the first part of the preset is drawn from."""
    splits = {name: [s for s in model.splits if s not in JOINED.get(name, ())] for name, model in ARCHITECTURES.items()}
    return {name: replace(ARCHITECTURES[name], splits=tuple(chosen)) for name, chosen in splits.items() if chosen}


def core_pairs() -> list[Pair]:
    """(N, K) of the most used architectures, with their query, key and value projections also as separate layers."""
    return unique(pair for pair, _ in core_products())


def core_products() -> list[Product]:
    """The same, each in the fusion context that it has inside a layer."""
    models = list(first_models().values())[:HEAD]
    apart = [((width, model.hidden), "none") for model in models for width in (model.query, model.key)]
    return list(dict.fromkeys([*(product for model in models for product in model.products()), *apart]))


def first_pairs() -> list[Pair]:
    """(N, K) of all decoders of the first part."""
    return unique(pair for model in first_models().values() for pair in model.pairs())


def all_products() -> list[Product]:
    """(N, K) of all decoders with all their splits, in their fusion contexts."""
    return list(dict.fromkeys(product for model in ARCHITECTURES.values() for product in model.products()))


def pool(op: str, rows: Sequence[int], pairs: Sequence[Pair], **rest: Any) -> list[Item]:
    """An item per M, (N, K) and value of the `rest`."""
    return [item for m, (n, k) in product(rows, pairs) for item in each({"op": op, "m": m, "n": n, "k": k}, **rest)]


def inside(op: str, rows: Sequence[int], products: Sequence[Product]) -> list[Item]:
    """An item per M and product, in the product's fusion context."""
    return [item for pair, fusion in products for item in pool(op, rows, [pair], **_context(fusion))]


def grid(op: str, rows: Sequence[int], **rest: Any) -> list[Item]:
    """A log grid over M, N and K."""
    return sizes(op, rows, GRID, GRID, **rest)


def sizes(op: str, rows: Sequence[int], columns: Sequence[int], depths: Sequence[int], **rest: Any) -> list[Item]:
    """An item per M, N, K and value of the `rest`."""
    return pool(op, rows, list(product(columns, depths)), **rest)


def gradient(layout: str, m: int, n: int, k: int) -> Item:
    """The GEMM in the backward pass of a layer [m, k] x [k, n]: `nn` for the input's gradient, `tn` for the
    weight's."""
    rows, columns, depth = (m, k, n) if layout == "nn" else (n, k, m)
    return {"op": "mm", "m": rows, "n": columns, "k": depth, "layout": layout}


def encoder_layers(op: str, **rest: Any) -> list[Item]:
    """The layers of ViT, CLIP and BERT for batches of 1 to 64."""
    batches = (1, 2, 4, 8, 16, 32, 64)
    return [
        item
        for hidden, tokens in ENCODERS.values()
        for item in pool(op, [tokens * batch for batch in batches], _layers(hidden), **rest)
    ]


def _layers(hidden: int) -> list[Pair]:
    return [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)]


def _context(fusion: str) -> dict[str, str]:
    return {} if fusion == "none" else {"fusion": fusion}


def each(item: Item, **rest: Any) -> list[Item]:
    """The item with every combination of the values in `rest`, where a list holds alternatives."""
    choices = [value if isinstance(value, list) else [value] for value in rest.values()]
    return [item | dict(zip(rest, values, strict=True)) for values in product(*choices)]
