"""Our own Triton kernels, a folder each, as jinja2 templates: one source for the generator and for Inductor.

A template uses the hooks that Inductor gives a TritonTemplate (`def_kernel`, `size`, `stride`, `store_output`) and
reads its parameters as names. So it renders both as a standalone kernel and as an Inductor choice with a fused
epilogue. Reading a template needs only the standard library; rendering needs jinja2.
"""

from __future__ import annotations

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, Template
from gemmdb.kernels.triton import sources
from gemmdb.key.problem import Problem

TL = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8", "uint8": "uint8", "int32": "int32",
      "fp8_e4m3": "float8e4nv", "fp8_e5m2": "float8e5"}  # fmt: skip
"""Triton's name of each dtype."""
ZEROING_US = 1.0
"""Microseconds in which a graph zeroes the counters of its kernels, once per call: at least 0.9 us (440 configs)."""


def template(config: ConfigLike) -> Template:
    """The template of a config of one of our Triton kernels. Raises KeyError for another kernel."""
    found = config.spec.template
    if found is None:
        raise KeyError(f"{config.name} has no template")
    return found


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants that the template of `config` reads, for `problem`.

    Every value is written literally into the kernel (`NAME: tl.constexpr = value`), as in Inductor, so a value is a
    number, a truth value or a Triton expression. Values that depend on sizes are computed for this problem: an EVEN_K
    copied from another problem would give wrong results.
    """
    return template(config).names(config, problem)


MAX_COUNTERS = 2**14
"""How many tiles the kernels of a graph can count arrivals at: int32 counters at the beginning of their workspace."""


def counts_arrivals(config: ConfigLike) -> bool:
    """Whether the programs of a tile count who finishes last. Such a kernel needs counters that are zero before it
    starts, and room for partial sums."""
    return config.spec.template is not None and config.spec.template.reduction(config) == "fixup"


def tiles(config: ConfigLike, problem: Problem) -> int:
    """How many tiles one of our configs cuts the output into, of all matrices of a batch. Of groups, the most of which
    it splits K: no more than programs run at once on any GPU."""
    if problem.spec.grouped:
        return int(config.values["resident"]) * hardware.MAX_UNITS
    block = int(config.values["block_m"]), int(config.values["block_n"])
    return problem.batch * hardware.tile_count(problem.m, problem.n, block)


def source(kernel: str) -> str:
    """The jinja2 source of one of our kernels, by its name."""
    return sources.source(f"{__name__}.{kernel}")


def digest(kernel: str) -> str:
    """16 hexadecimal digits that change with the source of one of our kernels. Rows of the kernel stay valid while they
    do not change."""
    return sources.digest(f"{__name__}.{kernel}")
