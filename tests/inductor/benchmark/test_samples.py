"""When two outputs are the same, when enough was timed, and what a trial does to the machine."""

import math

import pytest
import torch

from gemmdb.inductor.benchmark import on_cpu
from gemmdb.inductor.benchmark.trial import FEWEST, clear, differ


@pytest.mark.parametrize(
    ("one", "other", "certain"),
    [
        ([10.0] * FEWEST, [20.0] * FEWEST, True),
        ([20.0] * FEWEST, [10.0] * FEWEST, True),
        ([10.0] * FEWEST, [10.5] * FEWEST, False),
        ([10.0] * (FEWEST - 1) + [30.0], [20.0] * FEWEST, False),
        ([10.0] * (FEWEST - 1), [20.0] * FEWEST, False),
        # One was disturbed. Of fifteen samples, three such make no difference.
        ([10.0] * FEWEST, [80.0] * (FEWEST - 1) + [280.0], False),
        ([10.0] * 15, [80.0] * 12 + [280.0] * 3, True),
        ([], [], False),
    ],
)
def test_no_more_is_timed_than_it_takes(one, other, certain):
    assert clear(one, other) == certain


ONES = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("ours", "aten", "different"),
    [
        (ONES, ONES, False),
        (ONES * 1.01, ONES, False),
        (ONES * 1.2, ONES, True),
        (torch.where(torch.eye(4) == 1, math.nan, 1.0), ONES, True),
        (ONES * math.nan, ONES * math.nan, False),
        (ONES * math.inf, ONES * math.inf, False),
        (ONES * math.inf, ONES, True),
        (ONES.int(), ONES.int(), False),
        (ONES.int() + (torch.arange(4) == 0), ONES.int() * 1000, True),
        (ONES.char() * 100, ONES.char() * 101, False),
        (ONES.bfloat16(), ONES, True),
        (ONES[:2], ONES, True),
        (ONES == 1, ONES == 2, False),
        (torch.empty(0, 4), torch.empty(0, 4), False),
        (ONES * 0, ONES * 0, False),
        (ONES, ONES * 0, True),
    ],
)
def test_outputs_differ_by_more_than_rounding(ours, aten, different):
    assert differ([ours], [aten]) == different


def test_a_trial_on_a_cpu_runs_both_in_turn_and_keeps_the_random_state():
    called = []

    def function(name):
        def run(arguments):
            a, b = arguments
            arguments.clear()
            called.append(name)
            return [a @ b]

        return run

    state = torch.get_rng_state()
    found = on_cpu.trial((function("aten"), function("ours")), [torch.empty(8, 16), torch.empty(16, 4)], [True, False])
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.differs
    assert FEWEST <= len(found.aten) == len(found.ours) <= on_cpu.PROTOCOL.samples
    assert min(*found.aten, *found.ours) > 0
    assert called[:6] == ["aten", "ours", "aten", "ours", "ours", "aten"][:6] or called.count("aten") > FEWEST


def test_what_differs_is_not_timed():
    found = on_cpu.trial((lambda a: [a[0]], lambda a: [a[0] * 2]), [torch.empty(8, 16)], [True])
    assert (found.differs, found.aten, found.ours) == (True, (), ())
