"""One vocabulary: each answer of a lookup or a compile has one of eight outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.devices import H200

from gemmdb import outcome
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.outcome import ONLY_ATEN, Kind, Outcome
from gemmdb.settings import Policy, Settings, shipped_tables
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table

TILE = (
    "triton:tile block_k=64 block_m=64 block_n=64 dequant=cast group_m=8 load=pointer reduce=none split_k=1 stages=3"
    " swap=0 warps=4"
)
ATEN = "aten:default"
HELD = {"pick": TILE, "held_back": {"config": TILE, "gain": 0.004, "needed": 0.01}}


@pytest.mark.parametrize(
    ("rung", "config", "note", "evidence", "words"),
    [
        ("exact", TILE, "", {}, "table"),
        ("forced", TILE, "", {}, "table"),
        ("near", TILE, "", {}, "near"),
        ("epilogue", TILE, "", {}, "near"),
        ("sku", TILE, "", {}, "near"),
        ("model", TILE, "", {}, "near"),
        ("exact", ATEN, "", {"kernels": ["one"]}, "table"),
        ("live", TILE, "", {}, "tuned"),
        ("live", "", "no verdict", {}, "tuned"),
        ("aten", "inductor:search", "", {}, "tuned"),
        ("exact", ATEN, "", {"pick": ATEN}, "ATen (measured best)"),
        ("exact", ATEN, "not tuned: 8 s were over", {"pick": ATEN}, "ATen (measured best)"),
        ("exact", ATEN, "", HELD, "ATen (measured best)"),
        ("live", ATEN, "no verdict", {}, "ATen (measured best)"),
        ("near", ATEN, "", {}, "ATen (predicted best)"),
        ("epilogue", ATEN, "", {"measured_as": "exact"}, "ATen (predicted best)"),
        ("epilogue", ATEN, "", {"reason": "these rows do not tell what fusing saves"}, "ATen (predicted best)"),
        ("sku", ATEN, "", HELD, "ATen (predicted best)"),
        ("near", ATEN, "tile takes 5.0 us here, ATen 4.0", {"confirmed": {}}, "ATen (measured best)"),
        ("near", ATEN, "", {"reason": "none gains enough"}, "ATen (predicted best)"),
        ("near", ATEN, "", {"reason": "no measured or near answer at m=1"}, "ATen (nothing known)"),
        ("near", ATEN, "not confirmed: the budget is exhausted", {}, "ATen (nothing known)"),
        ("model", ATEN, "", {}, "ATen (nothing known)"),
        ("aten", ATEN, "no verdict; near: none", {}, "ATen (nothing known)"),
        ("aten", ATEN, f"{ONLY_ATEN}: it is not constant; none", {}, "ATen (refused: it is not constant)"),
        ("aten", ATEN, ONLY_ATEN, {}, f"ATen (refused: {ONLY_ATEN})"),
        ("exact", ATEN, "M may be 0", {"pick": TILE}, "ATen (refused: M may be 0)"),
        ("exact", ATEN, "not confirmed: busy", {"pick": TILE}, "ATen (refused: not confirmed: busy)"),
        ("exact", ATEN, "", {"pick": TILE, "refused": [{"config": TILE, "reason": "too large"}]},
         "ATen (refused: triton:tile 64x64x64: too large)"),
        ("exact", ATEN, "", {"left_out": {"a config": "M may be 0"}}, "ATen (refused: a config: M may be 0)"),
        ("epilogue", ATEN, "", {"why": "a kernel with sums"}, "ATen (refused: a kernel with sums)"),
        ("uncovered", "", "", {}, "not handled"),
    ],
)  # fmt: skip
def test_words(rung: str, config: str, note: str, evidence: dict[str, Any], words: str) -> None:
    assert str(outcome.of(rung, config, note, evidence)) == words


def test_disturbed_times_say_nothing_for_aten() -> None:
    """Five of five timings were disturbed, and `tune` said that nothing measured is faster."""
    said = outcome.of("exact", ATEN, "", {"pick": ATEN}, disturbed=True)
    assert said == Outcome(Kind.ATEN_UNKNOWN, "it was timed only while other programs kept the machine busy")
    assert outcome.of("exact", TILE, disturbed=True) == Outcome(Kind.TABLE)
    refused = outcome.of("exact", ATEN, "M may be 0", {"pick": TILE}, disturbed=True)
    assert refused.kind is Kind.ATEN_REFUSED


def test_the_reason_stands_beside_the_kind() -> None:
    assert outcome.of("aten", ATEN).reason == "no table answers"
    assert outcome.of("aten", ATEN, "not tuned: too late; near: none").reason == "not tuned: too late"
    assert outcome.of("exact", ATEN, "", HELD).reason == "triton:tile 64x64x64 gains only 0.4% (1.0% is needed)"
    assert outcome.of("exact", TILE) == Outcome(Kind.TABLE)
    held = "triton:tile 64x64x64 is expected to gain only 0.4% (1.0% is needed)"
    assert (outcome.of("sku", ATEN, "", HELD).reason, outcome.of("near", ATEN).reason) == (
        held, "no kernel is expected to be faster",
    )  # fmt: skip
    assert [kind for kind in Kind if kind.aten] == [
        Kind.ATEN_BEST, Kind.ATEN_PREDICTED, Kind.ATEN_UNKNOWN, Kind.ATEN_REFUSED,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    found = Catalog.load(Settings((), tmp_path_factory.mktemp("user") / "user.db", "aten"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def known() -> list[Problem]:
    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        return [problem for problem, _ in table.decided()][:1400:7]


def test_lookups_of_the_shipped_table(catalog: Catalog, known: list[Problem]) -> None:
    found = set()
    for problem in known[::4]:
        for asked in (problem, problem.resized(problem.m + 1, problem.n, problem.k)):
            hit = answer(Query(asked, H200), catalog, Policy())
            one = outcome.of_hit(hit)
            assert one.kind.aten == (hit is None or hit.config.text == ATEN)
            found.add(one.kind)
    assert {Kind.TABLE, Kind.ATEN_BEST} <= found
    far = Problem.gemm("mm", m=7, n=33, k=70001, dtype="fp32")
    assert outcome.of_hit(answer(Query(far, H200), catalog, Policy())).kind is Kind.ATEN_UNKNOWN


def test_a_range_with_an_unmeasured_size_is_not_known(catalog: Catalog, known: list[Problem]) -> None:
    """`outcome` reads the reason of rung `range`."""
    hits = (answer(Query(one, H200, {"k": (1, 1 << 20)}), catalog, Policy()) for one in known if one.op == "mm")
    said = [hit for hit in hits if hit is not None and "no measured or near" in str(hit.evidence.get("reason"))]
    assert said
    assert {outcome.of_hit(hit).kind for hit in said} == {Kind.ATEN_UNKNOWN}
