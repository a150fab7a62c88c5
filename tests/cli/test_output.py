"""What is printed, apart from any command."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.cli import gain, output, terminal
from gemmdb.cli.evidence import brief_facts, expected_time, full_facts, over_range
from gemmdb.cli.output import Footnotes, count, microseconds, one_line, say_facts, say_json
from gemmdb.devices import registry
from gemmdb.hit import Hit
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query

LONG = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=output.SHORT_REASON + 1, max_size=60)
CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")


def test_json_has_no_nan(capsys):
    say_json("any", {"a": math.nan, "b": [math.inf, 1.5], "c": (1, None, True)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "schema": "any", "version": 1, "a": None, "b": [None, 1.5], "c": [1, None, True],
    }  # fmt: skip


def test_one_line_neither_breaks_nor_controls_a_terminal():
    assert one_line("a\nb\t c\x1b[31m") == "a b c?[31m"


def test_facts_are_aligned(capsys):
    say_facts([("a", "1"), ("long", "2")])
    assert capsys.readouterr().out == "a     1\nlong  2\n"


def test_evidence_is_written_for_people():
    evidence = {
        "protocol": "protocol clock=host", "ties": ["a", "b"], "spread": 0.22579307781, "verified": True,
        "near": [{"d": 0.5}, {"d": 2}], "range": {"m": [2, None]}, "zero": -0.0, "table": "x.db", "none": [],
    }  # fmt: skip
    assert list(full_facts(evidence, but=["table"])) == [
        ("protocol", "clock=host"), ("ties", "a, b"), ("spread", "0.2258"), ("verified", "yes"),
        ("near", "d: 0.5"), ("", "d: 2"), ("range", "m 2.."), ("zero", "0"), ("none", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(("evidence", "said"), [
    ({"refused": [{"config": "cpp:packed_gemm threads_m=1", "reason": "it blocks at run time"}]},
     {"refused": "cpp:packed_gemm threads_m=1, it blocks at run time"}),
    # The evidence of a hint is as long as that of an answer; the range has its own.
    ({"range": {"m": [2, 64]}, "reason": "no answer at m=4", "hint": {"toolchain": "torch=2.13.0"}},
     {"range": "m 2..64", "reason": "no answer at m=4"}),
    ({"range": {"m": (2, None), "n": [1, 8]}}, {"range": "m 2.., n 1..8"}),
    ({"sizes": [{"m": 8, "rung": None, "regret": -0.0}]}, {"sizes": "m 8, rung -, regret 0.0%"}),
    ({"sizes": [{"m": 8, "rung": "exact", "expected_us": 57.0, "speedup": 1.0}]},
     {"sizes": "m 8, rung exact, 57.00 us, 1.00x ATen"}),
    ({"kernels": [{"m": [2, 4], "config": "aten:default", "mean_gain": -0.0, "worst_regret": 0.20917874526441263}]},
     {"kernels": "m 2, 4, aten:default, mean gain 0.0%, worst regret 20.9%"}),
    ({"held_back": {"config": "aten:default", "gain": -0.0001, "loss": 0.20917874526441263}},
     {"held back": "aten:default, gain 0.0%, loss 0.2092"}),
])  # fmt: skip
def test_evidence_in_a_few_words(evidence, said):
    assert dict(brief_facts(evidence)) == said


def test_the_time_of_a_range_names_the_size_that_it_holds_for():
    cpu, packed = Device("cpu", "cpu", "Example CPU", 2, isa="avx2"), Config("aten", "int8pack_mm")
    problem = Problem.gemm("mm", m=8, n=64, k=64)
    sizes = [{"m": m, "expected_us": 50.0, "speedup": speedup} for m, speedup in ((2, 4.0), (64, 1.25))]
    hit, query = Hit("exact", packed, 50.0, 2.0, "t.db", {"sizes": sizes}), Query(problem, cpu, {"m": (2, 64)})
    assert expected_time(hit, query) == "50.00 us, 100.00 us with ATen: 2.00x at m=8, 1.25x to 4.00x over the range"
    assert expected_time(hit, replace(query, ranges={})) == "50.00 us, 100.00 us with ATen: 2.00x"
    assert over_range(hit.with_aten(), query) == ""


@given(st.lists(LONG | st.just("short")))
def test_each_reason_stands_once_and_each_row_finds_its_own(reasons):
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "is_terminal", lambda: True)
        patch.setattr(output, "say_hanging", lambda head, text, style: said.append((head, text)))
        notes = Footnotes()
        marks = [notes.mark(reason) for reason in reasons]
        notes.say()
    assert [dict(said).get(mark, mark) for mark in marks] == reasons
    assert len({text for _, text in said}) == len(said)


def test_numbers_have_units_and_nouns():
    assert list(map(microseconds, (8.314, 1250.0, 2.4e6))) == ["8.31 us", "1.25 ms", "2.40 s"]
    assert (count(1, "row"), count(1200, "row")) == ("1 row", "1,200 rows")


def test_operands_that_fit_into_the_cache_of_a_cpu_are_named():
    """16 x 256, 256 x 1024 and 16 x 1024 elements of 4 bytes are 1.08 MiB."""
    small = Problem.gemm("mm", m=16, n=1024, k=256, dtype="fp32")
    hint = gain.cache_hint([(small, CPU, 2)], 2**22)
    assert hint.startswith("its GEMMs move 2.2 MiB in total, which fits in this CPU's cache")
    assert "cold caches" in gain.cache_hint([(small, CPU, 1)], small.bytes)
    h200 = registry.find("NVIDIA H200")
    for gemms, cache in (
        ([(small, CPU, 4)], 2**22), ([(small, CPU, 1)], small.bytes - 1), ([], 2**22),
        ([(small, CPU, 2), (small, h200, 2)], 2**25),
    ):  # fmt: skip
        assert gain.cache_hint(gemms, cache) == ""
