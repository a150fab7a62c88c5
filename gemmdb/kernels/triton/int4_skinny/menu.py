"""What is tried of `int4_skinny`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from gemmdb.kernels.config import Config
from gemmdb.kernels.triton.int4_skinny import DEPTH, EIGHT, ROWS
from gemmdb.kernels.triton.menu import Menu
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

R, S, H, B, A = "registers", "shared", "ahead", "before", "after"
_ENTRIES = (
    (16, 4, 1, S, A), (64, 4, 1, R, A), (32, 8, 2, S, B), (16, 4, 2, S, B), (16, 4, 1, H, B), (32, 8, 2, R, A),
    (32, 4, 1, S, B), (64, 4, 1, S, B), (16, 4, 1, R, B), (16, 8, 2, H, A), (32, 2, 2, R, A), (32, 4, 1, R, A),
    (64, 4, 1, R, B), (16, 4, 2, S, A), (16, 8, 2, S, A), (16, 8, 2, S, B), (16, 8, 2, R, A), (32, 2, 2, S, B),
    (16, 2, 2, R, B), (16, 4, 4, S, B), (16, 4, 3, S, A),
)  # fmt: skip
"""(BLOCK_N, warps, stages, where the activations are, when the next step is loaded), for up to eight rows."""
_ADJACENT = (
    (16, 4, 2, R, B), (16, 2, 2, H, B), (16, 4, 2, R, A), (16, 2, 2, R, B), (32, 2, 2, R, A), (32, 4, 2, R, A),
    (16, 4, 2, H, A), (16, 4, 4, S, B), (16, 8, 2, R, B), (32, 2, 2, S, B), (32, 4, 2, H, A),
)  # fmt: skip
"""The same, with neighbouring steps: of weights in bytes, whose scales are then loaded at once."""
_MORE_ROWS = {True: ((32, 2, 2, S, B), (16, 4, 2, S, B)), False: ((64, 4, 1, S, B), (64, 4, 1, R, B), (32, 4, 1, R, A))}
_MORE_ROWS_ADJACENT = (
    (16, 2, 4, R, A), (32, 2, 2, H, B), (16, 2, 2, H, A), (32, 2, 2, S, B), (16, 4, 2, R, B), (16, 4, 4, R, A),
)  # fmt: skip
"""The same for more than eight rows, by whether the weight is tiled. On an H100 `int4` was the faster one there on five
of six tiled weights, and this one on three of three weights in bytes, by 22% to 25%."""


def _usual(problem: Problem, device: Device) -> Iterator[Config]:
    few, tiled = problem.m <= EIGHT, bool(problem.int4 and problem.int4.inner)
    for entry in _ENTRIES if few else _MORE_ROWS[tiled]:
        yield from _configs(problem, *entry)
    for entry in () if tiled else _ADJACENT if few else _MORE_ROWS_ADJACENT:
        yield from _configs(problem, *entry, adjacent=1)


def _whole(problem: Problem, device: Device) -> Iterator[Config]:
    for entry in product((16, 32, 64), (1, 2, 4, 8, 16), (1, 2, 3, 4), (R, S, H), (B, A)):
        yield from _configs(problem, *entry)
        if entry[2] in (2, 4):
            yield from _configs(problem, *entry, adjacent=1)


def _configs(problem: Problem, n: int, warps: int, stages: int, where: str, when: str, **more: int) -> Iterator[Config]:
    """The config, if there is a step for each of its stages."""
    if problem.m <= ROWS and DEPTH * warps * stages <= problem.k:
        yield Config.of(
            "triton", "int4_skinny", block_n=n, activations=where, next=when, warps=warps, stages=stages, **more
        )  # fmt: skip


MENU = Menu(_usual, _whole)
