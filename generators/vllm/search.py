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
VARIED, FINALISTS = 3, 5
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
    """Return rows of what was tried. `seeds`: further tiles, such as the best of another M. If `in_time` turns false,
    no row is a full measurement."""
    rows: dict[Tile, Row] = {}

    def estimate(tiles: Iterable[Tile]) -> None:
        new = [tile for tile in dict.fromkeys(tiles) if tile not in rows]
        for first in range(0, len(new), CHUNK):
            if in_time():
                found = timer.time(new[first : first + CHUNK], ESTIMATE)
                rows.update({row.tile: replace(row, status=_estimated(row)) for row in found})

    legal = [tile for tile in seeds if space.legal(tile, layer, timer.shared_bytes)]
    estimate([timer.current, *legal, *space.tiles(layer, m, timer.shared_bytes)])
    for tile in _fastest(rows.values())[:VARIED]:
        estimate(space.near(tile, layer, timer.shared_bytes))
    finalists = dict.fromkeys([timer.current, *_fastest(rows.values())[:FINALISTS]])
    if in_time():
        rows.update({row.tile: row for row in timer.time(list(finalists), SAMPLES)})
    return list(rows.values())


def _estimated(row: Row) -> Status:
    return Status.SLOW if row.status is Status.OK else row.status


def _fastest(rows: Iterable[Row]) -> list[Tile]:
    timed = [(row.times.ratio, str(row.tile), row.tile) for row in rows if row.times]
    return [tile for _, _, tile in sorted(timed)]
