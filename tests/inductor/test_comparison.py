"""What `compare` says of the outputs of a model with and without gemmdb."""

import math
import time
from dataclasses import replace

import pytest
import torch

import gemmdb.inductor
from gemmdb.devices import load
from gemmdb.errors import InputError
from gemmdb.inductor.entry import compare, comparison
from gemmdb.inductor.entry.compare import difference
from gemmdb.inductor.lower.adapter import ir_view
from gemmdb.kernels.config import ATEN
from gemmdb.table.stats import Span

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("wanted", "found", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([1.0, -4.0], [1.0, NAN], INF),
        ([1.0, NAN], [1.0, -4.0], INF),
        ([1.0, -4.0], [1.0, INF], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([2.0, INF, NAN], [1.0, INF, NAN], 0.5),
        ([], [], 0.0),
        ([1 + 4j], [1 + 2j], 0.5),
    ],
    ids=str,
)
def test_the_difference_of_two_outputs(wanted, found, error):
    assert difference({"out": torch.tensor(wanted)}, {"out": torch.tensor(found)}) == error
    assert difference([torch.ones(3, dtype=torch.int32), None], [torch.ones(3, dtype=torch.int32), None]) == 0.0


A, W = torch.randint(-9, 9, (8, 64)).bfloat16(), torch.randint(-9, 9, (32, 64), dtype=torch.int8)


def linear(x, w):
    return torch.nn.functional.linear(x, w.to(x.dtype))


@pytest.mark.parametrize("kind", [tuple, list])
def test_inputs_may_be_one_tuple_or_list(kind):
    found = compare.compare(linear, kind((A, W)), calls=1)
    assert found.error == 0
    assert len(found.configs) == 1


def scaled(x, *, by):
    x.mul_(by)
    return torch.nn.functional.dropout(x @ x.t(), 0.5) * 1j


def test_a_model_may_take_keywords_change_its_inputs_and_draw_numbers():
    given = torch.randn(8, 64)
    assert compare.compare(scaled, given, calls=1, kwargs={"by": 0.5}).error < 1e-5


def test_at_least_one_call_is_timed():
    with pytest.raises(InputError, match="calls must be at least 1, got 0"):
        compare.compare(linear, A, W, calls=0)


@pytest.fixture
def known(kit, table, monkeypatch):
    """The problem of `linear`, whose kernel in a table is the weight-only one."""
    (text,) = kit.problems(kit.forced(None, linear, A, W))
    monkeypatch.setenv("GEMMDB_TABLES", str(table({text: kit.INT8PACK})))
    return text


def test_a_recorder_that_looks_on_is_not_what_is_compared(kit, known, tmp_path):
    with gemmdb.inductor.record(tmp_path / "workload.jsonl"):
        found = compare.compare(linear, A, W, calls=1)
    assert found.configs == {known: kit.INT8PACK.text}
    (product,) = found.products
    assert (product["problem"], product["config"], product["count"]) == (known, kit.INT8PACK.text, 1)
    assert product["expected_us"] > 0
    assert product["speedup_vs_aten"] > 1


def test_each_kernel_alone_is_taken_back_also_where_the_operands_are_not_as_the_pass_saw_them(kit, monkeypatch):
    """The lowering then asks for another problem than the pass did, and the journal tells that one."""

    def confirm(problem, args):
        return replace(problem, a=replace(problem.a, layout=replace(problem.a.layout, align=2)))

    lowered = []

    def clock(*_):
        lowered.append(sorted(config.kernel for config in kit.lowered()))
        gemmdb.inductor.reset_stats()
        return Span(20.0, 19.0, 21.0), Span(10.0, 9.0, 11.0)

    monkeypatch.setattr(ir_view, "confirm", confirm)
    monkeypatch.setattr(compare, "_timed", clock)
    # Whatever the clock says, gemmdb counts as slower.
    monkeypatch.setattr(comparison.Comparison, "verdict", "slower")
    with gemmdb.inductor.force(kit.INT8PACK):
        found = compare.compare(lambda x, v, w: linear(linear(x, v), w), A, W, W[:, :32].contiguous())
    # gemmdb's, then with ATen for both, then for each.
    assert lowered == [["int8pack_mm"] * 2, ["default"] * 2, *[["default", "int8pack_mm"]] * 2]
    assert sorted(found.configs) == sorted(found.slower)
    assert all(" a=bf16:row:2 " in text for text in found.slower)


KERNELS = {"one": "triton:tile", "two": "triton:gemv", "three": ATEN.text}


