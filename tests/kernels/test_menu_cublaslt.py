"""The menu of cuBLASLt's algorithms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gemmdb import cublaslt
from gemmdb.kernels.menus.cublaslt import CLUSTERS, PER_TILE, Ranking, configs, features
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
LISTED = json.loads((Path(cublaslt.__file__).parent / "tiles.json").read_text())
SIZES = {name: [rows, columns] for name, (rows, columns, _) in LISTED.items()}


def test_each_tile_of_the_menu_has_the_size_of_its_identifier():
    tiles = Ranking.read().tiles
    assert len(tiles) > 100
    for tile in tiles:
        assert [tile.columns, tile.rows] == SIZES[str(tile.identifier)]


@pytest.mark.parametrize("count", [0, 1, 5, 21])
def test_a_ranking_for_some_features_gives_the_same_estimates(count):
    tile, ranking = Ranking.read().tiles[3], Ranking.read()
    values = features(Problem.gemm("mm", m=48, n=1024, k=2048, layout="tn"), tile, _way(), 132)
    first, last = values[: len(values) - count], values[len(values) - count :]
    assert ranking.of(last).loss(first) == pytest.approx(ranking.loss(values), rel=1e-9)


def test_there_is_a_weight_for_each_product_of_two_features():
    tile = Ranking.read().tiles[0]
    problem = Problem.gemm("mm", m=100, n=256, k=512)
    count = len(features(problem, tile, _way(), 132))
    assert [len(products) for _, products in Ranking.read().weights] == [count - place for place in range(count)]


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


def _way():
    from gemmdb.kernels.menus.cublaslt import Way

    return Way(0, next(iter(CLUSTERS)), 1)
