"""What `gemmdb tune` prints at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmdb.cli.tuned import Commands, say_tuned
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.report.workload import Product, WorkloadReport
from gemmdb.table.stats import Span
from gemmdb.tune import outlook
from gemmdb.tune.gained import Gained, Graph
from gemmdb.tune.plan import Plan, Wanted
from gemmdb.tune.tuning import Tuned
from gemmdb.workload.entries import Entry

CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
FAST = Config.of("cpp", "packed_gemm", blocks_m=0, blocks_n=0, blocks_k=0, threads_m=0, threads_n=0, threads_k=0)
COMMANDS = Commands(
    "gemmdb tune -- python serve.py",
    "gemmdb tune --wait 1h -- python serve.py",
    "gemmdb tune --repeats 8 -- python serve.py",
)
ALONE = "ATen is the only kernel for it: constant weights: set torch._inductor.config.freezing = True"


def product(m: int, config: Config | None, reason: str = "") -> Product:
    entry = Entry(Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32"), 1, 10, CPU.text)
    hit = None if config is None else Hit("exact", config, 10.0, 1.0 if config == ATEN else 2.0, "t.db")
    return Product(entry, CPU, hit, reason=reason)


def printed(capsys: pytest.CaptureFixture[str], kernels: int) -> list[str]:
    products = (
        product(1, FAST), product(2, ATEN, "measured in 1 run, ATen is the best; no more"),
        product(3, None, f"{ALONE}; exact: no verdict"), product(4, None, "exact: no verdict"),
    )  # fmt: skip
    graph = Graph(("mm",), kernels, 10, Span(900.0, 90.0, 910.0), Span(100.0, 95.0, 990.0))
    report = WorkloadReport("w", products)
    done = Tuned(
        Path("w.jsonl"), Plan((), {}, 1.0), report, report, gained=Gained((graph,), 0, 1, totals_us=((9e3,), (1e3,)))
    )
    say_tuned(done, False, COMMANDS)
    return capsys.readouterr().out.splitlines()


def test_each_gemm_that_aten_runs_has_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, kernels=1)
    ends = {
        m: next(line for line in lines if f"mm {m}x64x64 fp32" in line).split("fp32")[1].strip() for m in range(1, 5)
    }
    alone = ALONE.removeprefix("ATen is the only kernel for it: ")
    assert ends == {1: "", 2: "nothing measured is faster", 3: alone, 4: "no table answers"}


def test_outcomes_are_named_and_no_gain_is_claimed_where_aten_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, kernels=1)
    titles = next(line for line in lines if line.startswith("of the time"))
    assert "outcome" in titles
    assert "rung" not in titles
    serves = {m: next(line for line in lines if f"mm {m}x64x64 fp32" in line) for m in range(1, 5)}
    assert [outcome in serves[m] for m, outcome in enumerate(
        ("table", "ATen (measured best)", "ATen (refused)", "ATen (nothing known)"), 1
    )] == [True] * 4  # fmt: skip
    assert ["x  " in line.partition("0x64")[0] for line in serves.values()] == [True, False, False, False]
    (now,) = [line for line in lines if line.startswith("tables now ")]
    assert now.split(None, 2)[2].startswith(
        "4 GEMMs: 1 table, 1 ATen (measured best), 1 ATen (nothing known), 1 ATen (refused); expected over ATen"
    )
    aten = WorkloadReport("w", (product(2, ATEN),))
    say_tuned(Tuned(Path("w.jsonl"), Plan((), {}, 1.0), aten, aten), False, COMMANDS)
    text = capsys.readouterr().out
    assert "tables now     1 GEMM: 1 ATen (measured best); no gain, ATen runs every GEMM" in text
    assert "1.00x" not in text


def test_a_gain_that_may_be_chance_is_not_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    entry = product(1, FAST).entry
    doubtful = Product(entry, CPU, Hit("exact", FAST, 10.0, 1.05, "t.db", {"spread": 0.08}))
    report = WorkloadReport("w", (doubtful,))
    say_tuned(Tuned(Path("w.jsonl"), Plan((), {}, 1.0), report, report), False, COMMANDS)
    text = capsys.readouterr().out
    assert "1.05x" not in text
    assert text.count("no difference") == 3  # Before, now, and of the GEMM.


def test_the_same_kernels_have_no_gain_whatever_the_times_say(capsys: pytest.CaptureFixture[str]) -> None:
    (gain,) = [line for line in printed(capsys, kernels=0) if line.startswith("gain ")]
    assert gain.split(None, 1)[1].startswith(
        "none, both sides run the same kernels, but their times vary too much to compare, between 0.0909x and 9.58x: "
    )
    (gain,) = [line for line in printed(capsys, kernels=1) if line.startswith("gain ")]
    assert gain.split(None, 1)[1] == "9.000x, between 0.091x and 9.579x: no difference"


def test_disturbed_times_of_a_program_are_no_gain(capsys: pytest.CaptureFixture[str]) -> None:
    """It said "between 0.00116x and 1.14e+03x"."""
    span = Span(900.0, 9.0, 9100.0)
    found = Gained(
        (Graph(("mm",), 1, 10, span, span),),
        0,
        2,
        load=2.0,
        disturbed="other programs keep 2.0 cores busy (cc1plus 2.0)",
        totals_us=((9e3, 90.0), (9e3, 90e3)),
    )
    report = WorkloadReport("w", (product(1, FAST),))
    say_tuned(Tuned(Path("w.jsonl"), Plan((), {}, 1.0), report, report, gained=found), False, COMMANDS)
    lines = capsys.readouterr().out.splitlines()
    (gain,) = [line for line in lines if line.startswith("gain ")]
    assert gain.split(None, 1)[1] == "cannot tell, the times were disturbed"
    assert not any(line.startswith("with") for line in lines)  # Its times.
    assert lines[-1].startswith("next  other programs keep 2.0 cores busy (cc1plus 2.0); wait until they end")
    assert lines[-1].endswith(COMMANDS.patient)
    assert not any("--fresh" in line for line in lines)


def test_a_slower_program_whose_operands_stay_in_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Its weight has 64 x 64 elements."""
    graph = Graph(("mm",), 1, 10, Span(100.0, 99.0, 101.0), Span(200.0, 199.0, 201.0))
    slow = Gained((graph,), 0, 2, totals_us=((1000.0, 1001.0), (2000.0, 2001.0)))
    report = WorkloadReport("w", (product(1, FAST),))
    say_tuned(Tuned(Path("w.jsonl"), Plan((), {}, 1.0), report, report, gained=slow), False, COMMANDS)
    (why,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("why ")]
    assert "the times of the tables are those of cold caches" in why


