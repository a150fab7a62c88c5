"""The preset `h200-grouped`: the experts of open mixtures, forward and in training.

The rows of a product are those of all experts together: each token has as many as it has experts. Where experts are
divided over GPUs, a GPU has its share of the experts and of the rows; where each expert is divided, its share of the
width. Any prefix is a balanced sample: the first part has the most used mixtures at all numbers of tokens in turns.
The same mixtures with fp8 operands come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from gemmdb.generators.shapes.architectures import Item
from gemmdb.generators.shapes.strata import Stratum, digest, draw, shares
from gemmdb.key.problem import Problem

DECODE = (1, 2, 4, 8, 16, 32, 64)
PREFILL = (128, 256, 512, 1024, 2048, 4096)
STEPS = (1, 16, 4, 64, 256, 1024, 4096)
"""Tokens of the first part."""
TRAINING = (512, 1024, 2048, 4096, 8192)
MOST_WEIGHT_BYTES = 2**32
"""Weights of all experts of a product that are larger are left out: a build makes them anew for each problem."""


@dataclass(frozen=True)
class Mixture:
    """The experts of a model: its hidden size, the width of one expert, their number, how many of them each token has,
    and over how many GPUs experts (`apart`) and the width of each (`split`) are divided. `layout`: how the weights are
    stored, `nt` for [N, K]."""

    hidden: int
    width: int
    experts: int
    chosen: int
    apart: tuple[int, ...] = (1,)
    split: tuple[int, ...] = (1,)
    layout: str = "nt"

    def sizes(self) -> list[tuple[int, int, float]]:
        """(experts of a GPU, width of an expert there, rows of a token there)."""
        return [
            (self.experts // apart, self.width // split, self.chosen / apart)
            for apart, split in product(self.apart, self.split)
            if apart == 1 or split == 1
        ]


MIXTURES = {
    "mixtral-8x7b": Mixture(4096, 14336, 8, 2, split=(1, 2, 4, 8)),
    "qwen3-30b-a3b": Mixture(2048, 768, 128, 8, apart=(1, 2, 4, 8)),
    "deepseek-v3": Mixture(7168, 2048, 256, 8, apart=(8, 16, 32)),
    "mixtral-8x22b": Mixture(6144, 16384, 8, 2, split=(1, 2, 4, 8)),
    "qwen3-235b-a22b": Mixture(4096, 1536, 128, 8, apart=(1, 4, 8)),
    "gpt-oss-20b": Mixture(2880, 2880, 32, 4, layout="nn"),
    "gpt-oss-120b": Mixture(2880, 2880, 128, 4, apart=(2, 4, 8), layout="nn"),
    "deepseek-v2-lite": Mixture(2048, 1408, 64, 6, apart=(1, 2)),
    "olmoe-1b-7b": Mixture(2048, 1024, 64, 8),
    "qwen2-57b-a14b": Mixture(3584, 2560, 64, 8, apart=(1, 4)),
    "glm-4.5-air": Mixture(4096, 1408, 128, 8, apart=(1, 4)),
    "phi-3.5-moe": Mixture(4096, 6400, 16, 2, split=(1, 2)),
}
"""Published dimensions. The first MOST_USED are those of the first part."""
MOST_USED = 3
EXACT = 18
"""How many products of fp8 are there also without the fast accumulation that libraries ask for."""
WEIGHTED = "pointwise:fp32"
"""What follows the second product of experts: its rows are multiplied by the fp32 weights of the router."""


def items() -> list[Item]:
    """The preset's items, one problem each."""
    first = most_used()
    chosen = draw(strata(), {Problem.gemm(**item) for item in first})
    entries = [entry for found in chosen for entry in shares(found)]
    rest = [item for _, item in sorted(entries, key=lambda entry: (entry[0], digest(entry[1])))]
    return [*first, *rest, *fp8()]


def fp8() -> list[Item]:
    """The most used mixtures with fp8 operands, and some of them without a fast accumulation."""
    scaled = [item | {"dtype": "fp8_e4m3"} for item in most_used()]
    (exact,) = draw([Stratum(EXACT, scaled)], set())
    return [*(item | {"fast_accum": True} for item in scaled), *exact]


def most_used() -> list[Item]:
    """Both products of the most used mixtures, undivided or as little divided as they fit, at all STEPS in turns."""
    found: list[Item] = []
    for tokens, mixture in product(STEPS, list(MIXTURES.values())[:MOST_USED]):
        experts, width, rows = mixture.sizes()[0]
        found += _pair(mixture, experts, width, max(round(tokens * rows), 1))
    return found


def strata() -> list[Stratum]:
    """All mixtures with all ways to divide them: decoding, prefill, and the products of training."""
    decode, prefill, training = (_products(tokens) for tokens in (DECODE, PREFILL, TRAINING))
    return [
        Stratum(130, _ups(decode)),
        Stratum(100, _downs(decode)),
        Stratum(70, _ups(prefill)),
        Stratum(60, _downs(prefill)),
        Stratum(15, [item | {"fusion": "none"} for item in _downs(decode + prefill)]),
        Stratum(25, [_inputs(item) for item in _ups(training)]),
        Stratum(38, [_weights(item) for item in _ups(training)], turns=("k",)),
    ]


def _products(tokens: tuple[int, ...]) -> list[Item]:
    """Both products of all mixtures, in all divisions that fit."""
    found: list[Item] = []
    for count, mixture in product(tokens, MIXTURES.values()):
        for experts, width, rows in mixture.sizes():
            found += _pair(mixture, experts, width, max(round(count * rows), 1))
    return list({digest(item): item for item in found if _fits(item)}.values())


def _pair(mixture: Mixture, experts: int, width: int, rows: int) -> list[Item]:
    """Gate and up in one product, and down, for so many rows."""
    common = {"op": "grouped_mm", "m": rows, "groups": experts, "layout": mixture.layout}
    return [
        common | {"n": 2 * width, "k": mixture.hidden},
        common | {"n": mixture.hidden, "k": width, "fusion": WEIGHTED},
    ]


def _ups(items: list[Item]) -> list[Item]:
    return [item for item in items if "fusion" not in item]


def _downs(items: list[Item]) -> list[Item]:
    return [item for item in items if "fusion" in item]


def _fits(item: Item) -> bool:
    return int(2 * item["groups"] * item["n"] * item["k"]) <= MOST_WEIGHT_BYTES


def _inputs(item: Item) -> Item:
    """The gradient of the rows of a product."""
    turned = {"nt": "nn", "nn": "nt"}[item["layout"]]
    return item | {"n": item["k"], "k": item["n"], "layout": turned}


def _weights(item: Item) -> Item:
    """The gradient of the weights of a product: the groups divide the rows, which are summed."""
    rows, n, k = item["m"], item["n"], item["k"]
    sizes = {"m": n, "n": k} if item["layout"] == "nt" else {"m": k, "n": n}
    return item | sizes | {"k": rows, "layout": "tn", "ragged": "k"}