@pytest.mark.parametrize(
    ("lost", "slower", "together", "asked"),
    [
        ({"one two": 9.0, "one": 8.0, "two": 0.0}, {"one": 8.0}, 9.0, 3),
        ({"one two": 9.0, "one": 0.0, "two": 0.0}, {}, 9.0, 3),
        ({"one two": 0.0}, {}, 0.0, 1),
        ({"one": 5.0}, {"one": 5.0}, 5.0, 1),
        ({}, {}, 0.0, 0),
    ],
    ids=str,
)
def test_who_is_blamed_for_a_slowdown(lost, slower, together, asked):
    calls = []

    def lost_us(suspects):
        calls.append(suspects)
        return lost[" ".join(suspects)]

    suspects = list(KERNELS)[: len(max(lost, key=len, default="").split())]
    assert compare._blamed(suspects, lost_us) == (slower, together)
    assert len(calls) == asked


def test_what_is_said_of_a_slowdown():
    slow = comparison.Comparison(100.0, 120.0, 0.0, KERNELS, {"one": 8.0}, 9.0)
    assert slow.advice() == "8.0 us lost to triton:tile on one: measure it again (gemmdb build) or deny the kernel"
    assert replace(slow, slower={}).advice().splitlines() == [
        "9.0 us lost to 2 kernels together; none of them alone loses 1%:",
        "  triton:tile on one",
        "  triton:gemv on two",
    ]
    unknown = replace(slow, slower={}, together_us=0.0)
    assert unknown.advice() == "the kernels are not the cause: with ATen for every GEMM it is just as slow"
    assert replace(unknown, gemmdb_us=100.5).advice() == ""


@pytest.mark.parametrize(
    ("gemmdb_us", "interval", "disturbed", "verdict"),
    [
        (50.0, (1.9, 2.1), False, "faster"),
        (50.0, (0.9, 4.0), False, "no difference"),
        (50.0, (1.9, 2.1), True, "cannot tell"),
        (120.0, (0.8, 0.9), False, "slower"),
        (100.5, (0.99, 0.999), False, "no difference"),
    ],
)
def test_a_gain_is_an_interval(gemmdb_us, interval, disturbed, verdict):
    found = comparison.Comparison(
        100.0, gemmdb_us, 0.0, KERNELS, {}, interval=interval, load=2.0 if disturbed else 0.0, disturbed=disturbed
    )
    assert found.verdict == verdict
    assert replace(found, configs=dict.fromkeys(KERNELS, ATEN.text)).verdict == "same kernels"


def test_the_timing_takes_as_long_as_compare_said(known, monkeypatch):
    monkeypatch.setattr(compare, "_compile", lambda model, inputs, using: model)
    said: list[tuple[float, str]] = []

    def slow(*inputs):
        time.sleep(0.02)
        return linear(*inputs)

    compare.compare(slow, A, W, calls=50, wait_s=0.0, say=lambda words: said.append((time.monotonic(), words)))
    ended = time.monotonic()
    ((at, words),) = [one for one in said if one[1].startswith("timing 2 x 50 calls, about ")]
    expected_s = float(words.split()[-2])
    assert expected_s / 1.5 < ended - at < 1.5 * expected_s + 1
    assert "then timing 2 x 50 calls, about 2 s" in " ".join(words for _, words in said)


def test_compare_times_nothing_on_a_busy_machine_if_that_is_not_wanted(known, monkeypatch):
    monkeypatch.setattr(load, "now", lambda threads=None: load.Load(2.0))
    asked = []
    found = compare.compare(linear, A, W, calls=2, wait_s=0.0, measures=lambda busy: asked.append(busy) is not None)
    assert asked == [load.Load(2.0)]
    assert (found.verdict, found.stopped, found.load) == ("cannot tell", "other programs keep 2.0 cores busy", 2.0)
    assert math.isnan(found.default_us)
    assert (found.error, found.kernels, found.interval) == (0.0, 1, None)


def test_compare_waits_for_a_quiet_machine_and_says_if_there_is_none(known, monkeypatch):
    monkeypatch.setattr(compare, "QUIET_TIMEOUT_S", 0.0)
    monkeypatch.setattr(load, "now", lambda threads=None: load.Load(0.0))
    monkeypatch.setattr(load, "between", lambda before, after, threads=None: load.Load(2.0))
    said = []
    found = compare.compare(linear, A, W, calls=2, say=said.append)
    assert (found.verdict, found.disturbed, found.load) == ("cannot tell", True, 2.0)
    assert said.count("timing") == 2
    assert [words.split(",")[0] for words in said if "compiling" in words] == [
        "compiling without gemmdb", "compiling with gemmdb",
    ]  # fmt: skip
    assert any(words.startswith("timing 2 x 2 calls, ") for words in said)
    monkeypatch.setattr(load, "now", lambda threads=None: load.Load(2.0))
    for limit_s in (0.0, None):
        timed = compare._quietly(lambda: said.append("busy all the time"), said.append, limit_s, lambda busy: True)
        assert timed == (None, load.Load(2.0))
    assert said.count("busy all the time") == 2
    assert not compare._is_disturbed(Span(100.0, 99.0, 101.0), load.Load(0.0))
    assert compare._is_disturbed(Span(100.0, 50.0, 150.0), load.Load(0.0))
