"""What the summary says to do is what `gemmdb coverage` says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.inductor.observe.stats import stats
from gemmdb.inductor.observe.summary import of_events
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.outcome import NO_KERNEL

CPU = Device("cpu", "cpu", "Test CPU", 2, isa="avx512_bf16").text
GEMM = Problem.gemm("mm", m=4, n=768, k=256, dtype="bf16", constant_weight=True)
ATEN = "aten:default"


def told(**facts: Any) -> str:
    given: dict[str, Any] = {"rung": "exact", "config": ATEN, "device": CPU, "expected_us": 9.0, "speedup": 1.0}
    return str(of_events([Event(GEMM.text, **given | facts)], 1))


@pytest.mark.parametrize("rung", ["aten", "exact"])
def test_an_unbounded_batch_is_bounded_and_not_built(rung: str) -> None:
    """A build was proposed, and `tune` then said that it can gain nothing."""
    said = told(rung=rung, ranges={"m": (2, None)}, evidence={"reason": "no measured or near answer at m=2"})
    assert said.endswith(
        "to do: the batch of 1 GEMM has no upper bound, or a very large one: give one and run again:"
        " torch._dynamo.mark_dynamic(x, 0, min=2, max=64)"
    )
    assert "build" not in said.partition("its range has no upper bound")[0]
    assert "to build" in told(rung=rung, ranges={"m": (2, 64)}, evidence={"reason": "no measured or near answer"})


def test_stats_say_that_a_range_has_no_upper_bound() -> None:
    """As lookup and coverage do, whatever was measured at the hint."""
    ranges, why = {"m": (2, None)}, {"reason": "no measured or near answer at m=2"}
    JOURNAL.enter(Event(GEMM.text, "exact", ATEN, CPU, ranges=ranges, evidence=why))
    JOURNAL.add(JOURNAL.take())
    (found,) = stats()["products"]
    assert found["outcome"] == "ATen (nothing known)"
    assert found["why"].startswith("its range has no upper bound")


def test_disturbed_times_are_taken_again() -> None:
    said = told(disturbed=True)
    assert "run again when the machine is idle: gemmdb tune -- python " in said
    assert "to build" not in said


def test_a_range_without_a_single_kernel_is_bounded_tighter() -> None:
    evidence = {
        "range": {"m": [2, 64]}, "reason": f"{NO_KERNEL}: the least worst regret of any config is 58.6%",
        "faster_at": [2, 4, 8, 16], "good_up_to": 16,
    }  # fmt: skip
    said = told(ranges={"m": (2, 64)}, evidence=evidence)
    assert f"ATen (refused)\n  1 x mm m=4 n=768 k=256 bf16 (m 2..64)  {NO_KERNEL}" in said
    assert said.endswith("torch._dynamo.mark_dynamic(x, 0, min=2, max=16)")
    assert "to build" not in said
