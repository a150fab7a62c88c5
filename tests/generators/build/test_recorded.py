"""What a build of a workload measures: what lookups will read, and nothing for which ATen is the only kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit.replay import CPP, DEVICE, Replay, ReplayBackend, Watcher

from gemmdb import lookup
from gemmdb.generators.backend import Candidate, Outcome
from gemmdb.generators.build import recorded
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.build.run import Run
from gemmdb.generators.measure.candidates import ONLY_ATEN
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.lowering import NOT_CONSTANT
from gemmdb.outcome import NO_KERNEL, Kind, of_hit
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Status, Times
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry

HINT = Problem.gemm("mm", m=24, n=64, k=64, constant_weight=True)
RANGE = (("m", 2, 512),)
SIZES = [2, 4, 8, 16, 24, 32, 64, 128, 256, 512]


class Formula(Replay):
    """ATen takes 100 us everywhere, and the template takes what `template_us` says of M."""

    template_us = staticmethod(lambda m: 50.0)
    disturbed = False

    def _outcome(self, problem, config):
        us = 100.0 if config == ATEN else self.template_us(problem.m)
        return Outcome(
            config, Status.OK, Times(us, us * 0.99, us * 1.01, 30 + self._more, 100.0), 1e-7, disturbed=self.disturbed
        )


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function: builds a workload of these entries. Returns the report, the sizes M that were measured, and what was
    said."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("GEMMDB_TABLES", raising=False)

    class Two:
        def candidates(self, problem, device, effort):
            why = "" if problem.constant else "the weight must be a constant"
            return [Candidate(ATEN), Candidate(CPP, Rejected(why) if why else None)]

    def run(recorded: list[Entry], template_us=lambda m: 50.0, progress=None, **asked_for):
        shapes, out = tmp_path / "workload.jsonl", tmp_path / "table.db"
        if not shapes.exists():
            entries.append(shapes, recorded)
        formula = type("Formula", (Formula,), {"template_us": staticmethod(template_us)})
        backend = ReplayBackend([], replay=formula, space=Two())
        said = []
        request = BuildRequest(arch="cpu", shapes=str(shapes), out=out, **asked_for)
        report = build(request, progress, backend=backend, say=said.append)
        measured = [problem.m for one in backend.made for problem, _, samples in one.calls if samples == 30]
        return report, sorted(set(measured)), said

    return run


def answer(tmp_path: Path):
    catalog = Catalog.load(tables=[tmp_path / "table.db"])
    return lookup.answer(Query(HINT, DEVICE, {"m": (2, 512)}), catalog, Policy())


def test_all_sizes_of_a_range_are_measured_where_a_kernel_may_serve_it(measure, tmp_path):
    report, sizes, _ = measure([Entry(HINT, ranges=RANGE)])
    hit = answer(tmp_path)
    assert (hit.config, hit.speedup) == (CPP, pytest.approx(2.0, rel=1e-3))
    assert {2, 24, 512} <= set(sizes) <= set(SIZES)
    assert (report.left_out, report.problems, report.measured) == ({}, len(sizes), len(sizes))
    again, nothing, _ = measure([])
    assert (again.measured, nothing) == (0, [])


def test_a_later_round_is_expected_to_take_as_many_times_as_long_as_the_first_one_took(measure):
    """Nothing is compiled here, so all takes a small part of what is expected."""
    watcher = Watcher()
    report, sizes, _ = measure([Entry(HINT, ranges=RANGE)], progress=watcher)
    starts = [state for state in watcher.states if state.phase == "starting"]
    first, second = starts[0], starts[-1]
    assert first.total + second.total == len(sizes)
    in_advance_s = first.eta_s / first.total
    assert second.eta_s / second.total < in_advance_s / 4
    # The report compares with what was expected at first.
    assert report.expected_s == pytest.approx(first.most_s, rel=0.25)


def test_a_build_expects_the_pace_that_it_is_given(measure, tmp_path):
    some = [Entry(HINT.resized(m, 64, 64)) for m in (3, 4, 5)]
    usual, slow = Watcher(), Watcher()
    measure(some, progress=slow, pace=3.0)
    for name in ("workload.jsonl", "table.db"):
        (tmp_path / name).unlink()
    measure(some, progress=usual)
    assert slow.states[0].eta_s == pytest.approx(3 * usual.states[0].eta_s)


def test_a_few_sizes_show_that_no_kernel_can_serve_a_range(measure, tmp_path):
    report, sizes, said = measure([Entry(HINT, ranges=RANGE)], lambda m: 50.0 if m < 100 else 200.0)
    assert answer(tmp_path).config == ATEN
    # `tune` said that nothing is known, and advised to measure what a build no longer measures.
    assert (of_hit(answer(tmp_path)).kind, of_hit(answer(tmp_path)).reason) == (Kind.ATEN_REFUSED, NO_KERNEL)
    assert len(sizes) < len(SIZES) / 2
    assert report.left_out == {NO_KERNEL: 1}
    assert said[-1] == f"1 GEMM is left to ATen: {NO_KERNEL}"


def test_a_range_that_a_busy_machine_timed_is_timed_again(measure, tmp_path, monkeypatch):
    with monkeypatch.context() as busy:
        busy.setattr(Formula, "disturbed", True)
        report, _, _ = measure([Entry(HINT, ranges=RANGE)])
    assert (report.disturbed, report.left_out) == (report.rows, {})
    assert answer(tmp_path).config == ATEN
    again, _, _ = measure([])
    assert again.disturbed == 0
    assert answer(tmp_path).config == CPP


def test_an_open_range_that_takes_too_long_is_not_begun(measure):
    large = HINT.resized(24, 4096, 4096)
    report, sizes, (said,) = measure([Entry(large, ranges=(("m", 2, None),)), Entry(HINT)])
    assert sizes == [24]
    assert "m=65536, which takes more than 10 s to measure" in said
    assert "mark_dynamic" in said
    assert sum(report.left_out.values()) == 1


def test_gemms_for_which_aten_is_the_only_kernel_are_named_and_left_out(measure):
    plain = Problem.gemm("mm", m=7, n=64, k=64, dtype="fp32")
    recorded = [Entry(plain), Entry(plain, ranges=RANGE), Entry(HINT)]
    report, sizes, (said,) = measure(recorded)
    reason = f"{ONLY_ATEN}: {NOT_CONSTANT}"
    assert sizes == [24]
    assert report.left_out == {reason: 2}
    assert said == f"2 GEMMs are left to ATen: {reason}"
    every, sizes, said = measure(recorded, every=True)
    assert (sizes, every.left_out, said) == ([7], {}, [])


def test_a_shapes_file_says_what_is_measured(tmp_path, rows):
    path = tmp_path / "shapes.json"
    path.write_text('[{"op": "mm", "m": [1, 2], "n": 64, "k": 64, "dtype": "fp32", "constant_weight": true}]')
    assert recorded.read(str(path), [], DEVICE) is None
    assert recorded.read("cpu-quick", [], DEVICE) is None
    report = build(BuildRequest(arch="cpu", shapes=str(path), out=tmp_path / "t.db"), backend=ReplayBackend(rows))
    assert (report.measured, report.left_out) == (2, {})


def test_a_range_of_one_size_is_no_range(measure):
    _, sizes, _ = measure([Entry(HINT, ranges=(("m", 24, 24),)), Entry(replace(HINT, n=128))])
    assert sizes == [24]


def test_sizes_that_the_program_used_are_measured_first(measure):
    other = HINT.resized(300, HINT.n, HINT.k)
    asked = [Entry(HINT, ranges=RANGE), Entry(replace(other, n=128), ranges=RANGE)]
    order = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "__init__", lambda self, request, backend, store, jobs, *rest: order.extend(jobs))
        with pytest.raises(AttributeError):
            measure(asked)
    assert [job.problem.m for job in order[:2]] == [24, 300]


def test_further_sizes_are_announced_before_anything_is_measured(measure):
    _, sizes, said = measure([Entry(HINT, ranges=RANGE)])
    assert "more sizes of symbolic ranges follow" in said[0]
    assert int(said[0].split()[2]) < len(sizes)
