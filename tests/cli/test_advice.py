"""What a command advises that gained nothing. The reasons are those that the generators and the lowering give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmdb.advice import FREEZE_LINE, Act, Situation, advise, bound, facts, of_reason
from gemmdb.cli.coverage import steps
from gemmdb.generators import effort
from gemmdb.generators.coverage import coverage
from gemmdb.generators.measure.candidates import only_aten, range_rejection
from gemmdb.generators.measure.cpu.space import CpuSpace
from gemmdb.key.problem import Query
from gemmdb.lookup.acceptance.ranges import unmeasured
from gemmdb.lookup.ask import Ask
from gemmdb.outcome import NO_KERNEL, ONLY_ATEN
from gemmdb.settings import Policy
from gemmdb.tune import plan
from gemmdb.workload.entries import Entry, Workload

COMMAND, BUILD = "gemmdb tune -- python serve.py", "gemmdb build --arch native --shapes w.jsonl"


def test_reasons_of_a_build(lab) -> None:
    pytest.importorskip("torch")
    space, quick = CpuSpace(), effort.named("quick")
    plain = replace(lab.problem(m=7), constant=False)
    assert of_reason(str(only_aten(plain, lab.cpu, space, quick))) is Act.FREEZE
    query = Query(lab.problem(m=24, n=4096, k=4096), lab.cpu, {"m": (2, None)})
    ask = Ask(query, (), Policy(), None)
    assert of_reason(str(range_rejection(ask, unmeasured(ask), space, quick))) is Act.BOUND


@pytest.mark.parametrize(("reason", "act"), [
    (plan.NO_GAIN.reason, Act.NOTHING), (plan.OTHER_DEVICE.reason, Act.OTHER_DEVICE), (NO_KERNEL, Act.NOTHING),
    ("ATen is the only kernel for it: Inductor offers no C++ template for int_mm", Act.NOTHING),
    ("no table answers", Act.BUILD),
])  # fmt: skip
def test_other_reasons(reason: str, act: Act) -> None:
    assert of_reason(reason) is act


def test_each_step_has_a_line_to_paste() -> None:
    found = Situation(
        {"constant weights: set torch._inductor.config.freezing = True": 8, "too long (torch._dynamo.mark_dynamic)": 1},
        unknown=3, best=2, disturbed=8, timed=14, left=5, command=COMMAND, build=BUILD, largest=100,
    )  # fmt: skip
    assert [(one.act, one.paste) for one in advise(found)] == [
        (Act.IDLE, COMMAND), (Act.RESUME, COMMAND), (Act.FREEZE, FREEZE_LINE),
        (Act.BOUND, "torch._dynamo.mark_dynamic(x, 0, min=2, max=128)"), (Act.BUILD, BUILD),
    ]  # fmt: skip
    assert facts(advise(found))[0] == (
        "next",
        "8 of 14 timings were disturbed by other programs and are not used; run again when the machine is idle:"
        f" {COMMAND}",
    )


def test_a_batch_without_a_bound_is_told_together_with_freezing(lab) -> None:
    """Freezing alone would end in the next dead end."""
    device = lab.cpu.text
    plain = replace(lab.problem(m=7), constant=False)
    seen = (((("m", 2),), 10), ((("m", 500),), 10))
    moving = Entry(plain, calls=20, device=device, ranges=(("m", 2, None),), seen=seen)
    bounded = Entry(replace(plain, n=512), calls=9, device=device, ranges=(("m", 2, 64),))
    found = coverage(Workload((moving, bounded), {}), lab.catalog(), Policy())
    freeze, limit = steps(found, Path("w.jsonl"), elsewhere=False)
    assert (freeze.act, freeze.text.split(" need ")[0]) == (Act.FREEZE, "2 GEMMs")
    assert (limit.act, limit.paste) == (Act.BOUND, "torch._dynamo.mark_dynamic(x, 0, min=2, max=512)")
    assert limit.text.startswith("the batch of 1 GEMM has no upper bound")


def test_training_is_told_that_freezing_does_not_help() -> None:
    """A graph with a backward is never frozen, and a workload does not say which graphs have one."""
    (only,) = advise(Situation({"constant weights: set torch._inductor.config.freezing = True": 8}))
    assert str(only).startswith("8 GEMMs need constant weights: nothing to do in training; in inference, set this")


def test_a_table_of_another_toolchain_is_upgraded() -> None:
    (only,) = advise(Situation(best=3, outdated=2, build=BUILD))
    assert (only.act, only.paste) == (Act.UPGRADE, BUILD)
    assert str(only).startswith("2 GEMMs were measured with another version of torch or CUDA; upgrade the table: ")


def test_a_busy_machine_is_waited_for() -> None:
    (only,) = advise(Situation(busy="other programs keep 2.0 cores busy", patient=f"{BUILD} --wait 1h"))
    assert str(only) == f"other programs keep 2.0 cores busy; wait until they end: {BUILD} --wait 1h"


def test_what_only_aten_can_run_was_not_measured() -> None:
    """Of sizes that data decide, it said that no kernel is faster."""
    (only,) = advise(Situation({f"{ONLY_ATEN}: the C++ template divides by a size that may be zero": 1}))
    assert str(only) == "nothing to do: only ATen can run 1 GEMM here"


def test_where_aten_is_the_best_there_is_nothing_to_do() -> None:
    (only,) = advise(Situation(best=6))
    assert str(only) == "nothing to do: no kernel is faster than ATen for 6 GEMMs here"
    assert [one.act for one in advise(Situation())] == [Act.NOTHING]


def test_what_only_aten_can_run_is_not_among_what_was_measured() -> None:
    (only,) = advise(Situation({f"{ONLY_ATEN}: both operands are inputs": 2, NO_KERNEL: 1}, best=3))
    assert str(only) == (
        "nothing to do: no kernel is faster than ATen for 3 GEMMs, and no single kernel is good at all sizes of its"
        " range for 1 GEMM, and only ATen can run 2 GEMMs here"
    )


def test_the_bound_of_several_ranges_is_good_for_all_of_them() -> None:
    (only,) = advise(Situation({NO_KERNEL: 3}, tighter=[(2, 16), (1, 32)]))
    assert (only.act, only.paste) == (Act.TIGHTEN, "torch._dynamo.mark_dynamic(x, 0, min=2, max=16)")


def test_a_prediction_that_aten_is_the_best_is_measured() -> None:
    (only,) = advise(Situation(best=6, predicted=2, build=BUILD))
    assert (only.act, only.paste) == (Act.CHECK, BUILD)
    assert str(only).startswith("that ATen is the best kernel for 2 GEMMs is a prediction; measure it: gemmdb build")


@pytest.mark.parametrize(("largest", "proposed"), [(0, 64), (8, 64), (64, 64), (65, 128), (512, 512)])
def test_the_bound_of_a_batch_covers_what_was_seen(largest: int, proposed: int) -> None:
    assert bound(largest) == proposed


def test_the_line_that_bounds_a_batch_works() -> None:
    """A max without a min ended the compile with "not simple sympy type NoneType"."""
    torch = pytest.importorskip("torch")
    (step,) = advise(Situation({"too long (torch._dynamo.mark_dynamic)": 1}, largest=40))
    run, sizes = torch.compile(torch.nn.Linear(8, 4), backend=lambda graph, _: sizes.append(1) or graph), []
    for rows in (40, 2, 64):
        x = torch.ones(rows, 8)
        exec(step.paste, {"torch": torch, "x": x})
        assert run(x).shape == (rows, 4)
    assert len(sizes) == 1
