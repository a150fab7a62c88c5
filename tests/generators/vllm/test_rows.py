"""The file of rows: what is written is read back, other layers and versions do not count, strangers' lines end it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemmdb.errors import InputError
from gemmdb.generators.vllm.rows import Record, Row, picks
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, Times

LAYER, VERSIONS = {"kind": "linear", "n": 64, "k": 128}, {"vllm": "0.26.0", "device": "NVIDIA H200"}
TILE, OTHER = Tile(16, 64, 128, 1, 4, 3), Tile(16, 128, 128, 1, 4, 3)


def timed(tile: Tile, us: float, current: bool = False, m: int = 1) -> Row:
    return Row(m, tile, Status.OK, Times(us, us - 0.5, us + 0.5, 30, 10.0), 0.0, current)


ROWS = [
    timed(TILE, 10.0, current=True),
    timed(OTHER, 8.0),
    Row(1, replace(TILE, stages=5), Status.ERROR, detail="OutOfResources: shared memory"),
    replace(timed(replace(TILE, warps=8), 20.0), status=Status.SLOW, error=0.01),
]


def record(path, layer=LAYER, versions=VERSIONS) -> Record:
    return Record(path, layer, versions)


def test_what_is_added_is_read_back_and_appended(tmp_path):
    path = tmp_path / "rows.jsonl"
    record(path).add(ROWS[:2])
    again = record(path)
    assert again.rows == ROWS[:2]
    again.add(ROWS[2:])
    assert again.rows == ROWS
    assert record(path).rows == ROWS


@pytest.mark.parametrize("other", [{"layer": {**LAYER, "n": 65}}, {"versions": {**VERSIONS, "vllm": "0.27.0"}}])
def test_rows_of_another_layer_or_other_versions_do_not_count(tmp_path, other):
    path = tmp_path / "rows.jsonl"
    record(path).add(ROWS)
    assert record(path, **other).rows == []


@pytest.mark.parametrize(
    "changes",
    [
        {"m": 0}, {"m": "1"}, {"tile": {"BLOCK_SIZE_M": 16}}, {"tile": []}, {"status": "good"}, {"more": 1},
        {"times": {"median_us": -1.0}}, {"times": [1]},
        {"layer": None, "tile": None},
    ],
)  # fmt: skip
def test_a_line_that_is_none_of_ours_is_refused_with_its_place(tmp_path, changes):
    path = tmp_path / "rows.jsonl"
    record(path).add(ROWS[:1])
    line = json.loads(path.read_text()) | changes
    if changes.get("layer", line["layer"]) is None:
        del line["layer"]
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl:2: not a row of this command .* delete the file"):
        record(path)


@pytest.mark.parametrize("text", ["no JSON", "[" * 5000, "[]", "\udcff"])
def test_other_text_is_refused(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InputError, match="not a row"):
        record(path)


def test_the_fastest_wins_if_it_is_clearly_faster_than_the_present_config():
    assert picks(ROWS) == {1: ROWS[1]}
    assert picks([*ROWS, timed(replace(OTHER, stages=4), 7.0)])[1].tile.stages == 4
    slight = timed(OTHER, 9.85)
    unsure = replace(ROWS[1], times=Times(9.0, 7.0, 10.1, 30, 10.0))
    assert picks([ROWS[0], slight]) == {1: ROWS[0]}
    assert picks([ROWS[0], unsure]) == {1: ROWS[0]}


def test_a_size_without_a_full_time_of_the_present_config_has_no_pick():
    assert picks(ROWS[1:]) == {}
    assert picks([replace(ROWS[0], status=Status.SLOW), ROWS[1]]) == {}
    assert list(picks([timed(TILE, 10.0, True, 64), *ROWS])) == [1, 64]
