"""What cuBLASLt's heuristic proposes, and local search: configs that differ from a good one in one attribute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from gemmdb.cublaslt import library
from gemmdb.cublaslt.matmul import MAX_WORKSPACE, Matmul, attributes
from gemmdb.cublaslt.tiles import CLUSTERS, CUSTOM, PARTIAL_SUMS, identifiers, tiles
from gemmdb.errors import InputError
from gemmdb.kernels.config import Config

SPLITS = (1, 2, 4)


def heuristic(matmul: Matmul, most: int) -> list[Config]:
    """Return at most `most` algorithms of cuBLASLt's heuristic, in its order; none if it knows none. They compute the
    activation of the shape."""
    try:
        named = [attributes(one.algorithm) for one in matmul.heuristics(most, MAX_WORKSPACE)]
    except library.Error:
        return []
    found = []
    for values in named:
        with contextlib.suppress(InputError):  # A later cuBLASLt has attributes that no config can have.
            found.append(activated(Config.of("cublaslt", "matmul", **values), matmul.shape.activation))
    return found


def activated(config: Config, activation: str) -> Config:
    """Return a config with the same algorithm that also computes an activation; `config` itself for none."""
    if not activation:
        return config
    return Config.of("cublaslt", "matmul_activation", **config.values, activation=activation)


def around(best: Sequence[Config], supported: Callable[[Config], bool]) -> Iterator[Config]:
    """Yield the supported configs that resemble one of the `best`, as many for each of them, without repeats."""
    seen: set[Config | None] = {None}
    for step in zip_longest(*(nearby(config, supported) for config in best)):
        for config in step:
            if config not in seen:
                seen.add(config)
                yield config


def nearby(config: Config, supported: Callable[[Config], bool]) -> Iterator[Config]:
    """Yield the supported configs that differ from `config` in one attribute: in the tile, which is the next supported
    one in each direction, in the cluster, in `custom` or in the split of K. These take turns, so that a limit leaves
    none of them out. Configs may repeat."""
    custom = int(config.values["custom"])
    clusters = (_changed(config, cluster=cluster) for cluster in CLUSTERS)
    customs = (_changed(config, custom=other) for other in sorted(CUSTOM, key=lambda value: (value ^ custom) & 1))
    splits = (_changed(config, split_k=parts, reduction=PARTIAL_SUMS if parts > 1 else 0) for parts in SPLITS)
    kinds = [filter(supported, (one for one in kind if one != config)) for kind in (clusters, customs, splits)]
    for turn in zip_longest(_tiles(config, supported), *kinds):
        yield from (one for one in turn if one is not None)


def _tiles(config: Config, supported: Callable[[Config], bool]) -> Iterator[Config]:
    """Yield the next smaller and the next larger supported tile along M, then along N."""
    sides = tiles().get(int(config.values["tile"]))
    if sides is None:
        return
    for side in (0, 1):
        same = [other for other in identifiers() if other[1 - side] == sides[1 - side]]
        smaller = sorted((other for other in same if other[side] < sides[side]), reverse=True)
        larger = sorted(other for other in same if other[side] > sides[side])
        for direction in (smaller, larger):
            found = (_changed(config, tile=identifiers()[other]) for other in direction)
            yield from (one for one in [next(filter(supported, found), None)] if one is not None)


def _changed(config: Config, **values: int) -> Config:
    return Config.of(config.backend, config.kernel, **{**config.values, **values})
