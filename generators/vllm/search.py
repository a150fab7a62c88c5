"""The search for one number of rows: short estimates of a few tiles, then of changes of the best, then full times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol as Interface

from gemmdb.generators.vllm import space
from gemmdb.generators.vllm.layers import Layer
from gemmdb.generators.vllm.rows import Row
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status

ESTIMATE, SAMPLES = 3, 30
"""Samples of an estimate and of a full time."""
VARIED, ROUNDS, FINALISTS = 3, 3, 5
"""How many of the best tiles are varied, how often at most, and how many are timed in full."""
CHUNK = 8
"""Configs that are timed in turn with vLLM's present one. Each has CUDA graphs, and memory, of its own."""


class Timer(Interface):
    """Times configs of one layer with one number of rows."""

    current: Tile
    """vLLM's present choice."""
    shared_bytes: int

    def time(self, tiles: Sequence[Tile], samples: int) -> list[Row]:
        """Return a row for each config, checked and timed in turn with `current`. A failure is a row."""


def search(
    layer: Layer, m: int, timer: Timer, seeds: Iterable[Tile], in_time: Callable[[], bool]
) -> list[Row]:  # fmt: skip
    """Return rows of what was tried; the finalists' are full measurements. `seeds`: further tiles, such as the best of
    another M. `in_time`: whether there is time for further estimates; the first always run."""
    rows: dict[Tile, Row] = {}

    def estimate(tiles: Iterable[Tile]) -> None:
        new = [tile for tile in dict.fromkeys(tiles) if tile not in rows]
        for first in range(0, len(new), CHUNK):
            if not rows or in_time():
                found = timer.time(new[first : first + CHUNK], ESTIMATE)
                rows.update({row.tile: replace(row, status=_estimated(row)) for row in found})

    legal = [tile for tile in seeds if space.legal(tile, layer, timer.shared_bytes)]
    estimate([timer.current, *legal, *space.tiles(layer, m, timer.shared_bytes)])
    for _ in range(ROUNDS):
        before = fastest(rows.values())[:1]
        tops = fastest(rows.values())[:VARIED]
        estimate(tile for top in tops for tile in space.near(top, layer, timer.shared_bytes))
        if fastest(rows.values())[:1] == before:
            break
    finalists = dict.fromkeys([timer.current, *fastest(rows.values())[:FINALISTS]])
    rows.update({row.tile: row for row in timer.time(list(finalists), SAMPLES)})
    return list(rows.values())


def _estimated(row: Row) -> Status:
    return Status.SLOW if row.status is Status.OK else row.status


def fastest(rows: Iterable[Row]) -> list[Tile]:
    """Return the tiles that have times, the fastest first."""
    timed = [(row.times.ratio, str(row.tile), row.tile) for row in rows if row.times]
    return [tile for _, _, tile in sorted(timed)]
