"""Several weights of one activation in one launch of our Triton kernels: which configs can take them."""

from __future__ import annotations

from collections.abc import Sequence

from gemmdb.kernels.kernel import ConfigLike
from gemmdb.kernels.triton import counts_arrivals
from gemmdb.rejected import Rejected

MAX_WEIGHTS = 4
"""The most weights."""
KERNELS = ("gemv", "narrow", "tile", "int4", "int4_skinny")


def rejection(config: ConfigLike, widths: Sequence[int]) -> Rejected | None:
    """Why a config cannot multiply one activation with weights of `widths` columns each, None when it can. Every block
    of columns lies in one weight, and a tensor map describes one weight."""
    if config.backend != "triton" or config.kernel not in KERNELS:
        return Rejected(f"{config.name} takes one weight")
    if config.spec.maps(config):
        return Rejected("a tensor map describes one weight")
    if int(config.values.get("split_k", 1)) > 1 and not counts_arrivals(config):
        return Rejected("partial sums of a second kernel are of one weight")
    block = int(config.values["block_n"])
    if any(width % block for width in widths):
        return Rejected(f"a block of {block} columns would lie in two weights")
    return None


def constants(count: int, scaled: bool = False, biased: bool = False, scales: str = "") -> dict[str, int | str]:
    """The constants of a template that takes `count` weights, beside its own. `scaled` and `biased`: each has a vector
    [N] of its own. `scales` of fp8: `row`, the activation has a scale for each row, or `tensor`, it has one number, and
    so has each weight."""
    return {
        "PARTS": count, "SCALED": scaled, "BIASED": biased, "A_SCALED": scales != "", "ONE_SCALE": scales == "tensor",
    }  # fmt: skip
