"""Write the preset `dense`: the linear layers of current models (`benchmarks/dense/models.py`), dense in M.

    python -m benchmarks.dense preset [--out generators/presets/dense.json]
    python -m benchmarks.dense preset --residual [--out generators/presets/residual.json]

`--residual` writes the preset `residual`: the layers of decoders whose output is added to a residual, which is the bias
of an addmm where the program's tensors have two dimensions, as in serving engines.

M lies close together up to 512, and beyond that where a wave of tiles is full and where the next one begins. Layers of
LEADING models get every M, others every third one, each with another offset. Any prefix of the preset is a spread over
layers, M, dtypes and layouts, so a build can stop at any time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.dense import models
from benchmarks.dense.models import Layer, Model, layers_of

PRESETS = ROOT / "gemmdb" / "generators" / "presets"
LEADING = (
    "Llama 3.1 8B", "Llama 3 70B", "Qwen 2.5 7B", "Qwen 3 8B", "Llama 3.2 1B", "Llama 3.2 3B",
    "DeepSeek-V3, dense parts",
)  # fmt: skip
"""The models whose layers get every M."""
ROWS = (
    17, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 320, 384, 448, 512, 640,
    768, 1024, 1536, 2048, 3072, 4096,
)  # fmt: skip
RESIDUAL_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""M of the preset `residual`: what ranges of M are looked up at, and sizes between."""
MORE_RESIDUAL_ROWS = (40, 56, 80, 112, 144, 160, 176, 224, 288, 320, 448, 640, 768, 1536, 3072)
"""M of LEADING layers that the preset lists after all others, so that ranges lose less between the sizes above."""
HEAD_ROWS = (17, 24, 32, 48, 64)
"""M of an lm_head, which runs on the last token of each sequence only."""
IMAGE_ROWS = (197, 257, 394, 577, 729, 1154, 1576, 2056)
"""Tokens of images: 14 x 14 and 16 x 16 patches with a class token, 24 x 24, 27 x 27, and batches of them."""
LATENT_ROWS = (154, 333, 512, 1024, 1178, 1536, 4096, 4608)
"""Tokens of text and latents of diffusion transformers, separate and joined."""
TRAINED_TOKENS = (64, 200, 256, 512, 1000, 1024, 2048, 4096, 8192)
"""Tokens of a training step."""
PROCESSORS = 132
"""Streaming multiprocessors of an H100 and an H200."""
TILES = ((128, 128), (128, 256), (256, 128))
"""Tiles of M x N."""
WAVES, FIRST_WAVES = (1, 2, 3, 4), (1, 2)
"""The waves that are filled, and those behind which the next M is listed too."""
LOWEST_STEP, HIGHEST_STEP = 100, 4096
"""The range of M in which steps are computed."""
SHARE = 3
"""Layers of other models get one M in three."""
RARE = 16
"""fp16 and epilogues get one M in so many."""
GOLDEN, BITS = 0.6180339887498949, 7
"""The offset from one series to the next, and the binary digits of an index."""
EPILOGUES = {"residual": "pointwise:reads1", "gate": "pointwise:math:reads1", "activation": "pointwise:math"}
"""The epilogue of a layer by its role, as Inductor fuses it (see `gemmdb.key.epilogue`)."""
STEP_ROWS = 16
"""How far behind a full wave the next M lies."""
Series = list[dict[str, Any]]
"""Problems of one layer that differ in M only, as items of a shapes file."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, help="the file to write; default: the preset's own")
    parser.add_argument("--residual", action="store_true", help="the preset `residual` instead of `dense`")


def main(options: argparse.Namespace) -> None:
    """Write the file and print how many problems it has."""
    out = options.out or PRESETS / ("residual.json" if options.residual else "dense.json")
    found = problems(options.residual)
    out.write_text(text(found, RESIDUAL if options.residual else DENSE))
    print(f"{out}: {len(found)} problems")


DENSE = "Dense layers of current models, close together in M; any prefix is a spread."
RESIDUAL = "Layers of decoders whose output is added to a residual; any prefix is a spread."


def text(found: Series, description: str) -> str:
    """The preset as it is stored: a problem per line, and the models that it was made from."""
    described = {name: list(asdict(model).values()) for name, model in models.DECODERS.items()}
    lines = ",\n".join(f"    {json.dumps(item)}" for item in found)
    head = {
        "description": description,
        "decoders": "name: [hidden, heads, kv_heads, head, ffn, vocab, bias, shards, gated]",
    }
    opening = "".join(f'  "{name}": {json.dumps(value)},\n' for name, value in head.items())
    listed = ",\n".join(f"    {json.dumps(name)}: {json.dumps(values)}" for name, values in described.items())
    return f'{{\n{opening}  "models": {{\n{listed}\n  }},\n  "problems": [\n{lines}\n  ]\n}}\n'


def problems(residual: bool = False) -> Series:
    """All problems as items of a shapes file, distinct, in the order of the preset `dense` or `residual`."""
    every = (residuals(), more_residuals()) if residual else (every_series(),)
    return list({json.dumps(item): item for part in every for item in spread(part)}.values())


def spread(every: Iterable[Series]) -> Series:
    """The problems of several series in an order any prefix of which is a spread over them."""
    placed = sorted(
        ((place(index, number), number, index, item) for number, series in enumerate(every)
         for index, item in enumerate(series)),
        key=lambda one: one[:3],
    )  # fmt: skip
    return [item for *_, item in placed]


def place(index: int, number: int) -> float:
    """Where the preset lists a problem, from 0 to 1, by its index in series `number`: a van der Corput sequence, which
    spreads each part of the preset over a series, shifted by another offset for each series."""
    spread: float = int(f"{index:0{BITS}b}"[::-1], 2) / 2.0**BITS
    return (spread + number * GOLDEN) % 1


def every_series() -> Iterator[Series]:
    """The series of all layers and classes."""
    known = models.DECODERS | models.OTHERS
    leading = layers_of([known[name] for name in LEADING])
    more: tuple[Model, ...] = (*models.ENCODERS.values(), *models.CONVOLUTIONS.values())
    others = [layer for layer in layers_of([*known.values(), *more]) if layer not in leading]
    for number, layer in enumerate(leading):
        yield series(layer, rows_of(layer))
        yield from rare(layer, rows_of(layer), number)
    for number, layer in enumerate(others):
        yield series(layer, every(SHARE, rows_of(layer), number))
        yield from rare(layer, rows_of(layer), number)
    for listed, rows in ((models.VISION, IMAGE_ROWS), (models.DIFFUSION, LATENT_ROWS)):
        for number, layer in enumerate(layers_of(listed.values())):
            yield series(layer, sorted({*rows, *every(SHARE, rows_of(layer), number)}))
            yield from rare(layer, rows, number)
    for number, layer in enumerate(layers_of(models.TRAINED.values())):
        yield from backward(layer, every(2, TRAINED_TOKENS, number))


def residuals() -> Iterator[Series]:
    """The series of all layers that are added to a residual and have no bias of their own."""
    known = models.DECODERS | models.OTHERS
    leading = layers_of([known[name] for name in LEADING])
    listed = list(dict.fromkeys((*leading, *layers_of(known.values()))))
    added = [layer for model in known.values() for layer in model.layers() if layer.role == "residual"]
    # Some are listed in another role, which they have in another model.
    listed += [layer for layer in dict.fromkeys(added) if listed[listed.index(layer)].role != "residual"]
    for number, layer in enumerate(listed):
        if layer.role == "residual" and not layer.bias:
            yield series(layer, RESIDUAL_ROWS if layer in leading else every(2, RESIDUAL_ROWS, number), bias="full")


def more_residuals() -> Iterator[Series]:
    """The series of LEADING layers that are added to a residual, at further M."""
    leading = layers_of([(models.DECODERS | models.OTHERS)[name] for name in LEADING])
    for layer in leading:
        if layer.role == "residual" and not layer.bias:
            yield series(layer, MORE_RESIDUAL_ROWS, bias="full")


def series(layer: Layer, rows: Iterable[int], **flags: str) -> Series:
    """The problems of a layer at these M."""
    flags |= {} if layer.layout == "nt" else {"layout": layer.layout}
    op = "addmm" if layer.bias or "bias" in flags else "mm"
    return [{"op": op, "m": m, "n": layer.n, "k": layer.k, **flags} for m in rows]


def rare(layer: Layer, rows: Sequence[int], number: int) -> Iterator[Series]:
    """The problems of a layer in fp16 and with its epilogue, at a few M."""
    if layer.role != "head":
        yield series(layer, every(RARE, rows, number), dtype="fp16")
    if layer.role in EPILOGUES:
        yield series(layer, every(RARE, rows, number + RARE // 2), fusion=EPILOGUES[layer.role])


def backward(layer: Layer, tokens: Sequence[int]) -> Iterator[Series]:
    """The gradients of a layer: of its input, dY @ W, and of its weight, dY^T @ X, or X^T @ dY if it is [k, n]. An
    lm_head has none here."""
    if layer.role == "head":
        return
    turned = layer.layout == "nn"
    m, n = (layer.k, layer.n) if turned else (layer.n, layer.k)
    inputs = {"n": layer.k, "k": layer.n} | ({} if turned else {"layout": "nn"})
    yield [{"op": "mm", "m": rows, **inputs} for rows in tokens]
    yield [{"op": "mm", "m": m, "n": n, "k": k, "layout": "tn"} for k in tokens]


def rows_of(layer: Layer) -> list[int]:
    """All M of a layer: the common ones and the steps of its waves."""
    return list(HEAD_ROWS) if layer.role == "head" else sorted({*ROWS, *steps(layer.n)})


def steps(n: int) -> list[int]:
    """M of the largest GEMMs that take one to four waves of tiles, and of some also M a little larger."""
    found: set[int] = set()
    for rows, columns in TILES:
        for wave in WAVES:
            full = PROCESSORS * wave // ceil(n / columns) * rows
            found |= {full, full + STEP_ROWS} if wave in FIRST_WAVES else {full}
    return sorted(m for m in found if LOWEST_STEP <= m <= HIGHEST_STEP)


def every(step: int, values: Sequence[int], offset: int) -> Sequence[int]:
    """One value in `step`, from an offset on; at least one."""
    return values[offset % min(step, len(values)) :: step]
