"""Writes the shape presets for GPUs, derived from the published dimensions of open architectures.

    python -m gemmdb.generators.shapes.write_presets FOLDER

This writes llm, llm-dense, vision, grid, odd and those whose names begin with h200, the JSON files in `presets/`; a
test keeps them equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gemmdb.generators.shapes import h200, h200_batches, h200_epilogues, h200_grouped, h200_int4, h200_scaled
from gemmdb.generators.shapes.architectures import (
    ARCHITECTURES,
    DECODE,
    DENSE,
    ENCODERS,
    GPT2,
    HEAD,
    PREFILL,
    Item,
    Pair,
    unique,
)
from gemmdb.generators.shapes.pools import GRID, ODD

SOME = [16, 512, 4096]
FLOATS: list[Item] = [{"dtype": ["bf16", "fp16"]}, {"dtype": "fp32", "tf32": [False, True]}]
"""The precisions of mm and addmm; each item is a set of alternatives."""


def llm() -> list[Item]:
    """The projections of the most used architectures at decode and prefill, with weight-only int8 first, where the
    gains are largest."""
    used = list(ARCHITECTURES.values())[:HEAD]
    pairs = unique(pair for model in used for pair in model.pairs())
    items: list[Item] = [_item("mixed_mm", DECODE, pair, fusion="scale") for pair in pairs]
    items += [_item("int_mm", [32, 64, *PREFILL], pair, fusion=["scale", "none"]) for pair in pairs]
    products = dict.fromkeys(product for model in used for product in model.products())
    items += [_item("mm", [*DECODE, *PREFILL], pair, fusion=fusion) for pair, fusion in products]
    items += [_item("mixed_mm", PREFILL, pair, fusion="scale") for pair in pairs]
    return items


def llm_dense() -> list[Item]:
    """All architectures, every M, all spellings and dtypes, biases for GPT-2, and the gradient layouts of training."""
    pairs = unique(pair for model in ARCHITECTURES.values() for pair in model.pairs())
    items: list[Item] = []
    for pair in pairs:
        items.append(_item("mixed_mm", DENSE, pair, fusion=["scale", "none"], dtype=["bf16", "fp16"]))
        items.append(_item("mixed_mm", DECODE, pair, fusion="scale", dtype=["bf16", "fp16"], weight_dtype="uint8"))
        items.append(_item("int_mm", [m for m in DENSE if m > 16], pair, fusion=["scale", "none"]))
        items.append(_item("mm", DENSE, pair, dtype=["bf16", "fp16"], fusion=["none", "pointwise"]))
        items.append(_item("mm", SOME, pair, dtype="fp32", tf32=[False, True]))
        items += _gradients("mm", pair)
    for pair in unique(pair for model in GPT2.values() for pair in model.pairs()):
        items += _biased(pair)
        items += [_item("mm", DENSE, pair, **dtype) for dtype in FLOATS]
        items += [_item(_biased_op(dtype), DENSE, pair, fusion="pointwise", **dtype) for dtype in FLOATS]
        items += [*_gradients("mm", pair), *_gradients("addmm", pair, bias="full")]
    return items


def _biased(pair: Pair) -> list[Item]:
    """A layer with a bias, its weight stored [N, K] as in `Linear` or [K, N] as in GPT-2's `Conv1D`."""
    both = ["nt", "nn"]
    items = [_item("addmm", DENSE, pair, layout=both, **dtype) for dtype in FLOATS]
    others = ["full", "column"]
    return [*items, *(_item("addmm", SOME, pair, layout=both, bias=others, **dtype) for dtype in FLOATS)]


def _biased_op(dtype: Item) -> str:
    """The op of a layer with a bias that something elementwise follows, on a GPU: Inductor adds a bias in fp32 there,
    and leaves one in half precision to the product."""
    return "mm" if dtype.get("dtype") == "fp32" else "addmm"


def _gradients(op: str, pair: Pair, **rest: Any) -> list[Item]:
    """The GEMMs of a training step of 512 to 8,192 tokens: `nn` for the input's gradient, `tn` for the weight's, which
    is an addmm if it is added to that of an earlier step."""
    (n, k), tokens = pair, [512, 2048, 8192]
    shapes = ({"m": tokens, "n": k, "k": n, "layout": "nn"}, {"m": n, "n": k, "k": tokens, "layout": "tn"})
    return [{"op": op, **shape, **rest, **dtype} for shape in shapes for dtype in FLOATS]


