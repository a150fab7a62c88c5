"""The preset `h200-int4`: the projections of decoders with int4 weights, at decode first. Every prefix is a balanced
sample: each use is drawn in the order of a hash, in turns over M, and all uses are merged in proportion.

A tiled weight is what gpt-fast and torchao multiply by `_weight_int4pack_mm`; one in bytes is unpacked by the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmdb.generators.shapes.architectures import DECODE, PREFILL, Item, Pair
from gemmdb.generators.shapes.pools import core_pairs, first_pairs, pool
from gemmdb.generators.shapes.strata import Stratum, digest, draw, shares
from gemmdb.key.problem import Problem

FEW = [1, 2, 4, 8, 16]
STEP = 256
"""K of every weight is a multiple of the largest group, so that all uses have the same weights."""


def items() -> list[Item]:
    """The preset's items, one problem each."""
    taken: set[Problem] = set()
    entries = [entry for found in draw([*tiled(), *in_bytes()], taken) for entry in shares(found)]
    return [item for _, item in sorted(entries, key=lambda entry: (entry[0], digest(entry[1])))]


def tiled() -> list[Stratum]:
    """Weights in the layout of `_weight_int4pack_mm`."""
    core, every = _fitting(core_pairs()), _fitting(first_pairs())
    rows = [*DECODE, *PREFILL]
    return [
        Stratum(150, _int4(FEW, core)),
        Stratum(60, _int4(rows, every)),
        Stratum(40, _int4([32, 64, *PREFILL], core)),
        Stratum(30, _int4(rows, core, group=64)),
        Stratum(30, _int4(rows, core, group=32)),
        Stratum(8, _int4(rows, core, group=256)),
        Stratum(12, _int4(DECODE, core, packing=["tinygemm2", "tinygemm4"])),
        Stratum(20, _int4(rows, core, fusion="pointwise")),
    ]


def in_bytes() -> list[Stratum]:
    """Weights of two numbers in a byte."""
    core = _fitting(core_pairs())
    rows, low = [*DECODE, *PREFILL], {"packing": "low-first"}
    return [
        Stratum(40, _int4(rows, core, **low, group=[64, 128])),
        Stratum(40, _int4(rows, core, **low, group=[32, 64, 128], zeros="uint8")),
        Stratum(20, _int4(rows, core, **low, group=[64, 128], zeros="bf16")),
        Stratum(24, _int4(rows, core, **low, group=[64, 128], dtype="fp16", zeros=["none", "uint8", "fp16"])),
        Stratum(10, _int4(rows, core, packing="high-first", zeros=["none", "uint8"])),
        Stratum(10, _int4(rows, core, **low, bias="1d")),
    ]


def _int4(rows: Sequence[int], pairs: Sequence[Pair], **rest: Any) -> list[Item]:
    return pool("mixed_mm", rows, pairs, weight_dtype="int4", **rest)


def _fitting(pairs: Sequence[Pair]) -> list[Pair]:
    return [(n, k) for n, k in pairs if n % 8 == 0 and k % STEP == 0]
