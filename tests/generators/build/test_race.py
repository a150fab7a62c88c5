"""The race, over recorded outcomes."""

from dataclasses import replace

import pytest
from kit.replay import Replay

from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.build.race import confirm, race, winner
from gemmdb.generators.effort import Effort, named
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.kernels.config import ATEN, Config
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Protocol, Status

PROTOCOL = Protocol("host", "cold", 1, 30)
EFFORT = Effort(name="test", breadth=0, samples=30, estimate=5, drop=2.0, keep=2, compile_s=1, measure_s=1)
VARIANTS = [template(AUTO, (blocks, 1, 1)) for blocks in range(1, 9)]
OK, SLOW = Status.OK, Status.SLOW


@pytest.fixture
def contest(problems, recorded):
    """A function that races configs with given times; returns (outcomes by config, measurer)."""

    def run(times: dict[Config, float | Status], effort: Effort = EFFORT):
        measurer = Replay(
            recorded(problems[3], config, *((1.0, what) if isinstance(what, Status) else (what,)))
            for config, what in times.items()
        )
        outcomes = race(Job(problems[3], PROTOCOL, tuple(map(Candidate, times))), effort, measurer)
        assert sorted(o.config.text for o in outcomes) == sorted(c.text for c in times)
        return {o.config: o for o in outcomes}, measurer

    return run


def test_all_are_estimated_and_the_good_ones_measured_in_full(contest):
    times = {ATEN: 100.0, **{config: 60.0 + 40 * i for i, config in enumerate(VARIANTS)}}
    outcomes, measurer = contest(times)
    (_, estimated, few), (_, finalists, many) = measurer.calls
    assert (set(estimated), few, many) == (set(times), EFFORT.estimate, EFFORT.samples)
    assert set(finalists) == {ATEN, *VARIANTS[:2]}
    assert {c for c, o in outcomes.items() if o.status is OK} == set(finalists)
    assert {c for c, o in outcomes.items() if o.status is SLOW} == set(VARIANTS[2:])
    assert {c: o.times.median_us for c, o in outcomes.items()} == times  # Slow ones keep their estimates.


@pytest.mark.parametrize(
    ("times", "effort", "statuses"),
    [
        # ATen is measured in full however slow.
        ([1.0 + i / 100 for i in range(8)], EFFORT, [OK] * 9),
        # At least two survive.
        ([400.0, 900.0], replace(EFFORT, keep=0), [OK, OK, SLOW]),
        # `quick` drops nobody.
        ([10.0**i for i in range(8)], named("quick"), [OK] * 9),
    ],
)
def test_who_is_measured_in_full(contest, times, effort, statuses):
    outcomes, _ = contest({ATEN: 100.0, **dict(zip(VARIANTS, times, strict=False))}, effort)
    assert [outcomes[config].status for config in (ATEN, *VARIANTS[: len(times)])] == statuses


@pytest.mark.parametrize("status", [Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM, Status.WRONG])
def test_a_failure_is_an_outcome_and_not_tried_again(contest, status):
    outcomes, measurer = contest({ATEN: 100.0, VARIANTS[0]: 90.0, VARIANTS[1]: status})
    assert outcomes[VARIANTS[1]].status is status
    assert [VARIANTS[1] in configs for _, configs, _ in measurer.calls] == [True, False]


def test_what_a_library_proposes_is_raced_unless_the_build_excludes_it(problems, recorded):
    listed, proposed, excluded = VARIANTS[:3]
    measurer = Replay(recorded(problems[3], config, 50.0) for config in (ATEN, listed, proposed, excluded))
    measurer.proposals = [listed, proposed, excluded]
    job = Job(problems[3], PROTOCOL, (Candidate(ATEN), Candidate(listed)), accepts=lambda config: config != excluded)
    outcomes = race(job, EFFORT, measurer)
    assert [outcome.config for outcome in sorted(outcomes, key=lambda o: o.config.text)] == sorted(
        (ATEN, listed, proposed), key=lambda config: config.text
    )
    assert measurer.calls[0][1] == (ATEN, listed, proposed)


def test_what_resembles_the_best_is_estimated_with_those_still_in_the_race(problems, recorded):
    behind, first, near, excluded = VARIANTS[:4]
    times = {ATEN: 100.0, VARIANTS[4]: 52.0, behind: 90.0, first: 50.0, near: 40.0, excluded: 30.0}
    measurer = Replay(recorded(problems[3], config, us) for config, us in times.items())
    measurer.neighbours = [near, excluded]
    candidates = tuple(map(Candidate, (ATEN, VARIANTS[4], behind, first)))
    job = Job(problems[3], PROTOCOL, candidates, accepts=lambda config: config != excluded)
    outcomes = {o.config: o for o in race(job, replace(EFFORT, drop=1.05), measurer)}
    assert [set(configs) for _, configs, _ in measurer.calls] == [
        {ATEN, VARIANTS[4], behind, first}, {ATEN, VARIANTS[4], first, near}, {ATEN, first, near},
    ]  # fmt: skip
    assert [samples for _, _, samples in measurer.calls] == [EFFORT.estimate, EFFORT.estimate, EFFORT.samples]
    assert {c: o.status for c, o in outcomes.items()} == {
        ATEN: OK, VARIANTS[4]: SLOW, behind: SLOW, first: OK, near: OK,
    }  # fmt: skip


@pytest.mark.parametrize("others", [(Candidate(ATEN),), ()])
def test_an_illegal_candidate_is_never_measured(problems, rows, others):
    measurer = Replay(rows)
    job = Job(problems[0], PROTOCOL, (*others, Candidate(VARIANTS[0], Rejected("because"))))
    outcomes = race(job, EFFORT, measurer)
    assert (outcomes[0].config, outcomes[0].status, outcomes[0].detail) == (VARIANTS[0], Status.ILLEGAL, "because")
    assert len(outcomes) == 1 + len(others)
    assert {config for _, configs, _ in measurer.calls for config in configs} == {c.config for c in others}


@pytest.mark.parametrize(("times", "again"), [((20.0, 90.0), [(VARIANTS[0],)]), ((40.0, 41.0), [])])
def test_what_looks_too_good_is_measured_again_unless_others_share_the_gain(contest, times, again):
    _, measurer = contest({ATEN: 100.0, **dict(zip(VARIANTS, times, strict=False))})
    assert [configs for _, configs, _ in measurer.calls][2:] == again


@pytest.mark.parametrize(
    ("aten", "other", "expected"),
    [(100.0, 90.0, VARIANTS[0]), (100.0, 190.0, None), (Status.ERROR, Status.WRONG, None)],
)
def test_only_a_winner_is_confirmed(contest, aten, other, expected):
    outcomes, _ = contest({ATEN: aten, VARIANTS[0]: other})
    assert winner(outcomes.values()) == expected


def test_confirming_measures_aten_along(problems, rows):
    measurer = Replay(rows)
    job = Job(problems[0], PROTOCOL, (Candidate(ATEN),))
    confirm(job, [VARIANTS[0]], EFFORT, measurer)
    assert measurer.calls == [(problems[0], (ATEN, VARIANTS[0]), EFFORT.samples)]


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
    assert max(o.times.spread for o in outcomes if o.status is OK) < 0.02
