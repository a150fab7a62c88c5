"""When two outputs are the same, when enough was timed, and what a trial does to the machine."""

import math

import pytest
import torch

from gemmdb.inductor.benchmark import trial as trials
from gemmdb.inductor.benchmark.tensors import differ
from gemmdb.inductor.benchmark.trial import MIN_ROUNDS, clear


@pytest.mark.parametrize(
    ("one", "other", "certain"),
    [
        ([10.0] * MIN_ROUNDS, [20.0] * MIN_ROUNDS, True),
        ([20.0] * MIN_ROUNDS, [10.0] * MIN_ROUNDS, True),
        ([10.0] * MIN_ROUNDS, [10.5] * MIN_ROUNDS, False),
        ([10.0] * (MIN_ROUNDS - 1) + [30.0], [20.0] * MIN_ROUNDS, False),
        ([10.0] * (MIN_ROUNDS - 1), [20.0] * MIN_ROUNDS, False),
        # One was disturbed. Of fifteen samples, three such make no difference.
        ([10.0] * MIN_ROUNDS, [80.0] * (MIN_ROUNDS - 1) + [280.0], False),
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
    fakes = [torch.empty(8, 16), torch.empty(16, 4)]
    found = trials.run((function("aten"), function("ours")), fakes, [True, False], torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.differs
    assert MIN_ROUNDS <= len(found.aten) == len(found.ours) <= trials.CPU.samples
    assert min(*found.aten, *found.ours) > 0
    assert called[:6] == ["aten", "ours", "aten", "ours", "ours", "aten"][:6] or called.count("aten") > MIN_ROUNDS


def test_what_differs_is_not_timed():
    found = trials.run((lambda a: [a[0]], lambda a: [a[0] * 2]), [torch.empty(8, 16)], [True], torch.device("cpu"))
    assert (found.differs, found.aten, found.ours) == (True, (), ())
