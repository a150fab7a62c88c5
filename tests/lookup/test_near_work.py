"""How much work one answer of rung `near` takes, counted: times depend on what else the machine does."""

import random
import sys
from collections import Counter

import pytest

from gemmdb.cost.terms import Estimator
from gemmdb.generators import shapes
from gemmdb.kernels.config import Config
from gemmdb.kernels.trees import Trees
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import prediction, tree_correction
from gemmdb.lookup.acceptance import by_rows
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.acceptance.size import MOST_ROWS
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.tree_correction import ADDED_CONFIGS, CORRECTED_CONFIGS
from gemmdb.settings import Policy, shipped_tables
from gemmdb.table.reader import Table

ASKED = 60
SHIPPED = shipped_tables() / "sm90-nvidia-h200.db"


@pytest.fixture(scope="module")
def asked():
    """Asks a new question about each of ASKED held-out problems, whose records are in memory. They are of the
    preset, so that a table with more problems is asked the same questions."""
    with Table.open(SHIPPED, immutable=True) as table:
        (device,) = table.devices()
        decided = {p for p, _ in table.decided()}
        preset = {p for p in shapes.load("h200", "cuda") if not p.spec.batched}
        found = sorted(decided & preset, key=lambda p: p.text)
        problems = random.Random(0).sample(found, ASKED)

        def ask(problem: Problem) -> Ask:
            return Ask(Query(problem, device), (table,), Policy(), None)

        def again() -> None:
            prediction.forget()
            for problem in problems:
                near(ask(problem))

        again()
        yield again


@pytest.fixture
def counted(monkeypatch):
    """How often each of some functions was called."""
    calls: Counter[str] = Counter()
    for owner, name in (
        (Trees, "total"), (Estimator, "of_counts"), (Table, "record"), (Table, "barred"), (Config, "rejection"),
    ):  # fmt: skip
        real = getattr(owner, name)

        def call(*args, _real=real, _name=name):
            calls[_name] += 1
            return _real(*args)

        monkeypatch.setattr(owner, name, call)
    return calls


def test_an_answer_from_records_in_memory_takes_few_predictions(asked, counted):
    asked()
    assert counted["record"] == 0
    assert counted["barred"] == 0
    assert 0 < counted["total"] <= (CORRECTED_CONFIGS + ADDED_CONFIGS + 1) * ASKED
    assert 0 < counted["total"] <= 5 * ASKED
    assert 0 < counted["of_counts"] <= 23 * ASKED
    assert 0 < counted["rejection"] <= 12 * ASKED


def test_an_answer_takes_a_bounded_number_of_calls(asked):
    """2,223 calls in Python 3.11. One call takes about 0.25 us."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        asked()
    finally:
        sys.setprofile(before)
    assert calls <= 2_250 * ASKED


def test_sizes_far_above_what_runs_take_one_prediction_each(monkeypatch):
    """Nothing is confirmed there, and what cannot share a node is taken out of the prediction."""
    predicted: Counter[int] = Counter()
    real = tree_correction.corrected

    def count(ask, *args):
        predicted[ask.problem.m] += 1
        return real(ask, *args)

    monkeypatch.setattr(tree_correction, "corrected", count)
    prediction.forget()
    with Table.open(SHIPPED, immutable=True) as table:
        (device,) = table.devices()
        problem = Problem.gemm("mm", m=64, n=6144, k=4096)
        step = by_rows.by_rows(Ask(Query(problem, device, {"m": (2, None)}), (table,), Policy(on_miss="aten"), None))
    assert step.hit is not None
    far = {m: count for m, count in predicted.items() if m > MOST_ROWS}
    assert far
    assert set(far.values()) == {1}
