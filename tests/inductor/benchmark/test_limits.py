"""How long live tuning and confirming may make a compile wait."""

from dataclasses import replace

import pytest

from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.benchmark.limits import BUDGET, PROCESS_S, Budget, allowed_s, exhausted
from gemmdb.settings import CONFIRM_S, Policy, Settings

DEFAULT = Policy().resolved(Settings.read({}))


def test_what_is_spent_is_no_longer_left():
    budget = Budget()
    assert budget.left_s(DEFAULT) == PROCESS_S
    with pytest.raises(ValueError, match="late"), budget.spending():
        raise ValueError("late")
    assert 0 < PROCESS_S - budget.left_s(DEFAULT) < 1
    budget.spend(PROCESS_S)
    assert budget.left_s(DEFAULT) == 0
    budget.clear()
    assert budget.left_s(DEFAULT) == PROCESS_S


@pytest.mark.parametrize(
    ("more", "seconds"),
    [({}, 0), ({"confirm_s": 5}, 6), ({"live_s": 12}, 2), ({"confirm_s": 1, "live_s": 2}, 0), ({"on_miss": "live"}, 0)],
)
def test_a_policy_may_allow_more_than_the_default(more, seconds):
    policy = Policy(**more).resolved(Settings.read({}))
    assert allowed_s(policy) == PROCESS_S + seconds
    assert exhausted(policy) == f"{PROCESS_S + seconds:g} s compile budget exhausted"


def test_a_graph_waits_a_second_per_gemm_and_three_for_the_first_and_leaves_time_to_confirm():
    policy = Policy(on_miss="live", live_s=10.0)
    assert [limits.tuning_s(policy, n, ready=False) for n in (1, 2, 5, 50)] == [3.0, 4.0, 7.0, 8.0]
    assert [limits.tuning_s(policy, n, ready=True) for n in (1, 2, 50)] == [1.0, 2.0, 8.0]
    assert limits.tuning_s(DEFAULT, 20, True) == PROCESS_S - CONFIRM_S
    BUDGET.spend(PROCESS_S - CONFIRM_S - limits.FURTHER_S)
    assert limits.tuning_s(DEFAULT, 20, True) == pytest.approx(limits.FURTHER_S)
    BUDGET.spend(0.1)
    assert limits.tuning_s(DEFAULT, 20, True) == 0
    by_name = Policy(on_miss="live").resolved(Settings.read({}))
    assert limits.tuning_s(by_name, 1, False) == by_name.live_s == 300.0


def test_a_compile_waits_as_long_as_a_gain_repays():
    policy = Policy(confirm=True, confirm_s=3.0, live_calls=100_000)
    assert limits.patience_s(5.0, policy) == pytest.approx(0.5)
    assert limits.patience_s(-1.0, policy) < 0
    assert [limits.repays(us, policy) for us in (-1.0, 1.9, 2.1)] == [False, False, True]
    assert limits.patience_s(0.0, replace(policy, confirm_s=20.0)) == float("inf"), "who allows that much waits"


def test_the_time_of_another_step_does_not_count(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(limits, "now", lambda: clock[0])
    BUDGET.clear()
    limit = limits.TrialLimit(DEFAULT)
    clock[0] = CONFIRM_S
    assert (limit.may_begin(), limit.left_s()) == (False, 0)
    limit.postpone(CONFIRM_S - 1)
    assert (limit.may_begin(), limit.spent_s(), limit.left_s()) == (True, 1, CONFIRM_S - 1)


def test_further_trials_get_time_of_their_own_but_wait_no_longer_for_kernels(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(limits, "now", lambda: clock[0])
    BUDGET.clear()
    limit = limits.TrialLimit(DEFAULT)
    limit.reserve(0)
    assert (limit.left_s(), limit.wait_s()) == (CONFIRM_S, CONFIRM_S)
    limit.reserve(5)
    assert (limit.left_s(), limit.wait_s()) == pytest.approx((CONFIRM_S + 5 * limits.TRIAL_S, CONFIRM_S))
    limit.reserve(1000)
    assert limit.left_s() == PROCESS_S, "the process has no more"
    BUDGET.spend(PROCESS_S)
    spent = limits.TrialLimit(DEFAULT)
    spent.reserve(5)
    assert (spent.left_s(), spent.wait_s()) == (0, 0)
    BUDGET.clear()
