"""What a lookup says outside a compile is what a compile decides, for the shipped tables, with and without ranges."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from kit.sessions import FakeSession
from kit.tables import Kit

from gemmdb.cli.app import run
from gemmdb.cost.roofline import roofline_us
from gemmdb.generators.coverage import look_up
from gemmdb.inductor.benchmark import algorithm_jobs
from gemmdb.inductor.benchmark.confirm import ConfirmJob
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.inductor.observe.stats import reset_stats, stats
from gemmdb.inductor.observe.summary import of_events
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup import explain
from gemmdb.outcome import DISTURBED, NO_KERNEL, Kind, left_out, of, refusal
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Measurement, marks
from gemmdb.workload.entries import Entry

NOWHERE = Settings((), Path("/nonexistent/user.db"), "aten")
POLICY = Policy(on_miss="aten", confirm=False)
LOWS, HIGHS = (0, 1, 2), (1, 64, 1000, 2**20, None)


def queries(number: int, seed: int) -> Iterator[Query]:
    """Problems of the shipped tables at other sizes, half of them with ranges: some hold 0, and some have no end."""
    draw = random.Random(seed)
    with_rows = [sorted(table.pairs(), key=lambda pair: (pair[0].text, pair[1].text))
                 for table in Catalog.load(NOWHERE).tables]  # fmt: skip
    for _ in range(number):
        problem, device = draw.choice(draw.choice(with_rows))
        yield Query(
            _resized(problem, draw), Device.parse(device.text), _ranges(problem, draw) if draw.random() < 0.5 else {}
        )


def _resized(problem: Problem, draw: random.Random) -> Problem:
    m, n, k = problem.m, problem.n, problem.k
    return (
        problem
        if problem.spec.grouped
        else problem.resized(draw.choice((m, m + 3, 2 * m)), draw.choice((n, n + 64)), k)
    )


def _ranges(problem: Problem, draw: random.Random) -> dict[str, tuple[int, int | None]]:
    found: dict[str, tuple[int, int | None]] = {}
    for name in draw.choice(("m", "m", "m", "n", "k", "mk")):
        more = draw.choice(HIGHS)
        found[name] = draw.choice(LOWS), None if more is None else 2 * getattr(problem, name) + more
    return found


def entry(query: Query) -> Entry:
    ranges = tuple((name, low, high) for name, (low, high) in query.ranges.items())
    return Entry(query.problem, 1, 1, query.device.text, ranges=ranges)


def answers(query: Query, catalog: Catalog, session: TableSession, policy: Policy) -> tuple[Any, Any]:
    """What is said outside of a compile, and what a compile decides."""
    found = look_up(entry(query), catalog, policy)
    hit, decision = found.hit, deciding.decide(session, query)
    offline = (
        ("aten", "aten:default", (), None) if hit is None else (hit.rung, hit.config.text, hit.branches, hit.speedup)
    )
    assert decision.config is not None
    event = decision.event
    compiled = event.rung, decision.config.text, decision.branches, event.speedup
    if hit is not None:
        told = refusal if hit.config == ATEN and not hit.branches else left_out
        assert event.note == told(hit.evidence)
        served = of(event.rung, event.config, event.note, event.evidence).kind
        assert served == of(*offline[:2], "", hit.evidence).kind
        assert (found.outcome, found.hit.rung) == (event.outcome, event.rung)
    steps = explain(query, catalog, policy, installed(query.device.kind))
    first = next((step.hit for step in steps if step.hit), None)
    assert (first and (first.rung, first.config, first.branches)) == (hit and (hit.rung, hit.config, hit.branches))
    return offline, compiled


def check(number: int, seed: int, captured: bool | None = None) -> None:
    policy = replace(POLICY, captured=captured)
    catalog, session = Catalog.load(NOWHERE), TableSession(policy, settings=NOWHERE)
    seen: Counter[str] = Counter()
    for query in queries(number, seed):
        offline, compiled = answers(query, catalog, session, policy)
        assert offline == compiled, query
        seen["kernels"] += offline[1] != "aten:default" or bool(offline[2])
        seen["ranges"] += bool(query.ranges)
    assert seen["kernels"] > number / 20
    assert seen["ranges"] > number / 4


@pytest.mark.parametrize("captured", [None, True])
def test_offline_answers_are_those_of_a_compile(captured: bool | None) -> None:
    check(100, 1, captured)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_offline_answers_are_those_of_a_compile_for_many_problems(seed: int) -> None:
    check(1000, seed)


def test_a_time_that_was_taken_on_a_busy_machine_is_no_expectation(tmp_path: Path) -> None:
    kit = Kit()
    path = kit.write(tmp_path / "busy.db", [replace(kit.row(), detail=marks(False, True))])
    query = Query(kit.problem, kit.device)
    session = TableSession(POLICY, [path], NOWHERE)
    event = deciding.decide(session, query).event
    assert (event.rung, event.config, *event.shown) == ("exact", ATEN.text, None, None)
    found = look_up(entry(query), session.catalog(), POLICY)
    assert found.disturbed
    assert found.time_us == roofline_us(query.problem, query.device)


def test_the_gain_of_a_kernel_holds_where_aten_was_timed_on_a_busy_machine(tmp_path: Path) -> None:
    kit = Kit()
    rows = [replace(kit.row(), detail=marks(False, True)), kit.row(kit.configs[1], 5.0)]
    path = kit.write(tmp_path / "busy.db", rows)
    query = Query(kit.problem, kit.device)
    decision = deciding.decide(TableSession(POLICY, [path], NOWHERE), query)
    event = decision.event
    assert (event.config, *event.shown) == (kit.configs[1].text, None, 2.0)
    # What it saves decides whether a trial pays, and whether another kernel replaces it.
    piece = SimpleNamespace(fakes=(), warm=(), kinds=(), outputs=0)
    job = ConfirmJob(cast(Any, piece), None, decision)
    job.add(decision)
    assert job.saved_us == algorithm_jobs.saved_us(event) == 5.0
    JOURNAL.add(json.dumps([asdict(event)]))
    (product,) = stats()["products"]
    reset_stats()
    assert (product["expected_us"], product["speedup_vs_aten"]) == (None, 2.0)
    assert of_events([event], 1).total.timed == 0
    refused = event.refused("its calls take too long")
    assert (refused.config, *refused.shown) == (ATEN.text, None, None)


def test_a_refusal_stands_in_the_note_and_in_the_summary(tmp_path: Path) -> None:
    kit = Kit()
    faster = kit.configs[1]
    path = kit.write(tmp_path / "a.db", [kit.row(), kit.row(faster, 2.0)])
    session = TableSession(POLICY, [path], NOWHERE)
    query = Query(kit.problem, kit.device)
    hit = session.find(query)
    assert hit is not None
    refused = replace(hit.with_aten(), evidence={**hit.evidence, "left_out": {faster.text: "too large"}})
    decision = deciding.decide(FakeSession(lambda query: refused), query)
    assert decision.event.note.endswith(": too large")
    assert "too large" in str(of_events([decision.event], 1))


SMALL = Problem.gemm("mm", m=4, n=512, k=512, dtype="bf16", constant_weight=True)
RANGED = Query(SMALL, Kit.device, {"m": (2, 64)})
SIZES = (2, 4, 8, 16, 32, 64)


def ranged(sizes: Iterable[int], us: Callable[[int], float], busy: bool = False) -> list[Measurement]:
    """Rows of a kernel at some sizes, where ATen takes 10 microseconds."""
    kit, detail = Kit(), marks(False, busy)
    problems = [SMALL.resized(m, 512, 512) for m in sizes]
    given = {"toolchain": installed("cpu") or kit.new, "detail": detail}
    return [kit.row(problem=one, **given) for one in problems] + [
        kit.row(kit.configs[1], us(one.m), problem=one, **given) for one in problems
    ]


@pytest.mark.parametrize(("rows", "kind", "why", "reason"), [
    (ranged(SIZES, lambda m: 5.0 if m < 32 else 16.0), Kind.ATEN_REFUSED, NO_KERNEL, f"{NO_KERNEL}: the least worst"),
    (ranged(SIZES, lambda m: 12.0 + m), Kind.ATEN_BEST, f"{NO_KERNEL}: no config", f"{NO_KERNEL}: no config gains"),
    (ranged([4], lambda m: 5.0, True), Kind.ATEN_UNKNOWN, DISTURBED, f"{DISTURBED}, at m=4"),
    (ranged(SIZES, lambda m: 5.0, True), Kind.ATEN_UNKNOWN, DISTURBED, f"{DISTURBED}, at m=2, m=4, m=8, m=16, m=32"),
    (ranged([4], lambda m: 5.0), Kind.ATEN_UNKNOWN, "no measured or near answer at m=2", "no measured or near answer"),
])  # fmt: skip
def test_all_say_why_aten_serves_a_range(
    rows: list[Measurement], kind: Kind, why: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`lookup` and `stats()` named rung `exact` and `explain` rung `range`; of sizes that were never measured they said
    that no kernel is good at them, and of disturbed times that ATen is 1.000x ATen."""
    path = Kit().write(tmp_path / "t.db", rows)
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    session = TableSession(POLICY, [path], NOWHERE)
    event = deciding.decide(session, RANGED).event
    found = look_up(entry(RANGED), session.catalog(), POLICY)
    assert (event.rung, event.outcome.kind, found.outcome.kind) == ("exact", kind, kind)
    assert event.outcome.reason.startswith(why)
    assert found.outcome == event.outcome
    assert event.evidence["reason"].startswith(reason)
    asked = [f"{SMALL.text} (m 2..64)", "--device", Kit.device.sku]
    for command in ("lookup", "explain"):
        run([command, *asked, "--json"])
        said = json.loads(capsys.readouterr().out)
        assert (said["outcome"], said["why"]) == (event.outcome.kind.value, event.outcome.reason)
        assert said["rung" if command == "lookup" else "answer"] == "exact"
    run(["explain", *asked])
    text = capsys.readouterr().out
    assert f"range: ATen for the range: {reason}" in " ".join(text.split())
    assert f"answer: {event.outcome}, from rung exact for the range" in " ".join(text.split())
    assert "aten:default is 1.000x ATen" not in text or kind is Kind.ATEN_BEST
