"""What is tried of `int4_skinny`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu, read_shapes, up_to
from gemmdb.kernels.triton.int4_skinny import DEPTH, FEW_ROWS, MAX_ROWS
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

R, S, H, B, A = "registers", "shared", "ahead", "before", "after"
_MENUS = read_shapes("int4_skinny")
"""`adjacent`: with neighbouring steps, of weights in bytes, whose scales are then loaded at once; `lean`: in the lean
form. Tiled weights and those in bytes have lists of their own."""


def mostly_fastest(problem: Problem) -> bool:
    """Whether this kernel is mostly faster than `int4`. With more than eight rows it was so on an H100 on 10 of 11
    weights in bytes, by up to a fourth, and on 6 of 47 tiled ones."""
    assert problem.int4 is not None
    return problem.m <= FEW_ROWS or not problem.int4.inner


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    kind = "tiled" if problem.int4 and problem.int4.inner else "bytes"
    yield from _each(problem, up_to(_MENUS[f"lean_adjacent_{kind}"], problem.m), lean=1, adjacent=1)
    yield from _each(problem, up_to(_MENUS[f"adjacent_{kind}"], problem.m), adjacent=1)
    yield from _each(problem, up_to(_MENUS["plain"], problem.m))
    yield from _each(problem, up_to(_MENUS[f"lean_{kind}"], problem.m), lean=1)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    for form, activations in (({}, (R, S)), ({"lean": 1}, (R, S, H))):
        entries = list(product((16, 32, 64), (1, 2, 4, 8, 16), (1, 2, 3, 4), activations, (B, A)))
        yield from _each(problem, entries, **form)
        yield from _each(problem, [entry for entry in entries if entry[2] in (2, 4)], adjacent=1, **form)


def _each(problem: Problem, entries: Iterable[tuple[int, int, int, str, str]], **more: int) -> Iterator[Config]:
    """The configs of those that have a step for each of their stages."""
    for n, warps, stages, where, when in entries:
        if problem.m <= MAX_ROWS and DEPTH * warps * stages <= problem.k:
            yield Config.of(
                "triton", "int4_skinny", block_n=n, activations=where, next=when, warps=warps, stages=stages, **more
            )  # fmt: skip


MENU = Menu(_usual, _whole)
