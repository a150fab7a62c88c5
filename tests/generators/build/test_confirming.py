"""What a verdict would pick is measured again as the code that the compiler emits."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.gpu import algorithm
from kit.replay import Replay

from gemmdb.generators.backend import Candidate, Job, Outcome
from gemmdb.generators.build.queue import known
from gemmdb.generators.build.race import MAX_CONFIRMED, confirm, race, unconfirmed
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.cuda.artifacts import Emitted
from gemmdb.kernels.config import ATEN, Config
from gemmdb.table.measurement import EMITTED, Protocol, Status, Times, marks

PROTOCOL = Protocol("host", "cold", 1, 30)
EFFORT = Effort(name="test", breadth=0, samples=30, estimate=5, drop=9.0, keep=9, compile_s=1, measure_s=1)
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

    def run(times: dict[Config, float], factors: dict[Config, float | Status], rivals: int = 0):
        effort = replace(EFFORT, rivals=rivals)
        rows = [recorded(problems[3], config, us) for config, us in times.items()]
        job = Job(problems[3], PROTOCOL, tuple(map(Candidate, times)))
        measurer = Emitting(rows, factors)
        outcomes, found = race(job, effort, measurer), []
        while picks := unconfirmed(outcomes, found, effort):
            found += confirm(job, picks, effort, measurer)
        assert not found or found[0].config == ATEN
        return [outcome for outcome in found if outcome.config != ATEN]

    return run


TIMES = {ATEN: 100.0, **{config: 50.0 + 5 * i for i, config in enumerate(VARIANTS)}}


def test_the_pick_is_confirmed_as_emitted_code(confirmed):
    (one,) = confirmed(TIMES, {})
    assert (one.config, one.detail, one.times.median_us) == (VARIANTS[0], EMITTED, 50.0)
    assert type(one.config) is Config
    assert confirmed({ATEN: 100.0, VARIANTS[0]: 99.8}, {}) == []  # ATen is the pick.
    assert len(confirmed(TIMES, dict.fromkeys(VARIANTS, 3.0))) == MAX_CONFIRMED  # Only so many.


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        # It is slower as emitted code: the next one follows.
        (1.5, [(VARIANTS[0], Status.OK, EMITTED, 75.0), (VARIANTS[1], Status.OK, EMITTED, 55.0)]),
        # There is no emitted code: it is confirmed by itself.
        (Status.ERROR, [(VARIANTS[0], Status.ERROR, "because", None), (VARIANTS[0], Status.OK, "", 50.0)]),
        # Emitted code that is wrong is a row of its config.
        (Status.WRONG, [(VARIANTS[0], Status.WRONG, "because", None), (VARIANTS[1], Status.OK, EMITTED, 55.0)]),
    ],
)
def test_a_pick_that_fails_as_emitted_code(confirmed, factor, expected):
    found = confirmed(TIMES, {VARIANTS[0]: factor})
    assert [(o.config, o.status, o.detail, o.times and o.times.median_us) for o in found] == expected


def test_a_trusted_pick_is_confirmed_only_after_another(problems, recorded):
    effort = replace(EFFORT, trusted=("cublaslt",))
    call = algorithm()
    rows = [recorded(problems[3], config, us) for config, us in {ATEN: 100.0, VARIANTS[0]: 60.0, call: 50.0}.items()]
    assert unconfirmed(*known(rows, (), effort), effort) == ()
    assert unconfirmed(*known(rows, (), EFFORT), EFFORT) == (call,)
    assert unconfirmed(*known(rows[:2], (), effort), effort) == (VARIANTS[0],)
    # The kernel that won is slower as emitted code. Now the call wins, and times compare within the same minutes.
    rows[1] = recorded(problems[3], VARIANTS[0], 40.0)
    assert unconfirmed(*known(rows, (), effort), effort) == (VARIANTS[0],)
    slow = replace(recorded(problems[3], VARIANTS[0], 60.0), detail=EMITTED)
    assert unconfirmed(*known([*rows, slow], (), effort), effort) == (call,)


def test_the_pick_of_ties_is_confirmed_not_the_fastest(confirmed):
    many, few = (tile(split_k=parts, reduce="kernel") for parts in (4, 2))
    (one,) = confirmed({ATEN: 100.0, many: 50.0, few: 50.1}, {})
    assert one.config == few


def tile(**params) -> Config:
    """A tile kernel with some of its parameters given."""
    rest = {"block_m": 16, "block_n": 32, "block_k": 64, "group_m": 8, "swap": 0, "warps": 4, "stages": 4}
    return Config.of("triton", "tile", **{**rest, "load": "pointer", "dequant": "cast", **params})


# Configs that are cheap to compile: what a rival is that is not the pick.
TILES = [
    Config.of("triton", "gemv", block_n=n, block_k=256, unroll=1, dequant="cast", warps=4, stages=3)
    for n in (2, 4, 8, 16, 32)
]
CLOSE = {ATEN: 100.0, **{config: 50.0 + 0.3 * i for i, config in enumerate(TILES)}, VARIANTS[0]: 50.5}


def test_rivals_are_confirmed_along_with_the_pick(confirmed):
    found = confirmed(CLOSE, {}, rivals=4)
    assert {o.config for o in found} == set(TILES[:4])
    assert {o.detail for o in found} == {EMITTED}
    assert {o.config for o in confirmed(CLOSE, {}, rivals=2)} == set(TILES[:2])
    # 2.8% of 50 us, and a tenth of 3 us.
    assert {o.config for o in confirmed(CLOSE | {TILES[4]: 51.5}, {}, rivals=9)} == set(TILES[:4])
    short = {ATEN: 10.0, TILES[0]: 3.0, TILES[1]: 3.29, TILES[2]: 3.31}
    assert {o.config for o in confirmed(short, {}, rivals=9)} == set(TILES[:2])


def test_what_counts_arrivals_is_a_rival_with_the_time_that_its_counters_take(confirmed):
    counting = tile(split_k=4, reduce="fixup")
    times = {ATEN: 100.0, counting: 49.5, TILES[0]: 50.0, TILES[1]: 51.3}
    # 1.3 is within 2% + 0.4 us of 50.0, and not of 49.5; 49.5 + 1 is.
    assert {o.config for o in confirmed(times, {}, rivals=9)} == {counting, *TILES[:2]}
    assert {o.config for o in confirmed(times | {counting: 50.5}, {}, rivals=9)} == set(TILES[:2])


def test_a_rival_that_is_faster_as_emitted_code_is_found_and_nothing_more(confirmed):
    found = confirmed(CLOSE, {TILES[3]: 0.8}, rivals=4)
    assert min(found, key=lambda o: o.times.median_us).config == TILES[3]
    assert len(found) == 4
    # ATen would be picked here without the confirmation.
    (one,) = confirmed({ATEN: 100.0, TILES[0]: 100.5}, {TILES[0]: 0.9}, rivals=4)
    assert (one.config, one.times.median_us) == (TILES[0], pytest.approx(90.45))


def test_when_all_rivals_are_slower_as_emitted_code_the_next_is_confirmed(confirmed):
    *first, last = confirmed(CLOSE, dict.fromkeys(TILES[:2], 1.5), rivals=2)
    assert {o.config for o in first} == set(TILES[:2])
    assert last.config == TILES[2]


def test_a_table_whose_rivals_were_not_confirmed_is_gone_on_with(problems, recorded):
    effort = replace(EFFORT, rivals=4)
    rows = [recorded(problems[3], config, us) for config, us in CLOSE.items()]

    def left(*more):
        return unconfirmed(*known([*rows, *more], (), effort), effort)

    def emitted(config, us):
        return replace(recorded(problems[3], config, us), detail=EMITTED)

    assert set(left()) == set(TILES[:4])
    # What was confirmed before them is measured again, in the same process.
    assert set(left(emitted(TILES[0], 50.0))) == set(TILES[:4])
    every = [emitted(config, 51.0) for config in TILES[:3]]
    assert left(*every, emitted(TILES[3], 50.0)) == ()
    assert left(*every, recorded(problems[3], TILES[3], 0.0, Status.ERROR)) == ()
    assert left(*every, recorded(problems[3], TILES[3], 50.0)) != ()  # Timed twice by itself.
    # Another than those that were confirmed is now the fastest.
    assert left(*(emitted(config, 60.0) for config in TILES[:4])) == (TILES[4],)


def test_a_pick_that_is_dear_to_compile_is_not_confirmed_again_for_its_rivals(problems, recorded):
    effort, dear = replace(EFFORT, rivals=2), VARIANTS[0]
    rows = [recorded(problems[3], config, us) for config, us in {**CLOSE, dear: 49.0}.items()]
    once = replace(recorded(problems[3], dear, 49.0), detail=EMITTED)
    assert set(unconfirmed(*known(rows, (), effort), effort)) == {dear, *TILES[:2]}
    assert set(unconfirmed(*known([*rows, once], (), effort), effort)) == set(TILES[:2])


def test_where_no_code_is_emitted_a_second_row_confirms(problems, recorded):
    rows = [recorded(problems[3], config, us) for config, us in TIMES.items()]
    assert unconfirmed(*known(rows, (), EFFORT), EFFORT) == (VARIANTS[0],)
    again = [*rows, recorded(problems[3], VARIANTS[0], 50.0)]
    assert unconfirmed(*known(again, (), EFFORT), EFFORT) == ()
    assert unconfirmed(*known(rows, (), replace(EFFORT, confirm=False)), EFFORT) == ()
    assert unconfirmed(*known(rows[1:], (), EFFORT), EFFORT) == ()


class Noisy(Emitting):
    """Answers each time with other times, as wide as a disturbed machine makes them."""

    def __init__(self, rows, draw):
        super().__init__(rows, {})
        self._draw = draw

    def _outcome(self, problem, config):
        found = super()._outcome(problem, config)
        factor, wide = self._draw(st.tuples(st.sampled_from([0.8, 0.9, 1.0]), st.sampled_from([0.0, 0.1, 0.3])))
        us = found.times.median_us * (1.0 if config == ATEN else factor)
        return replace(found, times=Times(us, us * (1 - wide), us * (1 + wide), 30, found.times.aten_us))


class Plain(Noisy):
    """Whose code is not emitted, as on a CPU."""

    def emitted(self, config):
        return config


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rivals=st.sampled_from([0, 3]))
def test_what_a_run_has_confirmed_asks_for_nothing_when_its_rows_are_read_again(problems, recorded, data, rivals):
    effort = replace(EFFORT, rivals=rivals)
    rows = [recorded(problems[3], config, 100.0) for config in (ATEN, *VARIANTS[:3])]
    measurer = (Noisy if rivals else Plain)(rows, data.draw)
    job = Job(problems[3], PROTOCOL, tuple(Candidate(row.config) for row in rows))
    outcomes, found = race(job, effort, measurer), []
    while picks := unconfirmed(outcomes, found, effort):
        found += confirm(job, picks, effort, measurer)
    stored = [replace(rows[0], config=o.config, status=o.status, times=o.times,
                      detail=marks(o.detail == EMITTED, o.disturbed)) for o in (*outcomes, *found)]  # fmt: skip
    # What was disturbed is confirmed once more by another build.
    assert any(o.disturbed for o in found) or unconfirmed(*known(stored, (), effort), effort) == ()