def vision() -> list[Item]:
    """ViT, CLIP and BERT layers for batches of 1 to 64, the wide ones also with their GELU."""
    items = []
    for hidden, tokens in ENCODERS.values():
        rows = [tokens * batch for batch in (1, 2, 4, 8, 16, 32, 64)]
        for pair in ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
            for dtype in FLOATS:
                items += [_item(op, rows, pair, **dtype) for op in ("addmm", "mm")]
                after = "pointwise:math" if pair[0] == 4 * hidden else "pointwise"
                items.append(_item(_biased_op(dtype), rows, pair, fusion=after, **dtype))
            items.append(_item("mixed_mm", rows, pair, fusion="scale"))
            items.append(_item("int_mm", [m for m in rows if m > 16], pair, fusion="scale"))
    return items


def grid() -> list[Item]:
    """Square powers of two, and a log grid over M, N and K for sizes of no known architecture."""
    items: list[Item] = []
    for side in [2**power for power in range(7, 15)]:
        square = {"m": side, "n": side, "k": side}
        items += [{"op": ["mm", "addmm"], **square, **dtype} for dtype in FLOATS]
        items.append({"op": "int_mm", **square})
        items.append({"op": "mixed_mm", **square, "dtype": ["bf16", "fp16"], "fusion": "scale"})
    items.append({"op": ["mm", "mixed_mm"], "m": [4**power for power in range(8)], "n": GRID, "k": GRID})
    items.append({"op": "int_mm", "m": [32, 128, 512, 2048, 8192], "n": GRID, "k": GRID})
    items.append({"op": "addmm", "m": [16, 256, 4096], "n": GRID, "k": [1024, 6144], "bias": ["1d", "full", "column"]})
    return items


def odd() -> list[Item]:
    """Primes and sizes that are not multiples of 8 or 16, where loads cannot be wide and padding is an alternative."""
    rows, columns, depths = ODD
    common = {"m": rows, "n": columns, "k": depths}
    items = [{"op": op, **common, **dtype} for op in ("mm", "addmm") for dtype in FLOATS]
    return [
        *items,
        {"op": "mm", **common, "layout": ["nn", "tn"], "dtype": ["bf16", "fp16"]},
        {"op": "mixed_mm", **common, "dtype": ["bf16", "fp16"], "fusion": "scale"},
        {"op": "int_mm", "m": [17, 33, 100, 257], "n": [248, 1000, 4104], "k": [104, 776, 4104]},
    ]


def _item(op: str, rows: list[int], pair: Pair, **rest: Any) -> Item:
    return {"op": op, "m": rows, "n": pair[0], "k": pair[1], **rest}


PRESETS = {
    "llm": (llm, "Projections of the most used open language models, at decode and prefill."),
    "llm-dense": (llm_dense, "Projections of the Llama, Mistral, Mixtral, Qwen and GPT-2 families over every M."),
    "vision": (vision, "Layers of ViT, CLIP and BERT."),
    "grid": (grid, "Square powers of two and a log grid."),
    "h200": (h200.items, "What the shipped table of a data-centre GPU covers; any prefix is a sample."),
    "h200-epilogues": (h200_epilogues.items, "Layers of common models with their epilogues, the most used first."),
    "h200-int4": (h200_int4.items, "Projections of decoders with int4 weights, tiled and in bytes."),
    "h200-bmm": (h200_batches.items, "Products of batches: attention written out, adapters, MLA, blocks, experts."),
    "h200-scaled": (h200_scaled.items, "Products of fp8 operands with scales: projections of open language models."),
    "h200-grouped": (h200_grouped.items, "Experts of open mixtures, forward and in training, the most used first."),
    "odd": (odd, "Primes and sizes that are no multiple of 8 or 16."),
}


def text(name: str) -> str:
    """The JSON of a preset, one item per line."""
    make, description = PRESETS[name]
    lines = ",\n".join(f"    {json.dumps(item)}" for item in make())
    return f'{{\n  "description": {json.dumps(description)},\n  "problems": [\n{lines}\n  ]\n}}\n'


def main(folder: Path) -> None:
    """Write every preset into `folder`."""
    for name in PRESETS:
        (folder / f"{name}.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
