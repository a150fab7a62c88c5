"""Which parts are compiled first, how many at a time, and what becomes of them when a process dies."""

import importlib
import sys
import time
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool

import pytest

from gemmdb.generators.cuda.dispatch import Dispatcher, Priority

PARTS = """
import dataclasses, os, time
from pathlib import Path
from gemmdb.generators.cuda.part import Built


@dataclasses.dataclass(frozen=True)
class Part:
    key: str
    log: str
    work: str = ""

    def build(self, capability):
        if self.key == "die":
            os._exit(3)
        note(self.log, f"{self.key} begins")
        time.sleep(0.2)
        note(self.log, f"{self.key} ends")
        return Built("", float(capability))


def note(path, text):
    with Path(path).open("a") as file:
        file.write(text + "\\n")
"""


@pytest.fixture
def part(importable, monkeypatch, tmp_path):
    """Makes parts that note in a file when they begin and end."""
    importable("parts_that_note", PARTS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    module = importlib.import_module("parts_that_note")
    yield lambda key, work="": module.Part(key, str(tmp_path / "log"), work)
    del sys.modules["parts_that_note"]


@pytest.fixture
def dispatcher():
    made = []

    def make(processes):
        made.append(Dispatcher(90, processes))
        return made[-1]

    yield make
    for dispatcher in made:
        dispatcher.close()


def events(tmp_path):
    return (tmp_path / "log").read_text().split("\n")[:-1]


def test_what_is_urgent_goes_first_and_a_part_can_be_hurried(dispatcher, part, tmp_path):
    one = dispatcher(1)
    futures = [one.submit(part("first"), "triton", Priority.NORMAL)]
    while not futures[0].running():
        time.sleep(0.01)
    asked = [("later", Priority.LATER), ("hurried", Priority.LATER), ("normal", Priority.NORMAL)]
    asked += [("urgent", Priority.URGENT)]
    futures += [one.submit(part(key), "triton", priority) for key, priority in asked]
    one.hurry("hurried", Priority.URGENT)
    one.hurry("normal", Priority.LATER)  # Nothing is put off.
    assert {future.result(60).seconds for future in futures} == {90.0}
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert begun == ["first", "urgent", "hurried", "normal", "later"]


def test_kinds_share_the_processors(dispatcher, part, tmp_path):
    four = dispatcher(4)
    parts = [(f"{kind}-{index}", kind) for kind in ("cutlass", "triton") for index in range(6)]
    wait([four.submit(part(key), kind, Priority.NORMAL) for key, kind in parts], 60)
    running, most = set(), 0
    for event in events(tmp_path):
        key, what = event.split()
        (running.add if what == "begins" else running.discard)(key)
        most = max(most, len(running))
    assert most <= 4
    begun = [event for event in events(tmp_path) if event.endswith("begins")]
    assert len(begun) == 12
    assert begun.index("triton-0 begins") < begun.index(
        "cutlass-5 begins"
    )  # What came later is not put off to the end.


def test_what_a_lane_waits_for_has_more_processors_than_nvcc_for_later(dispatcher, part, tmp_path):
    three = dispatcher(3)
    parts = [(f"cutlass-{index}", "cutlass", Priority.NORMAL) for index in range(9)]
    parts += [(f"inductor-{index}", "inductor", Priority.URGENT) for index in range(6)]
    wait([three.submit(part(key), kind, priority) for key, kind, priority in parts], 60)
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert begun.index("inductor-5") < begun.index("cutlass-6")


def test_parts_that_need_the_same_do_not_wait_for_each_other_in_processes(dispatcher, part, tmp_path):
    two = dispatcher(2)
    asked = [("a1", "nvcc"), ("a2", "nvcc"), ("a3", "nvcc"), ("b", "other"), ("c", ""), ("d", "")]
    wait([two.submit(part(key, work), "cutlass", Priority.NORMAL) for key, work in asked], 60)
    running = set()
    for event in events(tmp_path):
        key, what = event.split()
        (running.add if what == "begins" else running.discard)(key)
        assert len(running & {"a1", "a2", "a3"}) <= 1
    begun = [event.split()[0] for event in events(tmp_path) if event.endswith("begins")]
    assert sorted(begun) == sorted(key for key, _ in asked)
    assert begun.index("b") < begun.index("a2") < begun.index("a3")


def test_a_process_that_dies_breaks_what_is_running_and_nothing_that_waits(dispatcher, part, tmp_path):
    one = dispatcher(1)
    dead, waiting = (one.submit(part(key), "triton", Priority.NORMAL) for key in ("die", "good"))
    with pytest.raises(BrokenProcessPool):
        dead.result(60)
    assert waiting.result(60).failure == ""


def test_after_closing_everything_is_cancelled(dispatcher, part):
    one = dispatcher(1)
    waiting = [one.submit(part(f"{index}"), "triton", Priority.NORMAL) for index in range(5)]
    one.close()
    one.close()
    assert waiting[-1].cancelled()
    assert one.submit(part("late"), "triton", Priority.NORMAL).cancelled()
