"""benchmarks/programs: which programs are measured, which of them at once, and what is kept of a failure."""

from __future__ import annotations

import argparse
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.programs import failures, measure, processes
from benchmarks.programs.plan import Plan, already, missing
from benchmarks.programs.program import Built, Program

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 31.28 GiB."


def program(name: str, tuned: bool = False) -> Program:
    """A program that is never made."""
    return Program(name, "int8", lambda size, device: Built(lambda compile: None), tuned=tuned)


def row(name: str, **ways: str) -> dict[str, object]:
    """A row of a file: a reason for each way that failed, nothing for one that did not."""
    facts = {way: {"failure": why} if why else {"cold_s": 1.0} for way, why in ways.items()}
    return {"program": name, "ways": facts}


def test_a_file_with_all_ways_of_a_program_is_not_measured_again() -> None:
    rows = [row("both", default="", gemmdb=""), row("one", default=""), {"program": "none", "skipped": "why"}]
    assert already(rows, ["default", "gemmdb"]) == {"both"}
    assert already(rows, ["default"]) == {"both", "one"}


def test_rows_of_cold_compiles_alone_are_asked_for_by_themselves() -> None:
    rows = [row("timed", default=""), {**row("cold", default=""), "cold": True}]
    assert already(rows, ["default"]) == {"timed"}
    assert already(rows, ["default"], cold=True) == {"cold"}
    programs = [program(name) for name in ("cold", "timed")]
    assert [one.name for one in missing(programs, rows, ["default"], cold=True)] == ["timed"]


def test_a_program_that_failed_is_measured_again_after_the_others() -> None:
    """A way that failed counts if it is asked for; so does the failure of the process that times all ways."""
    rows = [row("a", default="", gemmdb=OUT_OF_MEMORY), {**row("b", default="", gemmdb=""), "failure": "warm"}]
    programs = [program(name) for name in "abc"]
    assert [one.name for one in missing(programs, rows, ["default", "gemmdb"])] == ["c", "a", "b"]
    assert [one.name for one in missing(programs, rows, ["default"])] == ["c", "b"]
    again = [*rows, row("a", default="", gemmdb="")]
    assert [one.name for one in missing(programs, again, ["default", "gemmdb"])] == ["c", "b"]


def test_programs_that_tune_run_two_at_once_beside_others() -> None:
    plan = Plan([program("t1", True), program("t2", True), program("t3", True), program("a"), program("b")], tuned=2)
    taken = [plan.take("0") for _ in range(4)]
    assert [one and one.name for one in taken] == ["t1", "t2", "a", "b"]
    assert (other := plan.take("1")) is not None
    assert other.name == "t3"  # Another GPU has places of its own.


def test_a_place_waits_for_a_program_that_tunes_to_end() -> None:
    first, second = program("first", True), program("second", True)
    plan, found = Plan([first, second], tuned=1), []
    assert plan.take("0") == first
    waits = threading.Thread(target=lambda: found.append(plan.take("0")))
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    plan.done("0", first)
    waits.join(10)
    assert found == [second]
    assert plan.take("0") is None


def test_a_plan_that_is_stopped_keeps_no_place_waiting() -> None:
    plan, found = Plan([program("first", True), program("second", True)], tuned=1), []
    plan.take("0")
    waits = threading.Thread(target=lambda: found.append(plan.take("0")))
    waits.start()
    plan.stop()
    waits.join(10)
    assert found == [None]


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 3), st.integers(1, 6))
def test_all_programs_are_taken_once_and_never_too_many_tune(kinds: list[bool], tuned: int, places: int) -> None:
    programs = [program(str(index), kind) for index, kind in enumerate(kinds)]
    plan, taken, most, now, lock = Plan(list(programs), tuned), [], [0], [0], threading.Lock()

    def work() -> None:
        while one := plan.take("0"):
            with lock:
                taken.append(one.name)
                now[0] += one.tuned
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= one.tuned
            plan.done("0", one)

    threads = [threading.Thread(target=work) for _ in range(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(taken) == sorted(one.name for one in programs)
    assert most[0] <= tuned


def test_measure_runs_as_many_programs_at_once_as_it_is_told(tmp_path, monkeypatch, capsys) -> None:
    programs = [program(f"t{index}", True) for index in range(3)] + [program("a"), program("b")]
    running, most, meeting = [], [], threading.Barrier(3)

    def measured(one: Program, names: list[str], place: processes.Place, options: argparse.Namespace) -> dict:
        running.append(one.tuned)
        most.append((len(running), sum(running)))
        if one.name in ("t0", "a", "b"):  # Fails unless these three run at once.
            meeting.wait(10)
        running.remove(one.tuned)
        return {**row(one.name, default=""), "kind": "int8"}

    monkeypatch.setattr(measure, "measured", measured)
    parser = argparse.ArgumentParser()
    measure.arguments(parser)
    options = parser.parse_args(["--out", str(tmp_path / "rows.jsonl"), "--jobs", "3", "--tuned", "1"])
    measure.everything(options, ["default"], programs)
    assert max(tuned for _, tuned in most) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 left"
    with pytest.raises(SystemExit):
        parser.parse_args(["--out", "x", "--tuned", "0"])
    assert "not a number of at least 1: 0" in capsys.readouterr().err


LOG = f"""W1124 a warning
Traceback (most recent call last):
  File "first.py", line 1, in <module>
    f()
KeyError: 'cause'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "second.py", line 2, in g
    raise error
    ^^^^^^^^^^^
{OUT_OF_MEMORY} GPU 0 has {{}}
CUDA kernel errors might be asynchronously reported at some other API call.

Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def test_the_exception_of_a_log_is_kept_and_no_advice() -> None:
    assert failures.ended(LOG.format("a total of 139 GiB")) == f"{OUT_OF_MEMORY} GPU 0 has a total of 139 GiB"
    assert len(failures.ended(LOG.format("many processes, " * 40))) == failures.MOST


def test_a_traceback_that_ended_nothing_is_not_the_reason() -> None:
    ignored = (
        "Exception ignored in: <function f>\nTraceback (most recent call last):\n  File 'x'\nTypeError: shutdown\n"
    )
    assert failures.ended(LOG.format("") + ignored).startswith(OUT_OF_MEMORY)
    assert failures.ended("one\nSegmentation fault\n\n") == "Segmentation fault"
    assert failures.ended("") == ""


def test_an_exception_is_its_first_line_and_what_a_colon_announces() -> None:
    assert failures.exception(RuntimeError("first line\nlast line")) == "RuntimeError: first line"
    assert (
        failures.exception(ValueError("x raised:\nKeyError: 'y'\n\nSet A=1")) == "ValueError: x raised: KeyError: 'y'"
    )
    assert failures.exception(RuntimeError()) == "RuntimeError:"


@given(st.text())
def test_a_reason_is_one_short_line(text: str) -> None:
    for one in (
        failures.brief(text),
        failures.ended(text),
        failures.ended(f"Traceback (most recent call last):\n{text}"),
    ):
        assert len(one) <= failures.MOST
        assert len(one.splitlines()) <= 1
