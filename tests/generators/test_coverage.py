"""Coverage of a workload: hits per rung, misses by their share of the time."""

import json
from dataclasses import replace

import pytest

from gemmdb import outcome
from gemmdb.cost.roofline import roofline_us
from gemmdb.errors import InputError
from gemmdb.generators import coverage as coverages
from gemmdb.generators.coverage import coverage
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.outcome import ONLY_ATEN, Kind, counted
from gemmdb.report.workload import of_workload
from gemmdb.settings import Policy
from gemmdb.workload.entries import Entry, Workload

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)


def test_hits_are_counted_per_rung_and_misses_ranked_by_their_time(lab):
    catalog = lab.catalog([*lab.rows(lab.problem(m=64), {lab.cpp(): 0.5}), *lab.rows(lab.problem(m=900), {})])
    large, small = lab.problem(m=64, n=4096, k=4096), lab.problem(m=64, n=512, k=512)
    workload = Workload(
        (
            Entry(lab.problem(m=64), 2, 20, lab.cpu.text),
            Entry(lab.problem(m=900), 1, 10, lab.cpu.text),
            Entry(lab.problem(m=70), 1, 10, lab.cpu.text),
            Entry(small, 1, 10, lab.cpu.text),
            Entry(large, 1, 10, lab.cpu.text),
            Entry(lab.problem(m=64), 1, 0, GPU.text),
        ),
        {"bmm": (3, 30)},
    )
    found = coverage(workload, catalog, Policy(unverified_gain=0.02))
    exact, near = found.hits["exact"], found.hits["near"]
    assert (exact.problems, exact.count, exact.calls, exact.aten) == (2, 3, 30, 1)
    assert (near.problems, near.count, near.calls, near.aten) == (1, 1, 10, 0)
    assert [miss.problem for miss in found.misses] == [large.text, small.text, lab.problem(m=64).text]
    assert [miss.device for miss in found.misses] == ["Some CPU", "Some CPU", "Some GPU"]
    assert found.misses[0].share > found.misses[1].share > found.misses[2].share > 0
    assert found.hit_share + sum(miss.share for miss in found.misses) == pytest.approx(1.0)
    assert found.uncovered == {"bmm": (3, 30)}
    document = json.loads(json.dumps(found.as_dict()))
    assert document["problems"] == 6
    assert document["uncovered"] == {"bmm": {"count": 3, "calls": 30}}
    assert document["misses"][0]["problem"] == large.text


def test_a_gemm_that_no_table_answers_takes_the_time_that_aten_probably_takes(lab):
    """Small GEMMs on a GPU take several times their roofline: beside a measured one, they counted for little, and the
    gain of all looked like the gain of that one."""
    small = Problem.gemm("mm", m=64, n=128, k=128, dtype="fp32")
    workload = Workload((Entry(small, 1, 10, GPU.text),), {})
    (miss,) = coverage(workload, lab.catalog(), Policy()).misses
    (product,) = of_workload(workload, "w", lab.catalog()).products
    assert miss.time_us == product.time_us == product.saving.aten_us > 4 * roofline_us(small, GPU)


def test_another_device_than_the_recorded_one_is_asked(lab):
    catalog = lab.catalog([*lab.rows(lab.problem(m=64), {lab.cpp(): 0.5})])
    entries = Entry(lab.problem(m=64), 1, 10, GPU.text), Entry(lab.problem(m=64), 2, 20, lab.cpu.text)
    assert len(coverage(Workload(entries, {}), catalog, Policy()).misses) == 1
    found = coverage(Workload(entries, {}), catalog, Policy(), lab.cpu)
    assert (found.problems, found.misses) == (1, ())
    assert (found.hits["exact"].count, found.hits["exact"].calls) == (3, 30)


@pytest.mark.parametrize(("called", "serves"), [((64, 128), Kind.ATEN_BEST), ((16, 64), Kind.TABLE), ((), Kind.TABLE)])
def test_a_split_range_counts_as_what_serves_its_calls(lab, monkeypatch, called, serves):
    """If the sizes of the calls are unknown, it has the outcome of a lookup and a compile."""
    branches, kernels = ((32, lab.cpp()), (None, ATEN)), {"kernels": [{"m": [16]}, {"m": [64, 128]}]}
    hit = Hit("exact", ATEN, 100.0, 1.0, "a.db", kernels, branches)
    monkeypatch.setattr(coverages, "answer", lambda *args: hit)
    seen = tuple(((("m", m),), 10) for m in called)
    entry = Entry(lab.problem(m=64), 1, 10 * len(called), lab.cpu.text, (("m", 2, 128),), seen=seen)
    found = coverage(Workload((entry,), {}), lab.catalog(), Policy())
    assert list(found.kinds) == [serves]
    assert (found.hits["exact"].aten, found.kernel_share > 0) == (serves.aten, not serves.aten)
    assert outcome.of_hit(hit).kind is (serves if not called else Kind.TABLE)