def test_what_is_next_is_a_line_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(printed(capsys, kernels=0))
    assert "torch._inductor.config.freezing = True" in text
    assert "gemmdb build --arch native --shapes w.jsonl" in text
    assert "gemmdb report w.jsonl" in text


def test_a_difference_that_may_be_chance_is_timed_more_often(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(printed(capsys, kernels=1))
    assert "the difference may be chance; more samples narrow the interval: gemmdb tune --repeats 8 -- python" in text
    fast = WorkloadReport("w", (product(1, FAST),))
    say_tuned(Tuned(Path("w.jsonl"), Plan((), {}, 1.0), fast, fast), False, COMMANDS)
    assert "nothing to do" not in capsys.readouterr().out  # Its kernel is faster than ATen.


def test_before_anything_is_measured_it_says_what_can_gain() -> None:
    assert outlook.of_device(CPU).startswith("on Example CPU: it can gain in inference with constant weights")
    nothing = Plan((), {}, 60.0)
    assert outlook.of_plan(nothing, 6, 2, 0.0, 10.0) == (
        "this program can gain nothing from a build: tables answer 2 of its 6 GEMMs, and a build cannot help the others"
    )
    assert outlook.of_plan(nothing, 6, 6, 0.0, 10.0) == "this program needs no build: tables answer all its 6 GEMMs"
    assert outlook.of_plan(nothing, 1, 1, 0.0, 10.0) == "this program needs no build: tables answer its only GEMM"
    wanted = Wanted(product(1, None).entry.problem, CPU, 10, 5.0, None, 15.0)
    found = outlook.of_plan(Plan((wanted,), {}, 60.0), 4, 3, 5.0, 10.0)
    assert found == "this program can gain in 1 of 4 GEMMs, 50% of the time; 3 cannot or are in tables"
