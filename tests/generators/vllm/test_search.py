"""The search for one number of rows, with times from a formula instead of a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from gemmdb.generators.vllm import space
from gemmdb.generators.vllm.layers import Experts
from gemmdb.generators.vllm.rows import Row, picks
from gemmdb.generators.vllm.search import FINALISTS, SAMPLES, search
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, Times

LAYER = Experts(128, 8, 2048, 768)
CURRENT = Tile(64, 64, 64, 1, 4, 3)
BEST = Tile(32, 128, 64, 16, 4, 3)
SPACE = ((16, 32, 64, 128, 256), (32, 64, 128, 256), (64, 128, 256), (1, 16, 32, 64), (4, 8), (2, 3, 4, 5))
"""What vLLM's own tuning tries."""
SHARED = 232_448


def away(tile: Tile) -> float:
    """A time with one minimum: 100 us and 5% for each factor of two between a parameter and the best."""
    pairs = zip(vars(tile).values(), vars(BEST).values(), strict=True)
    return 100 * 1.05 ** sum(min(abs(math.log2(a / b)), 2) for a, b in pairs)


@dataclass
class Formula:
    """A Timer that counts what it times."""

    us: Callable[[Tile], float] = away
    failing: frozenset[Tile] = frozenset()
    shared_bytes: int = SHARED
    current: Tile = CURRENT
    calls: list[tuple[tuple[Tile, ...], int]] = field(default_factory=list)

    def time(self, tiles: Sequence[Tile], samples: int) -> list[Row]:
        self.calls.append((tuple(tiles), samples))
        return [self._row(tile, samples) for tile in tiles]

    def _row(self, tile: Tile, samples: int) -> Row:
        row = Row(64, tile, Status.WRONG, current=tile == self.current)
        if tile in self.failing:
            return row
        us = self.us(tile)
        return replace(row, status=Status.OK, times=Times(us, us * 0.99, us * 1.01, samples, self.us(self.current)))


def always() -> bool:
    return True


def test_it_finds_the_best_config_with_a_tenth_of_the_tries():
    timer = Formula()
    rows = search(LAYER, 64, timer, (), always)
    legal = [tile for tile in (Tile(*values) for values in product(*SPACE)) if space.legal(tile, LAYER, SHARED)]
    best = min(map(away, legal))
    assert best == away(BEST)
    assert picks(rows)[64].tile == BEST
    assert len(rows) < len(legal) / 10


def test_only_finalists_and_the_present_config_are_timed_in_full():
    timer = Formula()
    rows = search(LAYER, 64, timer, (), always)
    full = [tiles for tiles, samples in timer.calls if samples == SAMPLES]
    assert len(full) == 1
    assert CURRENT in full[0]
    assert len(full[0]) <= FINALISTS + 1
    assert {row.tile for row in rows if row.status is Status.OK} == set(full[0])
    assert len({row.tile for row in rows}) == len(rows)


def test_without_time_it_tries_the_first_few_and_times_the_best_of_them_in_full():
    timer = Formula()
    rows = search(LAYER, 64, timer, (BEST,), lambda: False)
    assert [samples for _, samples in timer.calls] == [3, SAMPLES]
    assert picks(rows)[64].tile == BEST


def test_configs_of_other_sizes_are_tried_if_they_are_legal():
    timer = Formula()
    seed, illegal = Tile(16, 32, 128, 32, 4, 5), Tile(256, 256, 256, 1, 4, 8)
    search(LAYER, 64, timer, (seed, illegal), always)
    tried = {tile for tiles, _ in timer.calls for tile in tiles}
    assert seed in tried
    assert illegal not in tried


def test_a_config_that_fails_is_a_row_and_never_wins():
    timer = Formula(failing=frozenset({BEST}))
    rows = search(LAYER, 64, timer, (BEST,), always)
    assert {row.status for row in rows if row.tile == BEST} == {Status.WRONG}
    chosen = picks(rows)[64]
    assert chosen.tile != BEST
    assert away(chosen.tile) == away(replace(BEST, stages=4))  # The second best.


def test_the_present_config_stays_if_nothing_is_clearly_faster():
    timer = Formula(us=lambda tile: 100.0 if tile == CURRENT else 98.5)
    assert picks(search(LAYER, 64, timer, (), always))[64].current
