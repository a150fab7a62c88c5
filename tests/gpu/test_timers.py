"""What a timer measures on a GPU: the GPU's time, whatever the host takes to launch."""

import time
from functools import partial

import pytest
import torch

from gemmdb.inductor.benchmark import timers

A = partial(torch.ones, 256, 256, device="cuda")


@pytest.fixture
def add():
    a, out = A(), A()
    call = partial(torch.add, a, a, out=out)
    call()
    torch.cuda.synchronize()
    return call


def slow(call, us=1000):
    end = time.perf_counter_ns() + 1000 * us
    while time.perf_counter_ns() < end:
        pass
    call()


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_slow_host_adds_nothing_to_the_time_of_a_call(add, rounds, monkeypatch):
    """The first guess is too short for it, so all calls are repeated."""
    monkeypatch.setattr(timers, "_launch_us", [timers.LAUNCH_US])
    quick, late = timers.single_us([add, partial(slow, add)], rounds)
    assert late < quick + 10
    assert timers._launch_us[0] > 400


def test_a_slow_host_adds_nothing_to_the_time_of_a_graph(add):
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = timers.captured(add)
        us = [timers.elapsed(graph.replay), timers.elapsed(lambda: slow(graph.replay, 30))]
    assert us[1] < us[0] + 10


def test_what_runs_before_a_call_is_not_timed(add):
    long = partial(torch.mm, *(torch.ones(4096, 4096, device="cuda") for _ in range(2)))
    long()
    assert timers.single_us([add], 2, long)[0] < timers.single_us([long])[0] / 4
