"""The race, over recorded outcomes."""

from dataclasses import replace

import pytest

from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.build.race import confirm, race, winner
from gemmdb.generators.effort import Effort, named
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.replay import Replay
from gemmdb.kernels.config import ATEN, Config
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol, Status

PROTOCOL = Protocol("host", "cold", 1, 30)
EFFORT = Effort(name="test", breadth=0, samples=30, estimate=5, drop=2.0, keep=2, compile_s=1, measure_s=1)
VARIANTS = [template(AUTO, (blocks, 1, 1)) for blocks in range(1, 9)]


@pytest.fixture
def contest(problems, recorded):
    """A function that races configs with given times; returns (outcomes by config, measurer)."""

    def run(times: dict[Config, float | Status], effort: Effort = EFFORT):
        problem = problems[3]
        rows = [
            recorded(problem, config, 1.0, what) if isinstance(what, Status) else recorded(problem, config, what)
            for config, what in times.items()
        ]
        measurer = Replay(rows)
        job = Job(problem, PROTOCOL, tuple(map(Candidate, times)))
        outcomes = race(job, effort, measurer)
        assert sorted(o.config.text for o in outcomes) == sorted(c.text for c in times)
        return {o.config: o for o in outcomes}, measurer

    return run


def test_all_are_estimated_and_the_good_ones_measured_in_full(contest):
    times = {ATEN: 100.0, **{config: 60.0 + 40 * i for i, config in enumerate(VARIANTS)}}
    outcomes, measurer = contest(times)
    (_, estimated, few), (_, finalists, many) = measurer.calls
    assert (set(estimated), few, many) == (set(times), EFFORT.estimate, EFFORT.samples)
    assert finalists == (*VARIANTS[:2], ATEN) or set(finalists) == {ATEN, *VARIANTS[:2]}
    assert {c for c, o in outcomes.items() if o.status is Status.OK} == set(finalists)
    assert {c for c, o in outcomes.items() if o.status is Status.SLOW} == set(VARIANTS[2:])


def test_a_slow_candidate_keeps_its_estimate(contest):
    outcomes, _ = contest({ATEN: 100.0, VARIANTS[0]: 90.0, VARIANTS[1]: 500.0})
    slow = outcomes[VARIANTS[1]]
    assert (slow.status, slow.times.median_us) == (Status.SLOW, 500.0)


def test_aten_is_measured_in_full_however_slow(contest):
    outcomes, _ = contest({ATEN: 100.0, **{config: 1.0 + i / 100 for i, config in enumerate(VARIANTS)}})
    assert outcomes[ATEN].status is Status.OK


def test_at_least_two_survive(contest):
    outcomes, _ = contest({ATEN: 100.0, VARIANTS[0]: 400.0, VARIANTS[1]: 900.0}, replace(EFFORT, keep=0))
    assert [o.status for o in outcomes.values()].count(Status.OK) == 2


@pytest.mark.parametrize("status", [Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM, Status.WRONG])
def test_a_failure_is_an_outcome_and_not_tried_again(contest, status):
    outcomes, measurer = contest({ATEN: 100.0, VARIANTS[0]: 90.0, VARIANTS[1]: status})
    assert outcomes[VARIANTS[1]].status is status
    assert [VARIANTS[1] in configs for _, configs, _ in measurer.calls] == [True, False]


def test_an_illegal_candidate_is_never_measured(problems, rows):
    measurer = Replay(rows)
    job = Job(problems[0], PROTOCOL, (Candidate(ATEN), Candidate(VARIANTS[0], Rejected("because"))))
    outcomes = race(job, EFFORT, measurer)
    assert next((o.config, o.status, o.detail) for o in outcomes) == (VARIANTS[0], Status.ILLEGAL, "because")
    assert all(VARIANTS[0] not in configs for _, configs, _ in measurer.calls)


def test_what_looks_too_good_is_measured_again(contest):
    _, measurer = contest({ATEN: 100.0, VARIANTS[0]: 20.0, VARIANTS[1]: 90.0})
    assert [configs for _, configs, _ in measurer.calls][2:] == [(VARIANTS[0],)]


def test_a_gain_that_others_share_is_believed(contest):
    _, measurer = contest({ATEN: 100.0, VARIANTS[0]: 40.0, VARIANTS[1]: 41.0})
    assert len(measurer.calls) == 2


def test_quick_drops_nobody(contest):
    times = {ATEN: 100.0, **{config: 10.0**i for i, config in enumerate(VARIANTS)}}
    outcomes, _ = contest(times, named("quick"))
    assert {o.status for o in outcomes.values()} == {Status.OK}


def test_only_a_winner_is_confirmed(contest, problems, rows):
    outcomes, _ = contest({ATEN: 100.0, VARIANTS[0]: 90.0})
    assert winner(list(outcomes.values())) == VARIANTS[0]
    outcomes, _ = contest({ATEN: 100.0, VARIANTS[0]: 190.0})
    assert winner(list(outcomes.values())) is None
    outcomes, _ = contest({ATEN: Status.ERROR, VARIANTS[0]: Status.WRONG})
    assert winner(list(outcomes.values())) is None


def test_confirming_measures_aten_along(problems, rows):
    measurer = Replay(rows)
    job = Job(problems[0], PROTOCOL, (Candidate(ATEN),))
    confirm(job, [VARIANTS[0]], EFFORT, measurer)
    assert measurer.calls == [(problems[0], (ATEN, VARIANTS[0]), EFFORT.samples)]


def test_where_nothing_is_legal_nothing_is_measured(problems, rows):
    measurer = Replay(rows)
    outcomes = race(Job(problems[0], PROTOCOL, (Candidate(ATEN, Rejected("because")),)), EFFORT, measurer)
    assert [(o.config, o.status) for o in outcomes] == [(ATEN, Status.ILLEGAL)]
    assert measurer.calls == []


class Disturbed(Replay):
    """The second round, the first full one, is disturbed: every interval spans from half to twice the median."""

    def measure(self, *arguments):
        outcomes = super().measure(*arguments)
        if len(self.calls) != 2:
            return outcomes
        return [
            replace(o, times=replace(o.times, low_us=o.times.low_us / 2, high_us=o.times.high_us * 2)) for o in outcomes
        ]


def test_a_disturbed_round_is_repeated_and_the_steadier_one_kept(problems, rows):
    measurer = Disturbed(rows)
    job = Job(problems[3], PROTOCOL, tuple(map(Candidate, dict.fromkeys(row.config for row in rows))))
    outcomes = race(job, EFFORT, measurer)
    assert [samples for _, _, samples in measurer.calls] == [5, 30, 30]
    assert max(o.times.spread for o in outcomes if o.status is Status.OK) < 0.02
