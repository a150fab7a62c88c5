"""The pools that the strata of the preset `h200` are drawn from: what models, gradients and grids consist of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from gemmdb.generators.models import ENCODERS, HEAD, MODELS, Item, Pair, Product, unique

GRID = [256, 1024, 2048, 6144, 16384]
"""N and K of a log grid."""


def core_pairs() -> list[Pair]:
    """(N, K) of the most used models, their query, key and value projections also apart."""
    models = list(MODELS.values())[:HEAD]
    apart = [(width, model.hidden) for model in models for width in (model.query, model.key)]
    return unique([*(pair for model in models for pair in model.pairs()), *apart])


def core_products() -> list[Product]:
    """The same in the fusion context that each has inside a layer."""
    models = list(MODELS.values())[:HEAD]
    apart = [((width, model.hidden), "none") for model in models for width in (model.query, model.key)]
    return list(dict.fromkeys([*(product for model in models for product in model.products()), *apart]))


def all_pairs() -> list[Pair]:
    """(N, K) of all decoders."""
    return unique(pair for model in MODELS.values() for pair in model.pairs())


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
    """What a layer [m, k] x [k, n] multiplies in its backward: `nn` for the input's gradient, `tn` the weight's."""
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
    """The item with every combination of values of the `rest`, in which a list is a choice."""
    choices = [value if isinstance(value, list) else [value] for value in rest.values()]
    return [item | dict(zip(rest, values, strict=True)) for values in product(*choices)]
