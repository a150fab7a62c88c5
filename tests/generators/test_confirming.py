"""What a verdict would pick is measured again as the code that the compiler emits."""

from dataclasses import replace

import pytest

from gemmdb.config import ATEN, Config
from gemmdb.generators.cpu.space import AUTO, template
from gemmdb.generators.cuda.emission import Emitted
from gemmdb.generators.effort import Effort
from gemmdb.generators.interfaces import Candidate, Job, Outcome
from gemmdb.generators.replay import Replay
from gemmdb.generators.search import CONFIRMED, confirm, race, unconfirmed
from gemmdb.measurement import EMITTED, Protocol, Status, Times

PROTOCOL = Protocol("host", "cold", 1, 30)
EFFORT = Effort("test", 0, samples=30, estimate=5, drop=9.0, keep=9, states=("cold",), compile_s=1, measure_s=1)
VARIANTS = [template(AUTO, (blocks, 1, 1)) for blocks in range(1, 8)]


class Emitting(Replay):
    """Answers for emitted code with `factor` times the recorded times, a status, or the same by default."""

    def __init__(self, rows, factors):
        super().__init__(rows)
        self.factors = factors

    def emitted(self, config):
        return Emitted.code_of(config)

    def _outcome(self, problem, config):
        if not isinstance(config, Emitted):
            return super()._outcome(problem, config)
        factor = self.factors.get(config.plain, 1.0)
        if isinstance(factor, Status):
            return Outcome(config, factor, detail="because")
        t = super()._outcome(problem, config.plain).times
        times = Times(t.median_us * factor, t.low_us * factor, t.high_us * factor, t.samples, t.aten_us)
        return Outcome(config, Status.OK, times)


@pytest.fixture
def confirmed(problems, recorded):
    """A function: the confirmations of a race with configs of given times, by what emitted code does to these."""

    def run(times: dict[Config, float], factors: dict[Config, float | Status]):
        rows = [recorded(problems[3], config, us) for config, us in times.items()]
        job = Job(problems[3], PROTOCOL, tuple(map(Candidate, times)))
        measurer = Emitting(rows, factors)
        outcomes, found = race(job, EFFORT, measurer), []
        while (pick := unconfirmed(outcomes, found)) is not None:
            found += confirm(job, pick, EFFORT, measurer)
        assert [o.config for o in found[::2]] == [ATEN] * (len(found) // 2)
        return found[1::2]

    return run


TIMES = {ATEN: 100.0, **{config: 50.0 + 5 * i for i, config in enumerate(VARIANTS)}}


def test_the_pick_is_confirmed_as_emitted_code(confirmed):
    (one,) = confirmed(TIMES, {})
    assert (one.config, one.detail, one.times.median_us) == (VARIANTS[0], EMITTED, 50.0)
    assert type(one.config) is Config


def test_nothing_is_confirmed_where_aten_is_picked(confirmed):
    assert confirmed({ATEN: 100.0, VARIANTS[0]: 99.8}, {}) == []


def test_one_that_is_slower_as_emitted_code_gives_way_to_the_next(confirmed):
    found = confirmed(TIMES, {VARIANTS[0]: 1.5})
    assert [(o.config, o.times.median_us) for o in found] == [(VARIANTS[0], 75.0), (VARIANTS[1], 55.0)]


def test_only_so_many_are_confirmed(confirmed):
    assert len(confirmed(TIMES, dict.fromkeys(VARIANTS, 3.0))) == CONFIRMED


def test_one_without_emitted_code_is_confirmed_by_itself(confirmed):
    (one,) = confirmed(TIMES, {VARIANTS[0]: Status.ERROR})
    assert (one.config, one.status, one.detail, one.times.median_us) == (VARIANTS[0], Status.OK, "", 50.0)


def test_wrong_emitted_code_is_a_row_of_its_config(confirmed):
    first, second = confirmed(TIMES, {VARIANTS[0]: Status.WRONG})
    assert (first.config, first.status, first.detail) == (VARIANTS[0], Status.WRONG, "because")
    assert second.config == VARIANTS[1]


def test_the_pick_of_ties_is_confirmed_not_the_fastest(confirmed):
    times = {ATEN: 100.0, VARIANTS[1]: 50.0, VARIANTS[0]: 50.1}
    (one,) = confirmed(times, {})
    assert one.config == min(VARIANTS[:2], key=lambda config: config.text)
    assert replace(one, config=VARIANTS[1]) != one
