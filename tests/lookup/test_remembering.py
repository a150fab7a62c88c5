"""Predictions are remembered while nothing changes that they depend on, and the answers stay the same."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from kit.devices import H200

from gemmdb.errors import TableError
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer, cost_model, explain, from_neighbours, prediction, tree_correction
from gemmdb.lookup.acceptance import ranges
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

POLICIES = [Policy(), Policy(confirm=True), Policy(deny="gemv"), Policy(model=False), Policy(on_miss="aten")]
EXCLUDING = [
    Policy(), Policy(allow="cpp"), Policy(deny="gemv"), Policy(batch_invariant=True), Policy(compile_cost=0),
    Policy(cutlass_size=9),
]  # fmt: skip
"""Policies that exclude different kernels."""


@pytest.fixture
def predictions(monkeypatch):
    """How often a prediction was made."""
    made = []
    made_by = from_neighbours._predict
    monkeypatch.setattr(from_neighbours, "_predict", lambda ask: (made.append(ask.problem.text), made_by(ask))[1])
    prediction.forget()
    return made


def test_a_question_is_answered_once(lab, predictions):
    catalog = lab.catalog([*lab.rows(lab.problem(m=32), {lab.cpp(): 0.5})])
    asked = [answer(lab.query(lab.problem(m=40)), catalog, Policy()) for _ in range(3)]
    assert asked[0] is not None
    assert asked[0] == asked[1] == asked[2]
    assert len(predictions) == 1


def test_a_ranking_of_the_cost_model_is_made_once(monkeypatch):
    """Both passes of a compile ask again for what it does not serve, and so does every graph with the same layer."""
    made, ranked = [], cost_model._ranked
    monkeypatch.setattr(cost_model, "_ranked", lambda ask: (made.append(ask.problem.text), ranked(ask))[1])
    prediction.forget()
    query = Query(Problem.gemm("addmm", m=64, n=4096, k=4096, bias="full"), H200)
    catalog = Catalog.load(Settings.read({}))
    first, again = (explain(query, catalog, policy)[-1] for policy in (Policy(), Policy(model_gain=9)))
    assert made == [query.problem.text]
    assert first.evidence == again.evidence


def test_another_question_has_its_own_answer(lab, predictions):
    catalog = lab.catalog([*lab.rows(lab.problem(m=32), {lab.cpp(): 0.5})])
    query = lab.query(lab.problem(m=40))
    for policy in EXCLUDING:
        answer(query, catalog, policy)
    answer(query, catalog, Policy(), lab.here)
    answer(replace(query, l2="hot"), catalog, Policy())
    answer(replace(query, ranges={"m": (30, 41)}), catalog, Policy())
    before = len(predictions)
    assert before >= len(EXCLUDING) + 3
    first = lab.cpp()
    hit = answer(query, catalog, Policy(), None, lambda config, rows: Rejected("broken") if config == first else None)
    assert hit is None or hit.config != first
    assert len(predictions) > before


def test_policies_that_exclude_the_same_kernels_share_predictions(lab, predictions):
    """A compile looks a GEMM up again for what needs no confirmation."""
    catalog = lab.catalog([*lab.rows(lab.problem(m=32), {lab.cpp(): 0.5})])
    query = lab.query(lab.problem(m=40))
    shared = [
        Policy(),
        Policy(confirm=True),
        Policy(confirm=False, on_miss="aten"),
        Policy(near_loss=0.5, min_gain=0.3),
    ]
    found = [answer(query, catalog, policy) for policy in shared]
    assert len(predictions) == 1
    for policy, hit in zip(shared, found, strict=True):
        prediction.forget()
        assert answer(query, catalog, policy) == hit


def test_predictions_read_nothing_else_of_the_policy():
    """What they read is part of what they are remembered by."""
    read = set()

    class Watched(Policy):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    tables = Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten")).tables
    ask = Ask(Query(Problem.gemm("mm", m=40, n=4104, k=4104), H200), tables, Watched(), None)
    read.clear()
    assert ask.excluding
    kept = {*read}
    for predict in (from_neighbours._predict, tree_correction._predict, cost_model._ranked):
        read.clear()
        assert not isinstance(predict(ask), Rejected)
        assert read <= kept


def test_a_row_that_is_written_changes_the_answer(lab, tmp_path):
    path, slow, fast = tmp_path / "own.db", lab.cpp(), lab.cpp(blocks_m=1)

    def add(rows):
        with Store.open(path) as store:
            store.add(rows)
            store.refresh()

    add(lab.rows(lab.problem(m=32), {slow: 0.9}))
    with Table.open(path) as table:
        catalog = Catalog([])
        catalog.tables = (table,)
        query = lab.query(lab.problem(m=40))
        assert answer(query, catalog, Policy(confirm=True)).config == slow
        add(lab.rows(lab.problem(m=36), {fast: 0.4}))
        assert answer(query, catalog, Policy(confirm=True)).config == fast


def test_the_sizes_of_ranges_are_answered_once_for_all_that_ask(lab, monkeypatch):
    """A report asks twice about a GEMM, a build four times, and ranges of one GEMM share sizes."""
    answers, certain = [], ranges.certain
    monkeypatch.setattr(ranges, "certain", lambda at, found: (answers.append(at.problem.m), certain(at, found))[1])
    sizes = (8, 12, 24, 48, 96)
    catalog = lab.catalog([row for m in sizes for row in lab.rows(lab.problem(m=m), {lab.cpp(): 0.5})])
    query, narrow = (lab.query(lab.problem(m=33), ranges={"m": ends}) for ends in ((8, 96), (15, 96)))
    hit = answer(query, catalog, Policy())
    assert hit.config == lab.cpp()
    assert answers == [16, 32, 33, 64]  # The others are measured.
    assert answer(query, catalog, Policy()) == hit
    assert explain(query, catalog, Policy())[0].hit == hit
    assert ranges.unmeasured(Ask(query, catalog.tables, Policy(), None)) == []
    assert len(answers) == 4
    found = answer(narrow, catalog, Policy())
    assert answers[4:] == [15]
    assert found.evidence["range"] == {"m": [15, 96]}
    prediction.forget()
    assert answer(narrow, catalog, Policy()) == found


def test_a_range_whose_sizes_could_not_be_read_is_asked_for_again(lab, monkeypatch):
    catalog = lab.catalog([row for m in (8, 16, 32) for row in lab.rows(lab.problem(m=m), {lab.cpp(): 0.5})])
    query, verdict = lab.query(lab.problem(m=16), ranges={"m": (8, 32)}), Table.verdict

    def broken(self, problem, *args):
        if problem.m == 32:
            raise TableError("locked by another process")
        return verdict(self, problem, *args)

    def served():
        hit = answer(query, catalog, Policy(near=False))
        return hit is not None and hit.config == lab.cpp()

    monkeypatch.setattr(Table, "verdict", broken)
    assert not served()
    monkeypatch.setattr(Table, "verdict", verdict)
    assert served()


def test_what_a_broken_table_left_out_is_asked_for_again(lab, monkeypatch):
    catalog = lab.catalog([*lab.rows(lab.problem(m=32), {lab.cpp(): 0.5})])
    query, record = lab.query(lab.problem(m=40)), Table.record

    def broken(*args):
        raise TableError("locked by another process")

    monkeypatch.setattr(Table, "record", broken)
    assert answer(query, catalog, Policy()) is None
    monkeypatch.setattr(Table, "record", record)
    assert answer(query, catalog, Policy()) is not None


def test_the_shipped_tables_answer_alike_in_any_order():
    """With nothing remembered, and after other questions."""
    catalog = Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten"))
    draw = Random(3)
    kinds = [Problem.gemm(op, m=1, n=8, k=8, fusion=fusion) for op, fusion in
             (("mm", "none"), ("addmm", "none"), ("mixed_mm", "scale"), ("int_mm", "scale"))]  # fmt: skip
    problems = [one.resized(draw.choice((1, 7, 48, 300)), 8 * draw.randrange(64, 900), 8 * draw.randrange(64, 900))
                for one in kinds for _ in range(4)]  # fmt: skip
    asked = [(problem, policy) for problem in problems for policy in POLICIES[:3]]

    def answers(fresh):
        found = {}
        for problem, policy in asked:
            if fresh:
                prediction.forget()
            found[problem.text, policy] = explain(Query(problem, H200), catalog, policy)
        return found

    alone = answers(True)
    draw.shuffle(asked)
    assert answers(False) == answers(False) == alone
