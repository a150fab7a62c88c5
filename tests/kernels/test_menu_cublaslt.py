"""The menu of cuBLASLt's algorithms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gemmdb import cublaslt
from gemmdb.cublaslt.tiles import known, ran
from gemmdb.kernels.menus import cublaslt as menu
from gemmdb.kernels.menus.cublaslt import (
    CONFIGS,
    FEATURES,
    OF_PROBLEM,
    PER_TILE,
    Ranking,
    Way,
    configs,
    features,
    tile_of,
)
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
LISTED = json.loads((Path(cublaslt.__file__).parent / "tiles.json").read_text())
SIZES = {name: [rows, columns] for name, (rows, columns, _) in LISTED.items()}


FILE = Path(menu.__file__).with_name("cublaslt.json")


def document():
    """What the shipped file holds."""
    return json.loads(FILE.read_text())


def test_the_file_is_small_and_lists_ways_that_ran():
    proven = Ranking.read().proven
    assert FILE.stat().st_size < 40_000
    assert len(proven) > 500
    for one in proven:
        assert [one.tile.columns, one.tile.rows] == SIZES[str(one.tile.identifier)]
        assert ran(one.tile.identifier, one.option + one.tile.swap, one.cluster)


def test_the_trees_predict_what_was_fitted():
    trees = Ranking.read().trees
    assert len(trees.checks) >= 8
    for row, expected in trees.checks:
        assert trees.log(row) == pytest.approx(expected, abs=3e-3)
    assert len({expected for _, expected in trees.checks}) > 4


def test_each_feature_has_a_name():
    tile = Ranking.read().proven[0].tile
    found = features(Problem.gemm("mm", m=100, n=256, k=512, layout="tn"), tile, Way(0, 2, 1), 132)
    assert len(found) == len(FEATURES)
    assert found[-OF_PROBLEM:] == (math.log2(100), 8, 9, True, True)


def test_the_order_is_that_of_the_trees():
    problem, trees = Problem.gemm("mm", m=176, n=6144, k=4096), Ranking.read().trees
    estimates = []
    for config in configs(problem, H200):
        values = {name: int(value) for name, value in config.values.items()}
        way = Way(values["custom"] & ~1, values["cluster"], values["split_k"])
        estimates.append(trees.log(features(problem, tile_of(values["tile"], values["custom"]), way, 132)))
    assert estimates == sorted(estimates)


@pytest.mark.parametrize(
    "proven",
    [
        None, [], {}, {"7": 7}, {"7": [7]}, {"7": [[0, 2, 0, 17]]}, {"7": [["0"] * 5]}, {"7": [[0, 2, True, 17, 64]]},
        {"7": [[0, 2, 0, 17, 16]]}, {"7": [[0, 2, 2, 17, 64]]}, {"7": [[8, 2, 0, 17, 64]]}, {"7": [[0, 1, 0, 17, 64]]},
        {"999": [[0, 2, 0, 17, 64]]}, {"x": [[0, 2, 0, 17, 64]]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(proven):
    with pytest.raises(ValueError, match=r"^.{5,120}$"):
        Ranking.parse({**document(), "proven": proven})


def test_a_file_of_another_version_is_refused():
    with pytest.raises(ValueError, match="not trees of format"):
        Ranking.parse({**document(), "trees": {}})
    with pytest.raises(ValueError, match="no ways"):
        Ranking.parse([])


@pytest.mark.parametrize(("m", "known_rows"), [(16, [64]), (64, [64]), (65, []), (300, [300]), (301, [300])])
def test_only_ways_that_were_fast_with_as_many_rows_are_tried(m, known_rows):
    """More or fewer rows than any that were measured count as the nearest."""
    few, many = [1, 2, 0, 17, 64], [1, 4, 0, 100, 300]
    ranking = Ranking.parse({**document(), "proven": {"10": [few, many]}})
    assert ranking.rows(Problem.gemm("mm", m=m, n=4096, k=4096)) in range(17, 301)
    found = configs(Problem.gemm("mm", m=m, n=4096, k=4096), H200, ranking)
    assert [{2: 64, 4: 300}[config.values["cluster"]] for config in found] == known_rows


@pytest.mark.parametrize(
    "problem",
    [
        Problem.gemm("mm", m=2048, n=8192, k=8192), Problem.gemm("mm", m=96, n=4096, k=4096),
        Problem.gemm("mm", m=512, n=1024, k=4096, layout="tn"), Problem.gemm("bmm", batch=16, m=128, n=256, k=512),
    ],
    ids=lambda problem: problem.head,
)  # fmt: skip
def test_no_algorithm_is_tried_that_a_process_refuses_to_ask_for(problem):
    """A third of the former menu's algorithms were refused with 1,024 rows or more, which left fewer to time."""
    found = configs(problem, H200)
    assert len(found) == CONFIGS
    assert all(known({name: int(value) for name, value in config.values.items()}) for config in found)


@pytest.mark.parametrize("sizes", [(17, 4096, 4096), (176, 6144, 4096), (768, 2048, 7168), (4000, 8192, 8192)])
def test_sixteen_legal_configs_without_repeats_and_few_of_one_tile(sizes):
    problem = Problem.gemm("mm", **dict(zip("mnk", sizes, strict=True)))
    found = configs(problem, H200)
    assert len(found) == len(set(found)) == 16
    assert all(config.rejection(problem, H200) is None for config in found)
    tiles = [config.values["tile"] for config in found]
    assert max(map(tiles.count, tiles)) <= PER_TILE


def test_a_split_of_k_keeps_its_sums_in_fp32_and_fits_the_gpu_once():
    problem = Problem.gemm("mm", m=32, n=512, k=16_384)
    split = [config for config in configs(problem, H200) if config.values["split_k"] != 1]
    assert split, "16,384 products for each of 16,384 sums want a split"
    for config in split:
        columns, rows = SIZES[str(config.values["tile"])]
        tiles = math.ceil(problem.n / columns) * math.ceil(problem.m / rows)
        assert tiles * int(config.values["split_k"]) <= H200.units
        assert config.values["reduction"] == 2


def test_tiles_are_no_higher_than_two_times_the_rows():
    for config in configs(Problem.gemm("mm", m=32, n=8192, k=4096), H200):
        assert SIZES[str(config.values["tile"])][1] < 64


@pytest.mark.parametrize("problem", [Problem.gemm("int_mm", m=64, n=512, k=512)])
def test_nothing_is_ranked_where_nothing_was_explored(problem):
    assert configs(problem, H200) == []
    assert configs(Problem.gemm("mm", m=64, n=512, k=512), Device("cuda", "sm80", "NVIDIA A100", 108, 80)) == []
