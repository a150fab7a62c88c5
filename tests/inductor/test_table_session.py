"""The session of tables remembers its hits from one compile to the next, as long as they hold."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch._inductor import config as inductor_config

from gemmdb.inductor.decide import uncompiled
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.entry import table_session
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
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


def test_later_compiles_get_the_hits_of_earlier_ones(kit, query, asked):
    session = TableSession(Policy(on_miss="aten"))
    hits = [session.remembering().find(query) for _ in range(3)]
    assert [hit.config for hit in hits] == [kit.CPP] * 3
    assert len(asked) == 1


def test_what_is_asked_otherwise_is_looked_up(query, asked):
    session = TableSession(Policy(on_miss="aten"))
    session.find(query)
    session.find(replace(query, ranges={"m": (2, 64)}))
    session.find(replace(query, computed=True))
    session.find(query, Mode.CERTAIN)
    assert len(asked) == 4
    with inductor_config.patch({"triton.cudagraphs": True}):  # It decides whether the host's time counts.
        session.find(query)
    assert len(asked) == 5


def test_new_rows_change_the_answer(kit, query, table):
    session = TableSession(Policy(on_miss="aten"))
    assert session.find(query).config == kit.CPP
    slower = [replace(one, run=f"later-{i}") for i in range(3) for one in kit.rows(PROBLEM, {kit.CPP: 400.0})]
    writer.record_live(table, slower)
    assert session.find(query).config == ATEN


def test_a_kernel_that_could_not_be_compiled_is_not_remembered(kit, query, monkeypatch):
    monkeypatch.setattr(uncompiled, "_rejected", {})
    session = TableSession(Policy(on_miss="aten"))
    assert session.find(query).config == kit.CPP
    uncompiled.remember(PROBLEM.text, kit.CPP.text, "no compiler")
    assert session.find(query).config != kit.CPP


def test_a_table_that_breaks_is_a_miss(query, table, asked):
    session = TableSession(Policy(on_miss="aten"))
    session.find(query)
    table.write_bytes(b"no table" * 1000)
    assert session.find(query) is None
    assert len(asked) == 2


def test_too_many_hits_are_forgotten(query, asked, monkeypatch):
    monkeypatch.setattr(table_session, "MOST_HITS", 1)
    session, other = TableSession(Policy(on_miss="aten")), replace(query, computed=True)
    for one in (query, query, other, query):
        session.find(one)
    assert len(asked) == 3
