"""What live tuning and confirming together may take of a process."""

import pytest

from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.benchmark.limits import BUDGET, PROCESS_S, Budget, allowed_s, exhausted
from gemmdb.settings import CONFIRM_S, Policy, Settings

DEFAULT = Policy().resolved(Settings.read({}))


def test_what_is_spent_is_no_longer_left():
    budget = Budget()
    assert budget.left_s(DEFAULT) == PROCESS_S
    budget.spend(PROCESS_S - 1)
    assert budget.left_s(DEFAULT) == pytest.approx(1)
    budget.spend(5)
    assert budget.left_s(DEFAULT) == 0
    budget.clear()
    assert budget.left_s(DEFAULT) == PROCESS_S


def test_what_raises_is_spent_too():
    budget = Budget()
    with pytest.raises(ValueError, match="late"), budget.spending():
        raise ValueError("late")
    assert 0 < PROCESS_S - budget.left_s(DEFAULT) < 1


@pytest.mark.parametrize(
    ("more", "seconds"),
    [({}, 0), ({"confirm_s": 5}, 6), ({"live_s": 12}, 2), ({"confirm_s": 1, "live_s": 2}, 0), ({"on_miss": "live"}, 0)],
)
def test_a_policy_may_allow_more_than_the_default(more, seconds):
    policy = Policy(**more).resolved(Settings.read({}))
    assert allowed_s(policy) == PROCESS_S + seconds
    assert exhausted(policy) == f"{PROCESS_S + seconds:g} s compile budget exhausted"


def test_live_tuning_leaves_time_to_confirm():
    assert limits.tuning_s(DEFAULT, 1, False) == limits.FIRST_S
    assert limits.tuning_s(DEFAULT, 20, True) == PROCESS_S - CONFIRM_S
    BUDGET.spend(PROCESS_S - CONFIRM_S - limits.FURTHER_S)
    assert limits.tuning_s(DEFAULT, 20, True) == pytest.approx(limits.FURTHER_S)
    BUDGET.spend(0.1)
    assert limits.tuning_s(DEFAULT, 20, True) == 0


def test_whoever_asks_for_live_tuning_by_name_waits():
    BUDGET.spend(1000)
    asked = Policy(on_miss="live").resolved(Settings.read({}))
    assert limits.tuning_s(asked, 1, False) == asked.live_s
