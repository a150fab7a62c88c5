"""The shape presets for GPUs, derived from the published dimensions of open models.

    python -m gemmdb.generators.model_shapes FOLDER        writes the presets (llm, llm-dense, vision, grid, odd)

The JSON files in `presets/` are what this writes; a test keeps them equal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Item = dict[str, Any]
Pair = tuple[int, int]

DECODE = [1, 2, 4, 8, 16, 32, 64]
PREFILL = [128, 256, 512, 1024, 2048]
DENSE = [
    *range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384,
]  # fmt: skip
"""Small M dense, then every power of two and the 1.5x steps between them."""


@dataclass(frozen=True)
class Model:
    """A decoder: hidden size, width of all query heads and of all key (or value) heads, width of one feed-forward
    branch, vocabulary, and over how many GPUs its projections are split. `gated`: gate and up projections, no biases;
    else GPT-2's two layers with biases."""

    hidden: int
    query: int
    key: int
    feed: int
    vocabulary: int
    splits: tuple[int, ...] = (1,)
    gated: bool = True

    def pairs(self) -> list[Pair]:
        """(N, K) of every projection: fused QKV, attention output, gate and up (apart and fused), down, LM head."""
        found: list[Pair] = []
        for parts in self.splits:
            query, feed = self.query // parts, self.feed // parts
            key = max(self.key // parts, min(self.key, 128))
            found += [(query + 2 * key, self.hidden), (self.hidden, query), (feed, self.hidden), (self.hidden, feed)]
            found += [(2 * feed, self.hidden)] if self.gated else []
            if self.vocabulary % parts == 0:
                found.append((self.vocabulary // parts, self.hidden))
        return found


MODELS = {
    "llama-3-8b": Model(4096, 4096, 1024, 14336, 128256, (1, 2)),
    "llama-2-7b": Model(4096, 4096, 4096, 11008, 32000, (1, 2)),
    "llama-3-70b": Model(8192, 8192, 1024, 28672, 128256, (1, 2, 4, 8)),
    "mistral-7b": Model(4096, 4096, 1024, 14336, 32000),
    "qwen2-7b": Model(3584, 3584, 512, 18944, 152064),
    "qwen3-8b": Model(4096, 4096, 1024, 12288, 151936),
    "llama-2-13b": Model(5120, 5120, 5120, 13824, 32000, (1, 2)),
    "llama-3.2-1b": Model(2048, 2048, 512, 8192, 128256),
    "llama-3.2-3b": Model(3072, 3072, 1024, 8192, 128256),
    "qwen3-32b": Model(5120, 8192, 1024, 25600, 151936, (1, 2, 4, 8)),
    "qwen2-72b": Model(8192, 8192, 1024, 29568, 152064, (1, 2, 4, 8)),
    "mixtral-8x7b": Model(4096, 4096, 1024, 14336, 32000),
    "mixtral-8x22b": Model(6144, 6144, 1024, 16384, 32768, (1, 2, 4, 8)),
    "mistral-nemo-12b": Model(5120, 4096, 1024, 14336, 131072),
    "llama-3-405b": Model(16384, 16384, 1024, 53248, 128256, (8,)),
    "qwen2-1.5b": Model(1536, 1536, 256, 8960, 151936),
    "qwen2-0.5b": Model(896, 896, 128, 4864, 151936),
    "qwen3-0.6b": Model(1024, 2048, 1024, 3072, 151936),
    "qwen3-1.7b": Model(2048, 2048, 1024, 6144, 151936),
    "qwen3-4b": Model(2560, 4096, 1024, 9728, 151936),
    "qwen3-14b": Model(5120, 5120, 1024, 17408, 151936),
}
GPT2 = {
    "gpt2": Model(768, 768, 768, 3072, 50257, gated=False),
    "gpt2-medium": Model(1024, 1024, 1024, 4096, 50257, gated=False),
    "gpt2-large": Model(1280, 1280, 1280, 5120, 50257, gated=False),
    "gpt2-xl": Model(1600, 1600, 1600, 6400, 50257, gated=False),
}
HEAD = 7
"""How many models, from the top of MODELS, the preset `llm` covers."""
ENCODERS = {"vit-b-16": (768, 197), "vit-l-14": (1024, 257), "vit-h-14": (1280, 257), "clip-text": (512, 77),
            "bert-base": (768, 128), "bert-large": (1024, 384)}  # fmt: skip
"""Hidden size and tokens of one input; the feed-forward width is four times the hidden size."""


def unique(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without repeats, in order."""
    return list(dict.fromkeys(pairs))


def llm() -> list[Item]:
    """The projections of the most used models at decode and prefill, weight-only int8 first: most is to be gained."""
    pairs = unique(pair for name in list(MODELS)[:HEAD] for pair in MODELS[name].pairs())
    items: list[Item] = [_item("mixed_mm", DECODE, pair, fusion="scale") for pair in pairs]
    items += [_item("int_mm", [32, 64, *PREFILL], pair, fusion=["scale", "none"]) for pair in pairs]
    items += [_item("mm", [*DECODE, *PREFILL], pair) for pair in pairs]
    items += [_item("mixed_mm", PREFILL, pair, fusion="scale") for pair in pairs]
    return items


def llm_dense() -> list[Item]:
    """All models, every M, all spellings and dtypes, biases for GPT-2, and the gradient layouts of training."""
    pairs = unique(pair for model in MODELS.values() for pair in model.pairs())
    small = [m for m in DENSE if m <= 4096]
    items: list[Item] = []
    for pair in pairs:
        items.append(_item("mixed_mm", small, pair, fusion=["scale", "none"], dtype=["bf16", "fp16"]))
        items.append(_item("mixed_mm", DECODE, pair, fusion="scale", dtype=["bf16", "fp16"], weight_dtype="uint8"))
        items.append(_item("int_mm", [m for m in DENSE if m > 16], pair, fusion=["scale", "none"]))
        items.append(_item("mm", DENSE, pair, dtype=["bf16", "fp16"]))
        items.append(_item("mm", [512, 2048, 8192], pair, layout=["nn", "tn"]))
    for pair in unique(pair for model in GPT2.values() for pair in model.pairs()):
        items.append(_item("addmm", DENSE, pair, dtype=["bf16", "fp16", "fp32"], fusion=["none", "pointwise"]))
        items.append(_item("addmm", [512, 2048, 8192], pair, layout=["nn", "tn"]))
        items.append(_item("mm", [16, 512, 4096], pair, dtype="fp32", tf32=[False, True]))
    return items


def vision() -> list[Item]:
    """ViT, CLIP and BERT layers for batches of 1 to 64."""
    items = []
    for hidden, tokens in ENCODERS.values():
        rows = [tokens * batch for batch in (1, 2, 4, 8, 16, 32, 64)]
        for pair in ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
            items.append(_item("addmm", rows, pair, dtype=["bf16", "fp16", "fp32"]))
            items.append(_item("addmm", rows, pair, fusion="pointwise"))
            items.append(_item("int_mm", [m for m in rows if m > 16], pair, fusion="scale"))
    return items


def grid() -> list[Item]:
    """Square powers of two, and a log grid over M, N and K that covers what no model names."""
    sides = [2**power for power in range(7, 15)]
    items: list[Item] = [
        {"op": op, "m": side, "n": side, "k": side, "dtype": dtype}
        for side in sides for op, dtype in (("mm", ["bf16", "fp16", "fp32"]), ("addmm", "bf16"), ("int_mm", "int8"))
    ]  # fmt: skip
    wide = [256, 1024, 2048, 6144, 16384]
    for op, rows in (("mm", [1, 4, 16, 64, 256, 1024, 4096]), ("mixed_mm", [1, 4, 16, 64, 256, 1024]),
                     ("int_mm", [32, 128, 512, 2048])):  # fmt: skip
        items.append({"op": op, "m": rows, "n": wide, "k": wide, "dtype": "int8" if op == "int_mm" else "bf16"})
    items.append({"op": "addmm", "m": [16, 256, 4096], "n": wide, "k": [1024, 6144], "bias": ["1d", "full", "column"]})
    return items


def odd() -> list[Item]:
    """Primes and sizes that are no multiple of 8 or 16, where loads cannot be wide and padding is an alternative."""
    rows, columns, depths = [1, 7, 17, 33, 100, 257, 1009], [250, 1001, 2047, 4099, 11003], [100, 777, 2053, 4098]
    common = {"m": rows, "n": columns, "k": depths}
    return [
        {"op": "mm", **common, "dtype": ["bf16", "fp16"]},
        {"op": "addmm", **common, "dtype": "bf16"},
        {"op": "mixed_mm", **common, "dtype": "bf16", "fusion": "scale"},
        {"op": "int_mm", "m": [17, 33, 100, 257], "n": [248, 1000, 4104], "k": [104, 776, 4104]},
    ]


def _item(op: str, rows: list[int], pair: Pair, **rest: Any) -> Item:
    return {"op": op, "m": rows, "n": pair[0], "k": pair[1], **rest}


PRESETS = {
    "llm": (llm, "Projections of the most used open language models, at decode and prefill."),
    "llm-dense": (llm_dense, "Projections of the Llama, Mistral, Mixtral, Qwen and GPT-2 families over every M."),
    "vision": (vision, "Layers of ViT, CLIP and BERT."),
    "grid": (grid, "Square powers of two and a log grid."),
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
