"""What is served for a symbolic M where some of its configs were not confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from kit.devices import H200
from kit.for_a_gpu import CUTLASS
from kit.gpu import algorithm, make
from kit.sessions import FakeSession

from gemmdb import Config, Policy, Problem
from gemmdb.hit import Branches, Hit
from gemmdb.inductor.benchmark import at_rows
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.outcome import Kind, of

ONE, TWO = make("tile"), algorithm()
STREAM_K = Config.of("cutlass", "gemm", **{**CUTLASS.values, "split_k": 0})
"""It has a workspace, so it shares no node with others."""
PROBLEM = Problem.gemm("mm", m=64, n=512, k=512)
POLICY = Policy(confirm=True, confirm_s=3.0, live_calls=100_000)
OWN: Branches = ((16, ONE), (128, TWO), (None, ATEN))
GUESSED = (16, ONE, 50.0), (128, TWO, 50.0)


def decided(certain: Branches, guessed: Sequence[tuple[int, Config, float]] = GUESSED) -> Decision:
    """A decision for 2 to 512 rows. `certain`: what is served without confirming. `guessed`: sizes, configs and their
    microseconds, half of ATen's."""
    kernels = [{"m": m, "config": config.text, "mean_gain": 0.1} for m, config in (([2, 16], ONE), ([64, 128], TWO))]
    kernels.append({"m": [256, 512], "config": ATEN.text, "mean_gain": 0.0})
    unmeasured = [{"m": m, "config": config.text, "us": us, "speedup": 2.0} for m, config, us in guessed]
    hit = Hit("near", TWO, 50.0, 2.0, "", {"kernels": kernels, "unmeasured": unmeasured}, OWN)
    sure = Hit("near", certain[0][1], 50.0, 2.0, "", {}, certain if len(certain) > 1 else ())
    session = FakeSession(lambda query: hit, POLICY, None, certain=lambda query: sure)
    return deciding.decide(session, Query(PROBLEM, H200, {"m": (2, 512)}))


def after(certain: Branches, *lost: int, **options: Any) -> tuple[Decision, Branches]:
    """The decision where the configs were slower than ATen at these sizes, and its branches."""
    whole = decided(certain, **options)
    timed = []
    for part in at_rows.parts(whole):
        event = replace(part.event, evidence={"confirmed": {}})
        slow = replace(part, config=ATEN, event=replace(event, note="it takes longer"))
        timed.append((part, slow if part.problem.m in lost else replace(part, event=event)))
    found = at_rows.joined(whole, timed)
    return found, found.branches or ((None, found.config or ATEN),)


def kernels(found: Decision) -> list[tuple[Any, ...]]:
    return [(one["m"], Config.parse(one["config"])) for one in found.event.evidence["kernels"]]


def test_what_was_confirmed_stays():
    found, branches = after(((None, ATEN),))
    assert branches == OWN
    assert (found.config, found.event.note) == (TWO, "")
    assert found.event.evidence["kernels"] == decided(OWN).event.evidence["kernels"]


SHORT = (2, ONE, 10.0), (8, ONE, 10.0), (16, ONE, 0.5), (64, TWO, 50.0), (128, TWO, 40.0)
"""At 16 rows, too little can be saved to time it."""


def test_a_config_is_timed_where_that_pays_off_and_at_the_hint():
    found = at_rows.parts(decided(((None, ATEN),), SHORT))
    assert [(part.config, part.problem.m) for part in found] == [(ONE, 8), (TWO, 64), (TWO, 128)]
    often = at_rows.parts(decided(((None, ATEN),), SHORT), times=100)
    assert [part.problem.m for part in often] == [16, 64, 128]


