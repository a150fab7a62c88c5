"""Figures and reports of benchmarks/programs, from recorded rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.programs import figures, report
from benchmarks.programs.suite import suite


def row(name: str = "one", **ways: list[float]) -> dict[str, object]:
    """A measured program with these times."""
    facts = {way: {"cold_s": 2.0 + len(way), "warm_s": 1.0, "error": 0.01} for way in ways}
    return {"program": name, "kind": "bf16", "ways": facts, "taken": ways, "clock": "graph"}


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=40))
def test_a_way_is_as_fast_as_itself(times: list[float]) -> None:
    assert figures.gain(row(default=times, gemmdb=times), "gemmdb", "default") == [1.0, 1.0, 1.0]


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=60))
def test_a_median_lies_within_its_interval(values: list[float]) -> None:
    low, middle, high = figures.ends(values)
    assert min(values) <= low <= middle <= high <= max(values)


def test_a_program_is_slower_only_beyond_noise() -> None:
    default = [100.0, 101.0, 99.0] * 7
    assert figures.slower(row(default=default, gemmdb=[us * 1.02 for us in default]), "gemmdb")
    assert not figures.slower(row(default=default, gemmdb=[us * 1.005 for us in default]), "gemmdb")
    noisy = [us * (0.9 if index % 2 else 1.14) for index, us in enumerate(default)]
    assert not figures.slower(row(default=default, gemmdb=noisy), "gemmdb")
    assert not figures.slower(row(default=default), "gemmdb")


def test_a_step_that_was_timed_a_few_times_is_compared_with_its_median() -> None:
    found = figures.gain(row(default=[900.0, 1000.0, 1100.0], gemmdb=[10.0] * 9), "gemmdb", "default")
    assert found == [100.0, 100.0, 100.0]


def test_outputs_are_wrong_only_beside_default_mode_and_the_tolerance() -> None:
    measured = row(default=[1.0], gemmdb=[1.0])
    assert not figures.wrong(measured, "gemmdb")
    for error, default, expected in ((0.019, 0.001, False), (0.05, 0.03, False), (0.07, 0.03, True)):
        measured["ways"]["gemmdb"]["error"], measured["ways"]["default"]["error"] = error, default
        assert figures.wrong(measured, "gemmdb") == expected
    measured["ways"]["gemmdb"]["error"] = float("nan")
    assert figures.wrong(measured, "gemmdb")


def test_figures_count_the_last_row_of_a_program_and_take_means_by_class() -> None:
    old = row("a", default=[100.0] * 9, gemmdb=[200.0] * 9)
    rows = [old, row("a", default=[400.0] * 9, gemmdb=[100.0] * 9), row("b", default=[100.0] * 9, gemmdb=[100.0] * 9)]
    found = figures.figures(rows)
    assert (found["programs"], found["timed"], found["slower"]) == (2, 2, [])
    both = {"programs": 2, "mean": pytest.approx(2.0), "median": 2.5, "from": 1.0, "to": 4.0}
    assert found["over default"] == {figures.FORWARD: both, "bf16": both}
    quantised = [{**rows[1], "program": kind, "kind": kind} for kind in ("int8", "fp8")]
    means = figures.figures([*rows, *quantised])["over default"]
    assert [means[name]["mean"] for name in ("int8", "fp8", "int8 and fp8")] == [pytest.approx(4.0)] * 3
    assert [means[name]["programs"] for name in means] == [2, 1, 1, 2, 2]
    assert list(means) == [figures.FORWARD, "int8", "fp8", "bf16", "int8 and fp8"]
    assert figures.figures([old])["slower"] == ["a"]
    assert found["compile cold over default"] == pytest.approx((2 + len("gemmdb")) / (2 + len("default")))


def test_the_report_has_a_line_per_program_and_says_what_failed(tmp_path: Path, capsys) -> None:
    rows = [row("fast", default=[100.0] * 9, gemmdb=[50.0] * 9), row("broken", default=[1.0] * 9)]
    rows[1]["ways"]["gemmdb"] = {"failure": "cold: exit 1: RuntimeError: no"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    report.main(argparse.Namespace(files=[path], way="gemmdb", short=False, json=False))
    text = capsys.readouterr().out
    assert "| fast | 100 | 2.000 (2.000 to 2.000) |" in text
    assert "gemmdb: cold: exit 1: RuntimeError: no" in text
    assert "| 1 encoders, vision, audio, diffusion, prefills | 2.000x | 2.000x | 2.000x | 2.000x |" in text
    assert "- failed: 1 (broken)" in text
    report.main(argparse.Namespace(files=[path], way="gemmdb", short=False, json=True))
    assert json.loads(capsys.readouterr().out)["failed"] == ["broken"]


def test_steps_as_users_run_them_have_figures_of_their_own(tmp_path: Path, capsys) -> None:
    captured = {
        **row("a", default=[100.0] * 9, gemmdb=[50.0] * 9),
        "as_run": {"default": [300.0] * 9, "gemmdb": [330.0] * 9},
    }
    blocks = {**row("b", default=[100.0] * 9, gemmdb=[80.0] * 9), "clock": "one run after the other: no graph"}
    older = row("c", default=[100.0] * 9, gemmdb=[100.0] * 9)
    found = figures.figures([captured, blocks, older])
    assert (found["timed"], found["timed as run"]) == (3, 2)
    assert (found["slower"], found["slower as run"]) == ([], ["a"])
    means = found["over default as run"][figures.FORWARD]
    assert (means["programs"], means["from"], means["to"]) == (2, pytest.approx(300 / 330), 1.25)
    assert figures.summary(captured)["gemmdb over default as run"] == [0.909] * 3
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(captured) + "\n")
    report.main(argparse.Namespace(files=[path], way="gemmdb", short=False, json=False))
    text = capsys.readouterr().out
    assert "| 2.000 (2.000 to 2.000) |  | 0.909 (0.909 to 0.909) |" in text
    assert "over default as run: geometric mean" in text
    assert "- slower as run: 1 (a)" in text


def test_the_last_row_with_times_as_run_counts() -> None:
    timed = {**row("a", default=[9.0] * 9, gemmdb=[9.0] * 9), "as_run": {"default": [20.0] * 9, "gemmdb": [10.0] * 9}}
    assert figures.figures([timed, row("a", default=[9.0] * 9, gemmdb=[9.0] * 9)])["timed as run"] == 1


def test_the_short_table_has_the_largest_gain_first() -> None:
    rows = [row("slow", default=[100.0] * 9, gemmdb=[100.0] * 9), row("fast", default=[100.0] * 9, gemmdb=[50.0] * 9),
            row("untimed", default=[100.0] * 9)]  # fmt: skip
    _, _, *lines = report.short(figures.latest(rows), "gemmdb")
    assert lines == [
        "| fast | 2.000 (2.000 to 2.000) | 9.0 | 8.0 |", "| slow | 1.000 (1.000 to 1.000) | 9.0 | 8.0 |",
    ]  # fmt: skip


def test_the_last_row_that_has_both_ways_is_compared() -> None:
    old = row("a", **{"default": [300.0] * 9, "gemmdb": [200.0] * 9, "max-autotune": [100.0] * 9})
    new = row("a", default=[300.0] * 9, gemmdb=[100.0] * 9)
    found = figures.figures([old, new])
    assert found["over default"]["bf16"]["mean"] == pytest.approx(3.0)
    assert found["over max-autotune"]["bf16"]["mean"] == pytest.approx(0.5)


def cold(name: str, **seconds: float) -> dict[str, object]:
    """A program of which nothing but cold compiles was measured."""
    facts = {way: {"cold_s": one, "enabling_s": 0.1, "waited_s": 0.0} for way, one in seconds.items()}
    return {"program": name, "kind": "bf16", "ways": facts, "cold": True}


@pytest.mark.parametrize("first", ["timed", "cold"])
def test_gains_are_those_of_times_and_compile_times_those_of_compiles_alone(first: str) -> None:
    timed = [row("a", default=[300.0] * 9, gemmdb=[100.0] * 9), row("b", default=[300.0] * 9, gemmdb=[100.0] * 9)]
    alone = [cold("a", default=5.0, gemmdb=9.0), cold("a", default=5.0, gemmdb=6.0), cold("c", default=5.0, gemmdb=5.0)]
    rows = [*timed, *alone] if first == "timed" else [*alone, *timed]
    found = figures.figures(rows)
    assert (found["programs"], found["timed"], found["compiled with nothing else"]) == (3, 2, 2)
    assert found["over default"]["bf16"]["programs"] == 2
    ratios = {"a": 6 / 5, "b": (2 + len("gemmdb")) / (2 + len("default")), "c": 1.0}
    assert found["compile cold over default"] == pytest.approx(sorted(ratios.values())[1])
    assert found["compile warm over default"] == 1.0
    assert found["most seconds longer than default"] == 1.0
    assert figures.figures(figures.latest(rows)) == found
    (_, _, *lines) = report.short(figures.latest(rows), "gemmdb")
    assert lines == ["| a | 3.000 (3.000 to 3.000) | 5.0 | 6.0 |", "| b | 3.000 (3.000 to 3.000) | 9.0 | 8.0 |"]
    (_, _, *lines) = report.table(figures.latest(rows), "gemmdb")
    compiled = {line.split(" | ")[0]: line.split(" | ")[5:7] for line in lines}
    assert compiled == {"| a": ["5.0 (1.0)", "6.0 (1.0)"], "| b": ["9.0 (1.0)", "8.0 (1.0)"], "| c": ["5.0", "5.0"]}


def test_ways_that_were_compiled_in_different_rows_are_not_compared() -> None:
    rows = [row("a", **{"default": [3.0] * 9, "max-autotune": [2.0] * 9}), cold("a", gemmdb=6.0)]
    found = figures.figures(rows)
    assert (found["compile cold over default"], found["compiled with nothing else"]) == (None, 0)
    both = figures.figures([*rows, cold("a", **{"gemmdb": 6.0, "max-autotune": 60.0})])
    assert both["compile cold over max-autotune"] == pytest.approx(0.1)


@pytest.mark.parametrize(("name", "expected"), [
    ("llama-decode-1", figures.DECODING), ("generate-llama", figures.DECODING), ("gpt-fast-bf16-1", figures.DECODING),
    ("llama-prefill-1x1024", figures.FORWARD), ("whisper-1500+4", figures.FORWARD), ("train-bert", "training"),
    ("gpt-fast-int8-8", "int8"), ("torchao-fp8wo-decode-1", "fp8"),
])  # fmt: skip
def test_programs_have_classes(name: str, expected: str) -> None:
    program = suite()[name]
    about = {"program": name, "collection": program.collection, "kind": program.kind}
    assert figures.class_of(about) == expected