def test_hits_that_aten_serves_are_split_by_outcome(lab, monkeypatch):
    """Measured best needs nothing, a refusal has its reason, and of the rest nothing is known: they were one number."""
    refused = {"left_out": {lab.cpp().text: "size m may be zero"}}
    little = {"held_back": {"config": lab.cpp().text, "gain": 0.01, "needed": 0.02}}
    hits = [
        Hit("exact", lab.cpp(), 50.0, 2.0, "a.db"), Hit("exact", ATEN, 100.0, 1.0, "a.db"),
        Hit("exact", ATEN, 100.0, 1.0, "a.db", little), Hit("exact", ATEN, 100.0, 1.0, "a.db", refused),
        Hit("model", ATEN, 100.0, 1.0, "a.db"),
        Hit("exact", ATEN, 9.0, 1.0, "a.db", {"kernels": []}, ((32, lab.cpp()),)),
    ]  # fmt: skip
    monkeypatch.setattr(coverages, "answer", lambda query, *_: hits[query.problem.m - 1])
    entries = tuple(Entry(lab.problem(m=m), 1, 10, lab.cpu.text) for m in range(1, 7))
    found = coverage(Workload(entries, {}), lab.catalog(), Policy())
    split = {str(one): tally.problems for one, tally in found.hits["exact"].outcomes.items()}
    assert split == {
        "table": 2, "ATen (measured best)": 2, "ATen (refused: cpp:packed_gemm: size m may be zero)": 1,
    }  # fmt: skip
    assert {str(one): of.problems for one, of in found.hits["model"].outcomes.items()} == {"ATen (nothing known)": 1}
    for hit in found.hits.values():
        assert sum(of.share for of in hit.outcomes.values()) == pytest.approx(hit.share)
        assert sum(of.problems for one, of in hit.outcomes.items() if one.kind.aten) == hit.aten
    assert counted(found.kinds) == "6 GEMMs: 2 table, 2 ATen (measured best), 1 ATen (nothing known), 1 ATen (refused)"
    (known, *_) = found.as_dict()["hits"]["model"]["outcomes"]
    assert known == {"outcome": "ATen (nothing known)", "why": "", "problems": 1, "count": 1, "calls": 10,
                     "share": pytest.approx(100 / 459)}  # fmt: skip


def test_calls_weigh_more_than_occurrences(lab):
    often, rarely = lab.problem(m=64, n=512, k=512), lab.problem(m=64, n=520, k=520)
    workload = Workload((Entry(rarely, 5, 5, lab.cpu.text), Entry(often, 1, 1000, lab.cpu.text)), {})
    assert [miss.problem for miss in coverage(workload, lab.catalog(), Policy()).misses] == [often.text, rarely.text]


def test_a_symbolic_size_is_asked_as_a_range(lab):
    catalog = lab.catalog([*lab.rows(lab.problem(m=64), {lab.cpp(): 0.5})])
    dynamic = Entry(lab.problem(m=64), 1, 1, lab.cpu.text, (("m", 2, None),))
    assert coverage(Workload((dynamic,), {}), catalog, Policy()).hits["exact"].aten == 1
    missing = Entry(lab.problem(m=9000), 1, 1, lab.cpu.text, (("m", 2, None),))
    assert coverage(Workload((missing,), {}), catalog, Policy()).misses[0].ranges == {"m": (2, None)}


