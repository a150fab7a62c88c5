"""What two sets of timed runs say about a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.table.stats import Gain
from gemmdb.tune.gained import Timed, gained, of_dict, read, span

A, B = ("mm 1x16x64x64",), ("mm 1x16x64x64", "mm 1x16x128x64")


def run(us: float, kernels: int = 1, calls: int = 40):
    return {A: Timed(kernels, calls, tuple(us * (1 + 0.001 * (i % 5)) for i in range(calls)))}


def test_a_gain_is_an_interval():
    found = gained([run(100), run(102)], [run(50), run(51)])
    assert found.verdict == "faster"
    assert 1.85 < found.gain.low < found.gain.value < found.gain.high < 2.15
    assert abs(found.without_us - 40 * 101) < 60
    looks = gained([run(100), run(102)], [run(50), run(51)], looks=True)
    assert looks.gain.low < found.gain.low  # It may be one of several.
    single = gained([run(100)], [run(50)])  # The interval of its calls.
    assert single.gain.low < 2 < single.gain.high
    assert not single.is_certain


def test_each_run_is_one_sample():
    """The interval was that of all calls and of all runs: more runs only made it wider."""
    many = gained([run(us) for us in (100, 130, 95, 105, 99, 112)], [run(us) for us in (74, 80, 71, 92, 70, 78)])
    assert many.verdict == "faster"
    assert many.is_certain
    few = gained([run(100), run(130)], [run(74), run(92)])
    assert (few.verdict, few.is_certain) == ("no difference", False)


def test_graphs_that_one_run_did_not_call_are_left_out():
    found = gained([{**run(100), B: Timed(0, 3, (5.0,))}, run(100)], [{**run(50), B: Timed(0, 3, (5.0,))}, run(50)])
    assert (len(found.graphs), found.unmatched) == (1, 1)
    assert found.totals_us[0] == found.totals_us[0][:1] * 2


@pytest.mark.parametrize(("before", "after", "kernels", "verdict"), [
    ([50], [100], 1, "slower"),
    ([100, 130], [95, 110], 1, "no difference"),  # Runs differ by more than the two sides.
    ([100], [50], 0, "same kernels"),  # Whatever the times say.
])  # fmt: skip
def test_verdicts(before, after, kernels, verdict):
    assert gained(list(map(run, before)), [run(us, kernels) for us in after]).verdict == verdict


def test_graphs_that_only_one_side_called_are_counted_apart():
    found = gained([{**run(100), B: Timed(0, 3, (5.0,))}], [run(50)])
    assert (len(found.graphs), found.unmatched) == (1, 1)


def test_nothing_was_timed():
    found = gained([{}], [{}])
    assert (found.verdict, found.gain) == ("nothing was timed", Gain(1.0, 1.0, 1.0))


def test_the_result_can_be_kept():
    found = gained([run(100), run(101)], [run(50), run(49)], 0.25, looks=True)
    assert of_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_processes_are_added_up(tmp_path: Path):
    graph = {"products": list(A), "kernels": 1, "calls": 3, "us": [7.0]}
    untimed = {"products": list(B), "kernels": 1, "calls": 2, "us": []}
    for process in (1, 2):
        (tmp_path / f"times-{process}.json").write_text(json.dumps({"graphs": [graph, graph, untimed]}))
    assert read(tmp_path) == {A: Timed(1, 12, (7.0,) * 4)}


@given(st.lists(st.lists(st.floats(1, 1e6), min_size=1, max_size=40), min_size=1, max_size=3))
def test_a_median_lies_in_its_interval(runs):
    found = span([Timed(0, len(us), tuple(us)) for us in runs])
    assert found.low <= found.us <= found.high
