"""The configs that `gemmdb vllm` tries: all legal, few, and near the number of rows of an expert."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.generators.vllm import space
from gemmdb.generators.vllm.layers import USUAL, Experts, Linear
from gemmdb.generators.vllm_files import Tile

LAYERS = [Experts(8, 2, 4096, 7168), Experts(128, 8, 2048, 768), Experts(256, 8, 7168, 256, True), Linear(7168, 2048)]
SHARED = {"H200": 232_448, "RTX 4090": 101_376}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_there_are_a_few_tiles_for_each_size(layer, shared):
    for m in USUAL:
        found = space.tiles(layer, m, shared)
        assert 2 <= len(found) <= 18
        assert len(set(found)) == len(found)
        assert all(space.legal(tile, layer, shared) for tile in found)


def test_the_heights_follow_the_rows_of_an_expert():
    def heights(m: int) -> set[int]:
        return {tile.block_m for tile in space.tiles(LAYERS[0], m, SHARED["H200"])}

    assert heights(1) == {16}
    assert heights(128) == {16, 32, 64}
    assert heights(4096) == {128}


@given(layer=st.sampled_from(LAYERS), m=st.sampled_from(USUAL), data=st.data())
def test_a_change_changes_one_parameter(layer, m, data):
    tile = data.draw(st.sampled_from(space.tiles(layer, m, SHARED["H200"])))
    found = list(space.near(tile, layer, SHARED["H200"]))
    assert 2 <= len(found) <= 14
    for one in found:
        assert space.legal(one, layer, SHARED["H200"])
        assert sum(a != b for a, b in zip(astuple(one), astuple(tile), strict=True)) == 1


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        (Tile(64, 64, 256, 1, 4, 2), "a step along K across two blocks of scales"),
        (Tile(128, 256, 128, 1, 4, 3), "more sums than registers"),
        (Tile(16, 32, 128, 1, 8, 3), "threads without work"),
        (Tile(128, 128, 128, 1, 8, 5), None),
        (Tile(256, 256, 128, 1, 16, 5), "more than the shared memory"),
        (Tile(64, 64, 128, 1, 3, 3), "no number of warps"),
    ],
)
def test_what_cannot_run_is_not_tried(tile, said):
    assert space.legal(tile, LAYERS[2], SHARED["H200"]) == (said is None)
