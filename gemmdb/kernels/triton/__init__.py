"""Our own Triton kernels, a folder each, as jinja2 templates: one source for the generator and for Inductor.

A template uses the hooks that Inductor gives a TritonTemplate (`def_kernel`, `size`, `stride`, `store_output`) and
reads its parameters as names. So it renders both as a standalone kernel and as an Inductor choice with a fused
epilogue. Reading a template needs only the standard library; rendering needs jinja2.
"""

from __future__ import annotations

import functools
import hashlib
from itertools import pairwise

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, Template
from gemmdb.key.problem import Problem

TL = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8", "uint8": "uint8", "int32": "int32",
      "fp8_e4m3": "float8e4nv", "fp8_e5m2": "float8e5"}  # fmt: skip
"""Triton's name of each dtype."""
ZEROING_US = 1.0
"""Microseconds in which a graph zeroes the counters of its kernels, once per call: at least 0.9 us (440 configs)."""
WITHOUT_WAIT = (
    "189ca5b09cc9b921", "d4c6f8ea1c262a94", "3fba734c92d58300", "067a5933400952cc", "9e67c3f01599c47f",
    "6aab30208b15d657", "daaf44af305896c1",
)  # fmt: skip
"""The digests of `int4` when kernels that scale weights did not wait for the matrix unit. Those of the last one with
activations in the order of memory do."""
_HISTORY = (
    ("079aeed31ef3a5a2", "b8961afbe98e678a", "46cf91b376e7c293", "2285ca0639c8cbf6", "e4fae27619584873",
     "aebd1fd0ead75e5a"),
    ("d207994d8700ded2", "078daff6141357c6"),
    ("f1cfe0fb8fcf5453", "012c2e9c955b0691", "a9f936e578fc31c0", "7d81a1695cc5f968", "e52d1bf60dec2386"),
    ("3799dccb4110a658", "1d94976414df7a58", "0421d23c09bc24d8", "721c1568a4a2ab56", "f8d699728006d0d6"),
    ("9ecb33375ecd23f0", "4421a6b02e3a9b49", "d0fda949991afa96", "05c23a31e68b0e76"),
    ("2b822f06dd6f893e", "81c638bb4e7fa254", "e1740f02d8ecaa49", "9b75edecdcc96ca3"),
    ("3b992e027bd165b8", "ba042125d931cbdc"),
    (*WITHOUT_WAIT, "59f0a7715befea58", "c62856d173ab8e7d"),
    ("7f339d284e2d1986", "84e1da6b62a2dd91", "2f84e281cf81afb3", "e97769d881f34ed8", "2dae9820dfb5aa8e",
     "46058c8e58ebf92e", "93d865a0b772e88a", "6d0e8651ad3f4977"),
    ("368fbc0e4b60cf75", "a6f6708ac2f4c0c3", "0178e3da580178ce"),
)  # fmt: skip
"""The digests of each kernel, the former ones first."""
EQUIVALENT = {former: later for digests in _HISTORY for former, later in pairwise(digests)}
"""Former digests, each with the later one whose source renders the same kernels, so that rows of the former stay valid.
Add a pair only if both versions render the same text for every problem and config of our kernels in the shipped
tables, apart from constants that no line reads. One exception, so that results are right: after WITHOUT_WAIT, kernels
of `int4` that scale weights wait. On an H200, 20 of 23 took 0.85 to 1.12 times as long as before, two with 16 products
in a step 1.15 and 1.17 times, and one that keeps registers in memory 1.22 times (`int4-wait.txt` of the results)."""
_INT4 = ("int4", "int4_skinny")
"""Kernels that read the words of an int4 weight. The first has the macros for it."""


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


@functools.cache
def source(kernel: str) -> str:
    """The jinja2 source of one of our kernels, by its name, after the macros that it shares with others."""
    from importlib import resources  # Imported where it is used: it takes longer than all of gemmdb's own modules.

    # `dependent` defines one macro, which renders nothing. It stays because the digests in shipped tables include it.
    shared = [(__name__, name) for name in ("dequant", "parts", "dependent")]
    shared += [(f"{__name__}.{_INT4[0]}", "words")] if kernel in _INT4 else []
    files = (*shared, (f"{__name__}.{kernel}", "kernel"))
    return "".join((resources.files(package) / f"{name}.py.jinja").read_text() for package, name in files)


@functools.cache
def digest(kernel: str) -> str:
    """16 hexadecimal digits that change with the source of one of our kernels. Rows of the kernel stay valid while they
    do not change."""
    return hashlib.sha256(source(kernel).encode()).hexdigest()[:16]
