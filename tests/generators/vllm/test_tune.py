"""The parts of tuning that need no GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gemmdb.errors import InputError
from gemmdb.generators.vllm import tune
from gemmdb.generators.vllm.layers import Linear
from gemmdb.generators.vllm.rows import Record, Row, picks
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, Times


def test_a_search_ends_where_another_step_as_long_as_the_last_would_exceed_its_time(monkeypatch):
    clock = iter([100.0, 103.0, 105.0, 108.0])
    monkeypatch.setattr(tune, "monotonic", lambda: next(clock))
    more = tune.Deadline(110.0, last=99.0)
    assert [more() for _ in range(4)] == [True, True, True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path):
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        tune.tune(Linear(256, 256), (1,), tmp_path / "configs", 60.0, lambda words, left_s: None)
    assert not (tmp_path / "configs").exists()


class Sizes:
    """Stands for the search of a size: takes `seconds` of a clock, and has rows of the present config."""

    def __init__(self, seconds: float, stop_at: int = 0) -> None:
        self.seconds, self.stop_at, self.now, self.seeds = seconds, stop_at, 0.0, dict[int, list[Tile]]()
        self.until = dict[int, float]()

    def search(self, run: object, weights: object, m: int, seeds: list[Tile], until: float) -> list[Row]:
        if m == self.stop_at:
            raise KeyboardInterrupt
        self.now += self.seconds
        self.seeds[m], self.until[m] = list(seeds), until
        return [Row(m, Tile(16, 64, 64, m, 4, 3), Status.OK, Times(9.0, 8.0, 10.0, 30, 9.0), 0.0, True)]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Returns a function that measures sizes with a stand-in, and the sizes that the file of rows then has."""

    def measure(sizes: Sizes, wanted: tuple[int, ...], budget_s: float) -> tuple[bool, list[int]]:
        monkeypatch.setattr(tune, "monotonic", lambda: sizes.now)
        monkeypatch.setattr(tune._Run, "_weights", lambda _: [])
        monkeypatch.setattr(tune._Run, "_search", lambda run, *given: sizes.search(run, *given))
        record = Record(tmp_path / "rows.jsonl", {}, {})
        interrupted = tune._Run(Linear(256, 256), record, sizes.now + budget_s, lambda *_: None).measure(wanted)
        return interrupted, list(picks(Record(tmp_path / "rows.jsonl", {}, {}).rows))

    return measure


def test_each_size_gets_an_equal_share_of_what_is_left_and_the_configs_of_those_before(measured):
    sizes = Sizes(seconds=10.0)
    assert measured(sizes, (1, 2, 4), 90.0) == (False, [1, 2, 4])
    assert sizes.until == {m: end - tune.FULL_S for m, end in ((1, 30.0), (2, 50.0), (4, 90.0))}
    assert [[tile.group_m for tile in seeds] for seeds in sizes.seeds.values()] == [[], [1], [2, 1]]


def test_no_size_starts_that_would_exceed_the_budget_and_the_next_run_measures_the_rest(measured):
    sizes = Sizes(seconds=10.0)
    assert measured(sizes, (1, 2, 4, 8), 25.0) == (False, [1, 2])
    assert sizes.now == 20.0
    again = Sizes(seconds=10.0)
    assert measured(again, (1, 2, 4, 8), 25.0) == (False, [1, 2, 4, 8])
    assert list(again.until) == [4, 8]


def test_a_budget_that_is_too_short_for_any_size_measures_one_each_time(measured):
    assert measured(Sizes(seconds=10.0), (1, 2, 4), -3.0) == (False, [1])
    assert measured(Sizes(seconds=10.0), (1, 2, 4), -3.0) == (False, [1, 2])


def test_an_interruption_keeps_the_sizes_that_are_done(measured):
    assert measured(Sizes(seconds=10.0, stop_at=4), (1, 2, 4, 8), 300.0) == (True, [1, 2])
    assert measured(Sizes(seconds=10.0), (1, 2, 4, 8), 300.0) == (False, [1, 2, 4, 8])
