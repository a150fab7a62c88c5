"""What is served for a symbolic M where some of its configs were not confirmed."""

from __future__ import annotations

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
PROBLEM = Problem.gemm("mm", m=64, n=512, k=512)
OWN: Branches = ((16, ONE), (128, TWO), (None, ATEN))
GUESSED = (16, ONE), (128, TWO)


def decided(certain: Branches) -> Decision:
    """A decision for 2 to 512 rows. `certain`: what is served without confirming."""
    kernels = [{"m": m, "config": config.text, "mean_gain": 0.1} for m, config in (([2, 16], ONE), ([64, 128], TWO))]
    kernels.append({"m": [256, 512], "config": ATEN.text, "mean_gain": 0.0})
    unmeasured = [{"m": m, "config": config.text, "us": 50.0, "speedup": 2.0} for m, config in GUESSED]
    hit = Hit("near", TWO, 50.0, 2.0, "", {"kernels": kernels, "unmeasured": unmeasured}, OWN)
    sure = Hit("near", certain[0][1], 50.0, 2.0, "", {}, certain if len(certain) > 1 else ())
    session = FakeSession(lambda query: hit, Policy(confirm=True), None, certain=lambda query: sure)
    return deciding.decide(session, Query(PROBLEM, H200, {"m": (2, 512)}))


def after(certain: Branches, *lost: int) -> tuple[Decision, Branches]:
    """The decision where the configs were slower than ATen at these sizes, and its branches."""
    whole = decided(certain)
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


def test_what_needs_no_confirming_takes_the_place_of_what_was_lost():
    found, branches = after(((32, ATEN), (None, ONE)), 128)
    assert branches == ((16, ONE), (32, ATEN), (128, ONE), (None, ATEN))
    assert kernels(found) == [([2, 16], ONE), ([], ATEN), ([64, 128], ONE), ([256, 512], ATEN)]
    assert found.config == ONE
    assert found.event.note == "not confirmed: cublaslt:matmul at m=128: it takes longer"
    # A part that is as before keeps its figures.
    assert [one.get("mean_gain") for one in found.event.evidence["kernels"]] == [0.1, None, None, 0.0]


def test_parts_of_one_node_get_no_kernel_that_cannot_share_it():
    """All parts would then run as branches of the graph, without their epilogues."""
    assert after(((None, CUTLASS),), 128)[1] == ((16, ONE), (None, ATEN))


def test_without_any_confirmed_part_the_answer_is_what_needs_no_confirming():
    found, branches = after(((None, CUTLASS),), 16, 128)
    assert branches == ((None, CUTLASS),)
    assert (found.config, kernels(found)) == (CUTLASS, [([2, 16, 64, 128, 256, 512], CUTLASS)])


def test_aten_alone_is_no_kernel_of_a_table():
    found, branches = after(((None, ATEN),), 16, 128)
    event = found.event
    assert branches == ((None, ATEN),)
    assert "kernels" not in event.evidence
    assert of(event.rung, event.config, event.note, event.evidence).kind not in (Kind.TABLE, Kind.NEAR)
