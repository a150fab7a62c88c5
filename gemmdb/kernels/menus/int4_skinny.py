"""What is tried of `int4_skinny`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.menus.shared import Menu
from gemmdb.kernels.triton.int4_skinny import DEPTH, FEW_ROWS, MAX_ROWS
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

R, S, H, B, A = "registers", "shared", "ahead", "before", "after"
_ENTRIES = (
    (64, 4, 1, R, A), (32, 8, 2, R, A), (16, 4, 1, R, B), (32, 4, 1, S, B), (32, 2, 2, R, A), (32, 4, 1, R, A),
    (64, 4, 1, R, B), (16, 4, 2, S, A), (64, 4, 1, S, B), (16, 4, 1, S, A), (16, 8, 2, R, A), (16, 8, 2, S, A),
    (16, 8, 2, S, B), (16, 4, 2, S, B), (16, 2, 2, R, B), (16, 4, 4, S, B),
)  # fmt: skip
"""(BLOCK_N, warps, stages, where the activations are, when the next step is loaded)."""
_ADJACENT = (
    (16, 4, 2, R, B), (16, 2, 2, R, B), (32, 2, 2, R, A), (32, 4, 2, R, A), (16, 4, 4, S, B), (16, 8, 2, R, B),
    (32, 2, 2, S, B),
)  # fmt: skip
"""The same, with neighbouring steps: of weights in bytes, whose scales are then loaded at once."""

_LEAN = {
    True: ((16, 4, 2, S, B), (16, 4, 2, S, A), (16, 8, 2, H, A), (16, 4, 1, H, B), (16, 4, 1, S, A), (16, 4, 4, S, B),
           (16, 8, 2, S, A), (16, 8, 2, S, B), (32, 2, 2, S, B)),
    False: ((16, 8, 2, H, A),),
}  # fmt: skip
_LEAN_ADJACENT = {
    True: (),
    False: ((16, 4, 2, H, A), (32, 4, 2, H, A), (16, 4, 2, R, B), (16, 2, 2, H, B), (16, 2, 2, R, B), (32, 2, 2, R, A),
            (16, 4, 4, S, B)),
}  # fmt: skip
"""The same in the lean form, by whether the weight is tiled."""
_MORE = {True: ((16, 4, 2, S, B), (32, 2, 2, S, B)), False: ((64, 4, 1, S, B), (64, 4, 1, R, B), (32, 4, 1, R, A))}
_MORE_ADJACENT = {
    True: (),
    False: ((16, 2, 4, R, A), (32, 2, 2, H, B), (16, 2, 2, H, A), (32, 2, 2, S, B), (16, 4, 2, R, B), (16, 4, 4, R, A)),
}
"""The same for more than eight rows."""


def mostly_fastest(problem: Problem) -> bool:
    """Whether this kernel is mostly faster than `int4`. With more than eight rows it was so on an H100 on 10 of 11
    weights in bytes, by up to a fourth, and on 6 of 47 tiled ones."""
    assert problem.int4 is not None
    return problem.m <= FEW_ROWS or not problem.int4.inner


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    few, tiled = problem.m <= FEW_ROWS, bool(problem.int4 and problem.int4.inner)
    yield from _each(problem, (_LEAN_ADJACENT if few else _MORE_ADJACENT)[tiled], lean=1, adjacent=1)
    if few:
        yield from () if tiled else _each(problem, _ADJACENT, adjacent=1)
        yield from _each(problem, _ENTRIES)
    yield from _each(problem, (_LEAN if few else _MORE)[tiled], lean=1)


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
