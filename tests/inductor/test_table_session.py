"""What the compiles of one session share: tables, and what was found in them."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gemmdb.inductor.entry import table_session
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.acceptance import ranges
from gemmdb.settings import Policy
from gemmdb.table import writer

PROBLEM = Problem.gemm("mm", m=8, n=48, k=64, dtype="fp32", constant_weight=True)


@pytest.fixture
def table(kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's table, with a kernel for PROBLEM."""
    path = tmp_path / "user.db"
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(path))
    writer.record_live(path, kit.rows(PROBLEM, {kit.CPP: 50.0}))
    return path


@pytest.fixture
def query(kit, table: Path) -> Query:
    return Query(PROBLEM, kit.rows(PROBLEM, {kit.CPP: 50.0})[0].device)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that were looked up in the tables."""
    found: list[str] = []
    original = table_session.answer

    def answer(query, *args):
        found.append(query.problem.text)
        return original(query, *args)

    monkeypatch.setattr(table_session, "answer", answer)
    return found


def test_later_compiles_read_the_same_tables_also_where_the_first_one_made_the_users(kit, tmp_path, monkeypatch):
    """Each compile has a copy of the session. One that opened the tables itself would look up everything again."""
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    session = TableSession(Policy(on_miss="aten"))
    before = session.remembering().catalog()
    writer.record_live(tmp_path / "user.db", kit.rows(PROBLEM, {kit.CPP: 50.0}))
    later = [session.remembering().catalog() for _ in range(2)]
    assert later[0] is later[1] is session.catalog()
    assert len(later[0].tables) == len(before.tables) + 1


def test_a_range_is_computed_once_for_all_compiles(query, monkeypatch):
    computed = []
    original = ranges._ranged
    monkeypatch.setattr(ranges, "_ranged", lambda *args: computed.append(args) or original(*args))
    session, ranged = TableSession(Policy(on_miss="aten")), replace(query, ranges={"m": (2, 64)})
    for _ in range(3):
        session.remembering().find(ranged)
    assert len(computed) == 1


def test_a_compile_looks_up_a_gemm_of_two_activations_beside_one_of_a_weight(query, asked):
    one = TableSession(Policy(on_miss="aten")).remembering()
    for problem in (query, query, replace(query, computed=True)):
        one.find(problem)
    assert len(asked) == 2


def test_new_rows_change_the_answer(kit, query, table):
    session = TableSession(Policy(on_miss="aten"))
    assert session.find(query).config == kit.CPP
    slower = [replace(one, run=f"later-{i}") for i in range(3) for one in kit.rows(PROBLEM, {kit.CPP: 400.0})]
    writer.record_live(table, slower)
    assert session.find(query).config == ATEN