@pytest.mark.parametrize(("lost", "branches"), [
    ((), ((8, ONE), (16, ATEN), (128, TWO), (None, ATEN))),
    ((8,), ((16, ATEN), (128, TWO), (None, ATEN))),
    ((64,), ((8, ONE), (None, ATEN))),
])  # fmt: skip
def test_a_config_is_served_up_to_where_it_was_confirmed(lost: tuple[int, ...], branches: Branches):
    found, served = after(((None, ATEN),), *lost, guessed=SHORT)
    assert served == branches
    assert bool(found.event.note) is bool(lost), "nobody is told of what a compile does not try"


def test_savings_at_different_sizes_compare_by_the_time_that_a_gemm_takes_there():
    whole = decided(((None, ATEN),), SHORT)
    parts = at_rows.parts(whole)
    weights = [at_rows.weight(whole, part) for part in parts]
    assert weights == pytest.approx([100 / 20, 1.0, 100 / 80])
    assert at_rows.weight(whole, replace(parts[0], event=replace(parts[0].event, expected_us=None))) == 1.0


def test_what_needs_no_confirming_takes_the_place_of_what_was_lost():
    found, branches = after(((32, ATEN), (None, ONE)), 128)
    assert branches == ((16, ONE), (32, ATEN), (128, ONE), (None, ATEN))
    assert kernels(found) == [([2, 16], ONE), ([64, 128], ONE), ([256, 512], ATEN)]
    assert found.config == ONE
    assert found.event.note == "not confirmed: cublaslt:matmul at m=128: it takes longer"
    # A part that is as before keeps its figures.
    assert [one.get("mean_gain") for one in found.event.evidence["kernels"]] == [0.1, None, 0.0]


def test_parts_of_one_node_get_no_kernel_that_cannot_share_it():
    """All parts would then run as branches of the graph, without their epilogues."""
    assert after(((None, STREAM_K),), 128)[1] == ((16, ONE), (None, ATEN))
    assert after(((None, CUTLASS),), 128)[1] == ((16, ONE), (128, CUTLASS), (None, ATEN))


def test_without_any_confirmed_part_the_answer_is_what_needs_no_confirming():
    found, branches = after(((None, CUTLASS),), 16, 128)
    assert branches == ((None, CUTLASS),)
    assert (found.config, kernels(found)) == (CUTLASS, [([2, 16, 64, 128, 256, 512], CUTLASS)])


@pytest.mark.parametrize(
    ("lost", "branches"),
    [
        ((), ((16, ONE), (56, ATEN), (64, ONE), (120, ATEN), (128, ONE), (None, ATEN))),
        ((64,), ((None, ATEN),)),
    ],
)
def test_parts_of_one_kernel_with_aten_between_are_confirmed_together(lost: tuple[int, ...], branches: Branches):
    """ATen gets 17 to 56 and 65 to 120 rows. One trial at the largest size, and one at the hint."""
    own: Branches = ((16, ONE), (56, ATEN), (64, ONE), (120, ATEN), (128, ONE), (None, ATEN))
    whole = decided(((None, ATEN),), [(m, ONE, 50.0) for m in (16, 64, 128)])
    event = replace(whole.event, evidence={**whole.event.evidence, "aten_between": [[17, 56], [65, 120]]})
    whole = replace(whole, branches=own, event=event, config=ONE)
    parts = at_rows.parts(whole)
    assert [part.problem.m for part in parts] == [64, 128]
    timed = []
    for part in parts:
        event = replace(part.event, evidence={"confirmed": {}})
        slow = replace(part, config=ATEN, event=replace(event, note="it takes longer"))
        timed.append((part, slow if part.problem.m in lost else replace(part, event=event)))
    found = at_rows.joined(whole, timed)
    assert (found.branches or ((None, found.config),)) == branches


def test_aten_alone_is_no_kernel_of_a_table():
    found, branches = after(((None, ATEN),), 16, 128)
    event = found.event
    assert branches == ((None, ATEN),)
    assert "kernels" not in event.evidence
    assert of(event.rung, event.config, event.note, event.evidence).kind not in (Kind.TABLE, Kind.NEAR)
