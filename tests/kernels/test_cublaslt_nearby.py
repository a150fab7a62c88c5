"""The local search among cuBLASLt's algorithms, and the tiles that it walks along."""

import json
import lzma
from pathlib import Path

from kit.gpu import algorithm

from gemmdb.cublaslt.tiles import CLUSTERS, CUSTOM, identifiers, tiles
from gemmdb.cublaslt.tiles import known as safe
from gemmdb.kernels.menus.cublaslt_nearby import nearby


def found(config, supported=lambda config: True):
    return [one for one in nearby(config, supported) if one != config]


def test_tiles_are_named_by_their_sides_along_m_and_n():
    # CUBLASLT_MATMUL_TILE_128x64 and 64x128, of a matrix that lies by columns.
    assert (tiles()[18], tiles()[17]) == ((64, 128), (128, 64))
    assert all(tiles()[identifier] == sides for sides, identifier in identifiers().items())
    assert len(identifiers()) == len(tiles()) > 400


def test_what_never_ran_is_not_known_to_be_safe():
    known = {"algo": 66, "tile": 18, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 3, "inner": 0,
             "cluster": 2}  # fmt: skip
    split = {"split_k": 4, "reduction": 2}
    assert safe(known)
    assert safe({**known, **split})
    # cuBLAS 13.1 divides by zero when it is asked for the tiles 635 to 645, whose output has one column.
    others = {"tile": 641, "algo": 23, "stages": 20, "swizzle": 1, "custom": 8, "inner": 1, "cluster": 1}
    changes = [{name: value} for name, value in others.items()] + [{"tile": 636}, {"split_k": 4}, {"reduction": 2}]
    for changed in (*changes, {**split, "split_k": 17}):
        assert not safe({**known, **changed})


def test_all_that_was_explored_is_known_and_little_else():
    raw = Path(__file__).parents[2] / "benchmarks" / "results" / "h100" / "cublaslt" / "explored.jsonl.xz"
    with lzma.open(raw, "rt") as lines:
        ran = {(tile, custom, cluster) for line in lines for tile, custom, cluster, *_ in json.loads(line)["res"]}
    rest = {"algo": 66, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "inner": 0}
    known = {
        (tile, custom, cluster)
        for tile in tiles()
        for custom in CUSTOM
        for cluster in CLUSTERS
        if safe({**rest, "tile": tile, "custom": custom, "cluster": cluster})
    }
    assert ran <= known
    assert len(known) < 1.05 * len(ran)  # The others ran in builds.


def test_neighbours_differ_in_one_attribute_and_the_nearest_tiles_come_first():
    base = algorithm(tile=20, custom=1, cluster=2)
    configs = found(base)
    sides = [tiles()[config.values["tile"]] for config in configs if config.values["tile"] != 20]
    assert sides == [(120, 128), (136, 128), (128, 120), (128, 136)]
    names = ("tile", "cluster", "custom", "split_k")
    assert [next(name for name in names if config.values[name] != base.values[name]) for config in configs[:5]] == [
        *names, "tile"
    ]  # fmt: skip
    for config in configs:
        changed = {name for name, value in config.params if value != base.values[name]}
        assert len(changed - {"reduction"}) == 1
        assert config.values["reduction"] == (2 if config.values["split_k"] > 1 else 0)
    assert [c.values["custom"] for c in configs if c.values["custom"] != 1] == [3, 5, 7, 0, 2, 4, 6]
    assert {c.values["cluster"] for c in configs} == set(range(2, 10))
    assert {c.values["split_k"] for c in configs} == {1, 2, 4}


def test_a_tile_that_is_not_supported_is_passed_over():
    wide = found(algorithm(tile=20), lambda config: all(side % 64 == 0 for side in tiles()[config.values["tile"]]))
    assert {(64, 128), (192, 128), (128, 64), (128, 192)} < {tiles()[config.values["tile"]] for config in wide}
    assert found(algorithm(tile=20), lambda config: False) == []
    assert all(config.values["tile"] == 9999 for config in found(algorithm(tile=9999)))


def test_a_split_is_searched_back_to_none():
    split = algorithm(split_k=4, reduction=2)
    assert {c.values["reduction"] for c in found(split) if c.values["split_k"] == 1} == {0}
