"""The diagrams of the documentation: `python -m tools.diagrams docs/images` writes them, as `make docs` does.

`flow.svg`: from a program to a kernel. `ladder.svg`: the rungs of a lookup. `protocol.svg`: how a kernel is timed on a
GPU. `verdict.svg`: what is picked among measured kernels; the rule that gemmdb has decides in it. A test compares the
files with what is drawn now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gemmdb.hit import RUNGS
from gemmdb.kernels.config import ATEN, Config
from gemmdb.settings import Policy
from gemmdb.table import verdict
from tools.drawing import COLOURS, arrow, box, rect, svg, text

PER_GRAPH = 20
"""Calls in a CUDA graph of the protocol."""


def pictures() -> dict[str, str]:
    """Every diagram by the name of its file."""
    return {
        "flow.svg": svg("From a program to a kernel", 330, flow()),
        "ladder.svg": svg("The rungs of a lookup", 484, ladder()),
        "protocol.svg": svg("How a kernel is timed on a GPU", 372, protocol()),
        "verdict.svg": svg("What is picked among measured kernels", 332, picked()),
    }


def flow() -> Iterator[str]:
    """Two lanes: what happens once per kind of device, and what happens at every compile."""
    yield text(20, 30, "Once per kind of device, offline", "title")
    yield from box(20, 46, 170, 70, "grey", "your program", "unchanged")
    yield from arrow(190, 80, 355, 80, "gemmdb record")
    yield from box(355, 46, 190, 70, "amber", "workload.jsonl", "its GEMMs", "code")
    yield from arrow(545, 80, 700, 80, "gemmdb build")
    yield from box(700, 46, 270, 70, "green", "table.db", "every candidate's time and error", "code")
    yield from arrow(835, 116, 835, 206, "read at each compile", "")
    yield text(20, 186, "At every compile", "title")
    yield from box(20, 206, 170, 90, "grey", "torch.compile", "finds the GEMMs of each graph", "code")
    yield from arrow(190, 248, 700, 248, "one lookup for each GEMM", "middle")
    yield from box(
        700, 206, 270, 90, "blue", "lookup", "a kernel that beats ATen, and Inductor emits it; else what Inductor does"
    )
    yield text(20, 320, "The compiled code runs without gemmdb, except for calls of cuBLASLt from Python.")


RUNG = {
    "exact": ("measured on this device", "the same problem", "green"),
    "near": (
        "predicted from neighbours",
        "measured sizes of the same family; only where it is certainly faster",
        "blue",
    ),
    "epilogue": ("rows with another epilogue", "the same GEMM; must gain 5%", "blue"),
    "sku": ("rows of another GPU of the arch", "timed first, or must gain 25%", "blue"),
    "model": ("the cost model", "must expect 25%; declines where live tuning can decide", "amber"),
}
"""What each rung answers from, under which condition, and its colour."""


def ladder() -> Iterator[str]:
    """The rungs from the top, and what follows when all decline."""
    height, gap = 52, 24
    for i, rung in enumerate(RUNGS):
        source, condition, colour = RUNG[rung]
        y = 20 + i * (height + gap)
        yield from box(20, y, 130, height, colour, rung, "", "code")
        yield text(170, y + 22, source, "title")
        yield text(170, y + 40, condition)
        yield from arrow(640, y + 26, 760, y + 26, "answers", "middle")
        yield from arrow(85, y + height, 85, y + height + gap, "declines", "")
    bottom = 20 + len(RUNGS) * (height + gap)
    yield from box(
        760,
        20,
        220,
        bottom - gap - 20,
        "green",
        "served",
        "a kernel that the policy allows and that gains at least 2% over ATen, else ATen",
    )
    yield from box(
        20,
        bottom,
        960,
        64,
        "grey",
        "a miss",
        "On a GPU, live tuning measures it while compiling, if that repays the time. Else Inductor chooses.",
    )


def protocol() -> Iterator[str]:
    """A sample, its turns, and the second process."""
    yield text(
        20, 30, f"1. A sample: a CUDA graph of {PER_GRAPH} flushes and calls, less one of {PER_GRAPH} flushes", "title"
    )
    yield from strip(44, True)
    yield text(20, 106, "less")
    yield from strip(112, False)
    yield text(860, 72, f"divided by {PER_GRAPH}", "title")
    yield text(860, 90, "is one sample")
    yield text(20, 180, "2. In turn: each round takes a sample of every candidate and of ATen", "title")
    names = ("ATen", "a", "b", "c")
    for i in range(12):
        colour = "grey" if i % len(names) == 0 else "blue"
        yield from box(20 + i * 66, 194, 60, 34, colour, names[i % len(names)])
    yield text(830, 216, "... 30 rounds")
    yield text(20, 252, "What disturbs a round disturbs all of it: the ratio to ATen within a round is free of drift.")
    yield text(20, 290, "3. Again, in a second process, as the code that Inductor emits", "title")
    for x, title, about in (
        (20, "race", "each kernel by itself"),
        (360, "confirmation", "the best, its rivals, and ATen"),
        (700, "verdict", "the rows of both processes, pooled"),
    ):
        yield from box(x, 304, 270, 50, "green" if title == "verdict" else "amber", title, about)
    yield from arrow(290, 329, 360, 329)
    yield from arrow(630, 329, 700, 329)


def strip(y: float, calls: bool) -> Iterator[str]:
    """The beginning of a graph, flushes with or without the calls between them."""
    for i in range(5):
        x = 20 + i * 156
        yield from box(x, y, 84 if calls else 150, 34, "grey", "flush L2")
        if calls:
            yield from box(x + 88, y, 62, 34, "blue", "call")
    yield text(806, y + 22, "...")


TILE = (
    "triton:tile block_k=128 block_m=16 block_n=64 dequant=bits group_m=8 load=pointer reduce={} split_k={} stages=4"
    " swap=1 warps=4"
)
EXAMPLE = {
    "triton:tile, K in 2 slices": (Config.parse(TILE.format("kernel", 2)), 0.61, 0.020),
    "triton:tile": (Config.parse(TILE.format("none", 1)), 0.62, 0.015),
    "triton:tile, K in 8 slices": (Config.parse(TILE.format("kernel", 8)), 0.72, 0.010),
    "aten:default": (ATEN, 1.0, 0.008),
}
"""An example of measured kernels: time relative to ATen, and half its 95% interval, relative."""


def picked() -> Iterator[str]:
    """The kernels of the example on a line of ratios to ATen. The rule of gemmdb says which are tied and which one is
    picked."""
    pooled = [verdict.Pooled(config, ratio, spread, ()) for config, ratio, spread in EXAMPLE.values()]
    ties = [one.config for one in verdict.best(pooled)]
    yield text(20, 30, "An example: times relative to ATen, with their 95% intervals", "title")
    least = 1 / (1 + Policy().min_gain)
    yield rect(place(least), 48, place(1) - place(least), 190, "amber", 0)
    yield text(place(least) - 8, 62, "a gain of less than 2%: ATen is served", "end")
    for i, (name, (config, ratio, spread)) in enumerate(EXAMPLE.items()):
        y = 70 + 48 * i
        word, colour = said(config, ties)
        border = COLOURS[colour][1]
        yield text(20, y + 5, name, "code")
        ends = place(ratio * (1 - spread)), place(ratio * (1 + spread))
        yield (
            f'<path d="M{ends[0]:g} {y} H{ends[1]:g} M{ends[0]:g} {y - 7} v14 M{ends[1]:g} {y - 7} v14" '
            f'stroke="{border}" stroke-width="3" fill="none"/>'
        )
        yield f'<circle cx="{place(ratio):g}" cy="{y}" r="6" fill="{border}"/>'
        yield text(ends[1] + 10, y + 5, word)
    yield f'<path d="M{place(0.55):g} 238 H{place(1.02):g}" stroke="#777"/>'
    for tick in range(60, 101, 10):
        yield text(place(tick / 100), 256, f"{tick / 100:.1f}", "middle")
    yield text(
        20,
        290,
        "Tied: within 1% of the fastest, or within both intervals together. Of the tied the cheapest to compile",
    )
    yield text(
        20,
        308,
        "is picked, then the one with fewer slices of K; if ATen is tied, ATen. One wrong result puts a kernel out.",
    )


def place(ratio: float) -> float:
    """Where a ratio to ATen is on the line, in pixels."""
    return 250 + (ratio - 0.55) * 1500


def said(config: Config, ties: list[Config]) -> tuple[str, str]:
    """What becomes of a config, and its colour."""
    if config == ties[0]:
        return "picked", "green"
    return ("tied", "blue") if config in ties else ("slower", "grey")


if __name__ == "__main__":
    for name, picture in pictures().items():
        Path(sys.argv[1], name).write_text(picture)
