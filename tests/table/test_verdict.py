"""Verdicts as a pure function of measurements."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.tables import Kit

from gemmdb import Config, Status
from gemmdb.table.measurement import DISTURBED, EMITTED, marks
from gemmdb.table.verdict import decide, decide_all, pool

KIT = Kit()
ATEN, A, B, C = KIT.configs
row = KIT.row


def emitted(config, us, **fields):
    return replace(row(config, us, **fields), detail=EMITTED)


def busy(config=ATEN, us=10.0, code=False, **fields):
    """A time of a busy machine, perhaps of emitted `code`."""
    return replace(row(config, us, **fields), detail=marks(code, True))


def gemv(n):
    return Config.of("triton", "gemv", block_n=n, block_k=256, unroll=1, dequant="cast", warps=4, stages=3)


def split(parts):
    rest = {"block_m": 16, "block_n": 32, "block_k": 64, "group_m": 8, "swap": 0, "warps": 4, "stages": 4}
    return Config.of("triton", "tile", split_k=parts, **rest, reduce="kernel", load="pointer", dequant="cast")


CLOSE = [row(), row(A, 5.0), row(B, 5.2), row(C, 5.4)]
FAILED = replace(emitted(A, 9.0), status=Status.ERROR, times=None, error=None)
DECISIONS = {
    "the fastest wins": ([row(), row(A, 5.0), row(B, 7.0)], (A,), 0.5),
    "1% is a tie, which goes to ATen": ([row(spread=0.0001), row(A, 9.95, spread=0.0001)], (ATEN, A), 1.0),
    "so are intervals that overlap": ([row(spread=0.06), row(A, 9.0, spread=0.06)], (ATEN, A), 1.0),
    "of ties that compile alike the faster": ([row(), row(gemv(2), 5.0), row(gemv(4), 5.02)], (gemv(2), gemv(4)), 0.5),
    "and not the first": ([row(), row(gemv(4), 5.0), row(gemv(2), 5.02)], (gemv(4), gemv(2)), 0.5),
    "the fewer parts of a split sum": ([row(), row(split(16), 5.0), row(split(2), 5.02)], (split(2), split(16)), 0.502),
    "a config slower than ATen is in no tie set":
        ([row(), row(A, 8.0), row(B, 11.0, spread=0.5), row(C, 9.0, spread=0.2)], (A, C), 0.8),
    "ATen's interval is no wider": ([row(us=2.0, aten=2.0), row(A, 1.9, aten=2.0)], (A,), 0.95),
    "but a tie": ([row(us=2.0, aten=2.0), row(A, 1.95, aten=2.0)], (ATEN, A), 1.0),
    "a slow estimate is never picked": ([row(), row(A, 5.0, status=Status.SLOW)], (ATEN,), 1.0),
    "the kernel alone": ([row(), row(A, 5.0)], (A,), 0.5),
    "it does not count beside emitted code": ([row(), row(A, 5.0), emitted(A, 9.0)], (A,), 0.9),
    "emitted code may be slower": ([row(), row(A, 5.0), emitted(A, 12.0)], (ATEN,), 1.0),
    "code that disappoints": ([*CLOSE, emitted(A, 9.0)], (A,), 0.9),
    "code that fails": ([*CLOSE, FAILED], (A, B, C), 0.5),
    "of others only what was timed again": ([*CLOSE, emitted(A, 9.0), row(C, 6.0, run="again")], (C,), 0.57, 2),
    "the code of default mode confirms no others": ([emitted(ATEN, 10.0), row(A, 5.0)], (A,), 0.5),
    "a busy machine decides nothing against ATen": ([busy(), busy(A, 5.0)], (ATEN,), 1.0),
    "beside a config of a quiet one": ([row(), busy(A, 2.0), row(B, 7.0)], (B,), 0.7),
    "nor beside quiet times of the same": ([row(), row(A, 8.0), busy(A, 2.0, run="b")], (A,), 0.8),
    "busy code is no reason for the kernel alone": ([row(), row(A, 5.0), busy(A, 12.0, code=True)], (ATEN,), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("case", DECISIONS)
def test_the_pick_and_what_ties_with_it(case):
    assert split(16).text < split(2).text, "the text alone would decide otherwise"
    rows, ties, ratio, *runs = DECISIONS[case]
    verdict = decide(rows)
    assert (verdict.pick, verdict.ties) == (ties[0], ties)
    assert verdict.ratio == pytest.approx(ratio)
    assert verdict.expected_us == pytest.approx(ratio * rows[0].times.aten_us)
    assert verdict.speedup == pytest.approx(1 / ratio)
    assert [verdict.runs] == (runs or [1])


@given(data=st.data())
def test_the_order_of_rows_does_not_count(data):
    rows = [row for row in data.draw(KIT.rows()) if row.problem == KIT.problem]
    shuffled = data.draw(st.permutations(rows))
    assert decide_all(rows) == decide_all(shuffled)


@given(data=st.data())
def test_a_pick_is_measured_in_full_never_wrong_and_not_slower_than_aten(data):
    rows = [row for row in data.draw(KIT.rows()) if row.problem == KIT.problem]
    for verdict in decide_all(rows):
        assert verdict.ratio <= 1
        assert verdict.ties[0] == verdict.pick
        assert len(set(verdict.ties)) == len(verdict.ties)
        for config in verdict.ties:
            assert not any(r.status in (Status.WRONG, Status.CRASH) for r in rows if r.config == config)
            assert any(r.status is Status.OK for r in rows if r.config == config)
    loaded = [replace(row, detail=marks(row.emitted, True)) if row.times else row for row in rows]
    for verdict in decide_all(loaded):
        assert (verdict.pick, verdict.ties, verdict.ratio) == (ATEN, (ATEN,), 1.0)


@pytest.mark.parametrize(("us", "other", "times", "tied"), [
    (2.0, 2.15, 1, True), (2.0, 2.2, 1, False),  # 4% each at most.
    (2.0, 2.11, 2, True), (2.0, 2.13, 2, False),  # Two processes know more than one.
    (30.0, 30.55, 1, True), (30.0, 30.65, 1, False),
])  # fmt: skip
def test_an_interval_is_not_narrower_than_what_processes_differ_by(us, other, times, tied):
    rows = [row(us=100.0, aten=100.0)]
    for run in range(times):
        rows += [row(one, time, run=f"run-{run}", aten=100.0, spread=0.001) for one, time in ((A, us), (B, other))]
    assert (B in decide(rows).ties) == tied


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_one_wrong_result_bars_a_config_in_every_run_protocol_and_class(status):
    rows = [row(), row(A, 5.0), row(B, 7.0)]
    elsewhere = row(A, run="run-2", protocol=KIT.hot, toolchain=KIT.old, status=status)
    assert [v.pick for v in decide_all(rows)] == [A]
    assert [v.pick for v in decide_all([*rows, elsewhere])] == [B]


def test_runs_are_pooled_by_the_median_and_their_disagreement_is_the_spread():
    aten = [row(run=f"run-{i}") for i in (1, 2, 3)]
    verdict = decide([*aten, *(row(A, us, run=f"run-{i}") for i, us in ((1, 4.0), (2, 5.0), (3, 8.0)))])
    assert (verdict.ratio, verdict.spread, verdict.runs) == (0.5, pytest.approx(0.4), 3)


def test_nothing_is_decided_without_aten():
    for rows in ([], [row(A, 5.0)], [row(status=Status.SLOW), row(A, 5.0)]):
        assert decide(rows) is None


def test_slow_estimates_are_pooled_for_predictions_alone_and_not_beside_full_measurements():
    rows = [row(), row(A, 5.0, status=Status.SLOW)]
    assert [p.config for p in pool(rows)] == [ATEN]
    assert [(p.config, p.servable) for p in pool(rows, slow=True)] == [(A, False), (ATEN, True)]
    assert [p.ratio for p in pool([*rows[1:], row(A, 8.0, run="run-2")], slow=True)] == [0.8]


def test_the_toolchain_is_the_newest_by_version_not_by_text():
    chains = [replace(KIT.new, torch="2.13.0+cpu", gemmdb=version) for version in ("0.9.0", "0.10.0")]
    rows = [row(toolchain=chain) for chain in chains]
    random.shuffle(rows)
    assert decide(rows).toolchain.gemmdb == "0.10.0"


def test_each_protocol_and_toolchain_class_has_its_own_verdict():
    rows = [row(protocol=p, toolchain=t) for p in (KIT.cold, KIT.hot) for t in (KIT.old, KIT.new, KIT.newer)]
    found = {(v.protocol.l2, v.klass) for v in decide_all(rows)}
    assert found == {(l2, klass) for l2 in ("cold", "hot") for klass in ("cpu-torch2.9", "cpu-torch2.13")}


@pytest.mark.parametrize(("code", "load"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_row_knows_its_marks(code, load):
    marked = replace(row(), detail=marks(code, load))
    assert (marked.emitted, marked.disturbed) == (code, load)
    assert {EMITTED, DISTURBED} >= {word for word in marked.detail.split(", ") if word}
    (pooled,) = pool([marked])
    assert (pooled.emitted, pooled.disturbed) == (code, load)
