"""The seconds of gemmdb's share in the compiles, by phase."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import gemmdb.inductor
from gemmdb.phases import NAMES, Phases


class Clock(list[float]):
    """A clock that goes when it is told."""

    def go(self, seconds: float) -> None:
        self.append(seconds)

    def __call__(self) -> float:
        return sum(self)


def test_a_phase_is_counted_without_those_inside_it():
    clock = Clock()
    phases = Phases(clock)
    with phases("passes"):
        clock.go(1.0)
        with phases("lookup"):
            clock.go(2.0)
        with phases("trial"):
            clock.go(4.0)
            with phases("store"):
                clock.go(8.0)
        clock.go(16.0)
    assert phases.seconds() == {"passes": 17.0, "lookup": 2.0, "trial": 4.0, "store": 8.0}
    phases.clear()
    assert phases.seconds() == {}


def test_what_raises_is_counted_and_functions_can_be_phases():
    clock = Clock()
    phases = Phases(clock)

    @phases("lookup")
    def broken() -> None:
        clock.go(1.0)
        raise ValueError

    for _ in range(3):
        with pytest.raises(ValueError):  # noqa: PT011
            broken()
        clock.go(1.0)
    assert phases.seconds() == {"lookup": 3.0}


def test_threads_are_added_up():
    phases = Phases()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(200):
            with phases("passes"), phases("lookup"):
                pass

    with ThreadPoolExecutor(4) as threads:
        [threads.submit(work) for _ in range(4)]
    assert set(phases.seconds()) == {"passes", "lookup"}
    assert all(seconds >= 0 for seconds in phases.seconds().values())


def test_a_compile_says_where_its_seconds_went():
    gemmdb.inductor.enable(on_miss="aten")
    gemmdb.inductor.reset_stats()
    assert gemmdb.inductor.stats()["seconds"] == {}
    torch.compile(lambda a, b: (a @ b).relu())(torch.rand(16, 32), torch.rand(32, 64))
    seconds = gemmdb.inductor.stats()["seconds"]
    assert {"tables", "passes", "lookup", "report"} <= set(seconds) <= set(NAMES)
    assert all(value >= 0 for value in seconds.values())
    assert list(seconds) == [name for name in NAMES if name in seconds]