def test_a_miss_that_no_build_can_change_has_its_reason(lab):
    """What a build would leave out: a range that holds a size too long to measure, and GEMMs that only ATen has."""
    large, plain = lab.problem(m=24, n=4096, k=4096), replace(lab.problem(m=7), constant=False)
    moving = (("m", 2, None),)
    entries = (
        Entry(large, 1, 9, lab.cpu.text, moving), Entry(large, 1, 8, lab.cpu.text, (("m", 2, 64),)),
        Entry(large, 1, 7, lab.cpu.text), Entry(plain, 1, 1, lab.cpu.text),
        Entry(large, 1, 6, GPU.text, moving),
    )  # fmt: skip
    found = coverage(Workload(entries, {}), lab.catalog(), Policy()).misses
    reasons = {miss.calls: miss.reason for miss in found}
    assert "m=65536, which takes more than 10 s to measure" in reasons[9]
    assert reasons[9].startswith("its range has no upper bound and reaches")
    assert "mark_dynamic" in reasons[9]
    assert reasons[1].startswith("ATen is the only kernel for it: ")
    assert [reasons[calls] for calls in (8, 7, 6)] == ["", "", ""]


def test_the_gain_of_a_range_has_an_interval(lab):
    sizes = (2, 4, 8, 16, 32, 64)
    catalog = lab.catalog([row for m in sizes for row in lab.rows(lab.problem(m=m), {lab.cpp(): 0.5})])
    dynamic = Entry(lab.problem(m=64), 1, 1, lab.cpu.text, (("m", 2, 64),))
    gain = coverage(Workload((dynamic,), {}), catalog, Policy()).gain
    assert 1 < gain.low < gain.value == pytest.approx(2.0, rel=1e-3)
    assert gain.value < gain.high


def test_an_empty_workload_has_no_shares(lab):
    found = coverage(Workload((), {}), lab.catalog(), Policy())
    assert (found.problems, found.hits, found.misses, found.hit_share) == (0, {}, (), 0)


def test_an_unreadable_device_is_bad_input(lab):
    with pytest.raises(InputError, match="device"):
        coverage(Workload((Entry(lab.problem(), device="a toaster"),), {}), lab.catalog(), Policy())


def test_a_range_with_size_zero_that_no_kernel_can_serve_is_not_built(lab):
    """As for rows that data select: the C++ template divides by their number."""
    entry = Entry(lab.problem(m=10), 1, 1, lab.cpu.text, (("m", 0, 10),))
    (miss,) = coverage(Workload((entry,), {}), lab.catalog(), Policy()).misses
    assert miss.reason.startswith(ONLY_ATEN)
    assert "may be zero" in miss.reason


def test_a_range_is_weighted_by_the_sizes_of_its_calls(lab):
    """Of a decoder, 2.98x was expected: the gain at the size of the first call."""
    rows = {lab.problem(m=m): {lab.cpp(): 0.5 if m <= 16 else 0.97} for m in (2, 4, 8, 16, 32, 64)}
    catalog = lab.catalog(lab.rows_of(rows))
    unseen = Entry(lab.problem(m=8), 1, 10, lab.cpu.text, (("m", 2, 64),))
    large = replace(unseen, seen=(((("m", 64),), 10),))
    known, unknown = (coverage(Workload((one,), {}), catalog, Policy()).gain for one in (large, unseen))
    assert known.value == pytest.approx(1 / 0.97, rel=0.01)
    assert (known.ranged, unknown.ranged) == (False, True)
    assert unknown.value == pytest.approx(2.0, rel=0.01)
    assert (unknown.low, unknown.high) == pytest.approx((1 / 0.97, 2.0), rel=0.05)
    (product,) = of_workload(Workload((large,), {}), "w", catalog).products
    assert product.gain == known.value


def test_a_product_of_two_activations_is_not_told_to_freeze(lab):
    """The decoder was frozen already: its GEMMs of two activations have no weight that can be a constant."""
    plain = replace(lab.problem(m=8), constant=False)
    moving = Entry(plain, 1, 9, lab.cpu.text, (("m", 2, 128), ("n", 2, 128)))
    computed = Entry(replace(plain, m=9), 1, 9, lab.cpu.text, computed=True)
    weight = Entry(replace(plain, m=10), 1, 9, lab.cpu.text, (("m", 2, 128),))
    found = coverage(Workload((moving, computed, weight), {}), lab.catalog(), Policy()).misses
    reasons = {Problem.parse(miss.problem).m: miss.reason for miss in found}
    assert all(reason.startswith(ONLY_ATEN) for reason in reasons.values())
    assert ["freezing" in reasons[m] for m in (8, 9, 10)] == [False, False, True]
    assert all("inputs or computed" in reasons[m] for m in (8, 9))
