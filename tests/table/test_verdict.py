"""Verdicts as a pure function of measurements."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb import Config, Status
from gemmdb.table.measurement import DISTURBED, EMITTED, marks
from gemmdb.table.verdict import decide, decide_all, pool


@given(data=st.data())
def test_the_order_of_rows_does_not_count(kit, data):
    rows = [row for row in data.draw(kit.rows()) if row.problem == kit.problem]
    shuffled = data.draw(st.permutations(rows))
    assert decide_all(rows) == decide_all(shuffled)


@given(data=st.data())
def test_a_pick_is_measured_in_full_never_wrong_and_not_slower_than_aten(kit, data):
    rows = [row for row in data.draw(kit.rows()) if row.problem == kit.problem]
    for verdict in decide_all(rows):
        assert verdict.ratio <= 1
        assert verdict.ties[0] == verdict.pick
        assert len(set(verdict.ties)) == len(verdict.ties)
        for config in verdict.ties:
            assert not any(r.status in (Status.WRONG, Status.CRASH) for r in rows if r.config == config)
            assert any(r.status is Status.OK for r in rows if r.config == config)


def test_the_fastest_wins(kit):
    verdict = decide([kit.row(), kit.row(kit.configs[1], 5.0), kit.row(kit.configs[2], 7.0)])
    assert (verdict.pick, verdict.ties) == (kit.configs[1], (kit.configs[1],))
    assert (verdict.expected_us, verdict.aten_us, verdict.speedup) == (5.0, 10.0, 2.0)


@pytest.mark.parametrize(("us", "spread"), [(9.95, 0.0001), (9.0, 0.06)])
def test_a_tie_goes_to_aten(kit, us, spread):
    rows = [kit.row(spread=spread), kit.row(kit.configs[1], us, spread=spread)]
    verdict = decide(rows)
    assert verdict.pick == kit.aten
    assert set(verdict.ties) == {kit.aten, kit.configs[1]}


def test_of_ties_that_compile_alike_the_faster_is_picked(kit):
    tiles = [
        Config.of("triton", "gemv", block_n=n, block_k=256, unroll=1, dequant="cast", warps=4, stages=3) for n in (2, 4)
    ]
    for first, second in (tiles, reversed(tiles)):
        assert decide([kit.row(), kit.row(first, 5.0), kit.row(second, 5.02)]).ties == (first, second)


@pytest.mark.parametrize(("us", "other", "times", "tied"), [
    (2.0, 2.15, 1, True), (2.0, 2.2, 1, False),  # 4% each at most.
    (2.0, 2.11, 2, True), (2.0, 2.13, 2, False),  # Two processes know more than one.
    (30.0, 30.55, 1, True), (30.0, 30.65, 1, False),
])  # fmt: skip
def test_an_interval_is_not_narrower_than_what_processes_differ_by(kit, us, other, times, tied):
    fast, slow = kit.configs[1:3]
    rows = [kit.row(us=100.0, aten=100.0)]
    for run in range(times):
        rows += [
            kit.row(fast, us, run=f"run-{run}", aten=100.0, spread=0.001),
            kit.row(slow, other, run=f"run-{run}", aten=100.0, spread=0.001),
        ]
    assert (slow in decide(rows).ties) == tied


def test_aten_itself_is_compared_with_no_wider_an_interval(kit):
    """The ratio of a config holds what ATen differs by, too."""
    assert decide([kit.row(us=2.0, aten=2.0), kit.row(kit.configs[1], 1.9, aten=2.0)]).pick == kit.configs[1]
    assert decide([kit.row(us=2.0, aten=2.0), kit.row(kit.configs[1], 1.95, aten=2.0)]).pick == kit.aten


def test_a_tie_goes_to_the_fewer_parts_of_a_split_sum(kit):
    rest = {"block_m": 16, "block_n": 32, "block_k": 64, "group_m": 8, "swap": 0, "warps": 4, "stages": 4}
    words = {"reduce": "kernel", "load": "pointer", "dequant": "cast"}
    many, few = (Config.of("triton", "tile", split_k=parts, **rest, **words) for parts in (16, 2))
    assert many.text < few.text, "the text alone would decide otherwise"
    assert decide([kit.row(), kit.row(many, 5.0), kit.row(few, 5.02)]).ties == (few, many)


def test_a_noisy_config_slower_than_aten_is_in_no_tie_set(kit):
    rows = [kit.row(), kit.row(kit.configs[1], 8.0), kit.row(kit.configs[2], 11.0, spread=0.5)]
    verdict = decide([*rows, kit.row(kit.configs[3], 9.0, spread=0.2)])
    assert set(verdict.ties) == {kit.configs[1], kit.configs[3]}


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_one_wrong_result_bars_a_config_in_every_run_protocol_and_class(kit, status):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0), kit.row(kit.configs[2], 7.0)]
    elsewhere = kit.row(kit.configs[1], run="run-2", protocol=kit.hot, toolchain=kit.old, status=status)
    assert [v.pick for v in decide_all(rows)] == [kit.configs[1]]
    assert [v.pick for v in decide_all([*rows, elsewhere])] == [kit.configs[2]]


def test_runs_are_pooled_by_the_median_and_their_disagreement_is_the_spread(kit):
    aten = [kit.row(run=f"run-{i}") for i in (1, 2, 3)]
    mine = [kit.row(kit.configs[1], us, run=f"run-{i}") for i, us in ((1, 4.0), (2, 5.0), (3, 8.0))]
    verdict = decide([*aten, *mine])
    assert (verdict.ratio, verdict.spread, verdict.runs) == (0.5, pytest.approx(0.4), 3)


def test_nothing_is_decided_without_aten(kit):
    assert decide([kit.row(kit.configs[1], 5.0)]) is None
    assert decide([kit.row(status=Status.SLOW), kit.row(kit.configs[1], 5.0)]) is None
    assert decide([]) is None


def test_a_slow_estimate_is_pooled_for_prediction_but_never_picked(kit):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0, status=Status.SLOW)]
    assert decide(rows).pick == kit.aten
    assert [p.config for p in pool(rows)] == [kit.aten]
    assert [(p.config, p.servable) for p in pool(rows, slow=True)] == [(kit.configs[1], False), (kit.aten, True)]


def test_a_full_measurement_outranks_an_estimate(kit):
    rows = [kit.row(kit.configs[1], 5.0, status=Status.SLOW), kit.row(kit.configs[1], 8.0, run="run-2")]
    assert [p.ratio for p in pool(rows, slow=True)] == [0.8]


def test_the_toolchain_is_the_newest_by_version_not_by_text(kit):
    chains = [replace(kit.new, torch="2.13.0+cpu", gemmdb=version) for version in ("0.9.0", "0.10.0")]
    rows = [kit.row(toolchain=chain) for chain in chains]
    random.shuffle(rows)
    assert decide(rows).toolchain.gemmdb == "0.10.0"


def test_each_protocol_and_toolchain_class_has_its_own_verdict(kit):
    rows = [kit.row(protocol=p, toolchain=t) for p in (kit.cold, kit.hot) for t in (kit.old, kit.new, kit.newer)]
    found = {(v.protocol.l2, v.klass) for v in decide_all(rows)}
    assert found == {(l2, klass) for l2 in ("cold", "hot") for klass in ("cpu-torch2.9", "cpu-torch2.13")}


def test_where_emitted_code_was_timed_the_kernel_by_itself_does_not_count(kit):
    alone, emitted = kit.row(kit.configs[1], 5.0), replace(kit.row(kit.configs[1], 9.0), detail=EMITTED)
    assert decide([kit.row(), alone]).ratio == 0.5
    assert decide([kit.row(), alone, emitted]).ratio == 0.9
    slow = replace(kit.row(kit.configs[1], 12.0), detail=EMITTED)
    assert decide([kit.row(), alone, slow]).pick == kit.aten


def test_where_winners_were_timed_as_emitted_code_only_what_was_timed_again_is_picked(kit):
    first, second, third = kit.configs[1:4]
    rows = [kit.row(), *(kit.row(config, us) for config, us in ((first, 5.0), (second, 5.2), (third, 5.4)))]
    disappointing = replace(kit.row(first, 9.0), detail=EMITTED)
    assert decide([*rows, disappointing]).pick == first
    assert decide([*rows, replace(disappointing, status=Status.ERROR, times=None, error=None)]).pick == first
    again = kit.row(third, 6.0, run="again")
    assert decide([*rows, disappointing, again]).ties == (third,)


def test_the_code_of_default_mode_is_no_confirmation_of_others(kit):
    reference, alone = replace(kit.row(), detail=EMITTED), kit.row(kit.configs[1], 5.0)
    assert decide([reference, alone]).pick == kit.configs[1]


def marked(row, emitted=False):
    return replace(row, detail=marks(emitted, True))


def test_a_time_of_a_busy_machine_decides_nothing_against_aten(kit):
    verdict = decide([marked(kit.row()), marked(kit.row(kit.configs[1], 5.0))])
    assert (verdict.pick, verdict.ties, verdict.ratio) == (kit.aten, (kit.aten,), 1.0)
    # The other config was timed on a quiet machine.
    rows = [kit.row(), marked(kit.row(kit.configs[1], 2.0)), kit.row(kit.configs[2], 7.0)]
    assert decide(rows).ties == (kit.configs[2],)


def test_times_of_a_busy_machine_do_not_count_beside_those_of_a_quiet_one(kit):
    rows = [kit.row(), kit.row(kit.configs[1], 8.0), marked(kit.row(kit.configs[1], 2.0, run="b"))]
    verdict = decide(rows)
    assert (verdict.pick, verdict.ratio, verdict.runs) == (kit.configs[1], 0.8, 1)
    (_, ours) = sorted(pool(rows), key=lambda one: one.config != kit.aten)
    assert not ours.disturbed


@pytest.mark.parametrize(("emitted", "disturbed"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_row_knows_its_marks(kit, emitted, disturbed):
    row = replace(kit.row(), detail=marks(emitted, disturbed))
    assert (row.emitted, row.disturbed) == (emitted, disturbed)
    assert {EMITTED, DISTURBED} >= {word for word in row.detail.split(", ") if word}


def test_emitted_code_of_a_busy_machine_is_no_reason_for_the_kernel_alone(kit):
    rows = [kit.row(), kit.row(kit.configs[1], 5.0), marked(kit.row(kit.configs[1], 12.0), emitted=True)]
    assert decide(rows).pick == kit.aten


@given(data=st.data())
def test_whatever_a_busy_machine_timed_no_verdict_is_against_aten(kit, data):
    rows = [row for row in data.draw(kit.rows()) if row.problem == kit.problem]
    rows = [replace(row, detail=marks(row.emitted, True)) if row.times else row for row in rows]
    for verdict in decide_all(rows):
        assert (verdict.pick, verdict.ties, verdict.ratio) == (kit.aten, (kit.aten,), 1.0)
