"""The trees on top of the cost model: their file, what they predict, and where they have a say."""

import json
import math
import time
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from gemmdb.cost import trees as model_trees
from gemmdb.cost.features import FEATURES, TREE_OPS, of_problem, of_tile
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.trees import DATA, Corrected, shipped
from gemmdb.cost.work import Setting, work
from gemmdb.devices import registry
from gemmdb.kernels.trees import MAX_NODES, WORD, parse
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.ranking import TREE_CANDIDATES, allowed, rank
from gemmdb.settings import Policy

H200, A100, H100 = (registry.find(name) for name in ("NVIDIA H200", "sm80", "NVIDIA H100 80GB HBM3"))
PROBLEM = Problem.gemm("mm", m=64, n=4096, k=14336)
PROBLEMS = [Problem.gemm(op, m=m, n=4096, k=4096) for op in ("mm", "addmm", "int_mm", "mixed_mm") for m in (1, 32, 512)]
APART = [
    *(Problem.gemm("bmm", batch=64, m=m, n=128, k=1024) for m in (1, 32, 512)),
    *(Problem.gemm("scaled_mm", m=m, n=4096, k=4096, scales=way) for m in (1, 32) for way in ("row", "tensor")),
]
"""Problems of the ops with trees of their own."""


def ask(problem, device=H200, **policy):
    return Ask(Query(problem, device), (), Policy(**policy), None)


def document(**other):
    """Two trees: by the second feature, and by the third where the second is large; and a leaf."""
    row = [0.0] * len(FEATURES)
    return {
        "format": 1, "features": list(FEATURES), "base": 0.5, "unit": 0.25,
        "checks": [[row, 0.75]], "cuts": [[1, 2.0], [2, 8.5]], "trees": [[5, -7, 9, 2, 0], [-1]],
    } | other  # fmt: skip


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The path of another file in the place of the package's."""
    monkeypatch.setattr(model_trees, "DATA", tmp_path / "trees.json")
    shipped.cache_clear()
    yield tmp_path / "trees.json"
    shipped.cache_clear()


@pytest.mark.parametrize(("m", "n", "log"), [(2.0, 99.0, 0.75), (2.1, 8.5, -0.75), (9.0, 8.6, 1.25)])
def test_values_go_down_the_trees(m, n, log):
    values = [0.0] * len(FEATURES)
    values[1:3] = m, n
    assert parse(document(), FEATURES).log(values) == log


def walked(found, values):
    """What a document predicts, node by node."""
    total = found["base"]
    for codes in found["trees"]:
        stack = []
        for code in codes:
            if code & 1:
                stack.append((code >> 1) * found["unit"])
            else:
                (feature, threshold), high, low = found["cuts"][code >> 1], stack.pop(), stack.pop()
                stack.append(high if values[feature] > threshold else low)
        total += stack.pop()
    return total


def test_all_leaves_are_found_where_trees_are_as_large_as_they_may_be():
    size = WORD
    cuts = [[0, float(place)] for place in range(size - 1)]
    # Leaves in order, each cut between the one before and the next: the tree leans to the left in one and to the right
    # in the other.
    left = [1, *(code for place in range(size - 1) for code in (2 * place + 3, 2 * place))]
    right = [*(2 * place + 1 for place in range(size)), *(2 * place for place in reversed(range(size - 1)))]
    found = document(cuts=cuts, trees=[left, right, left])
    trees = parse(found, FEATURES)
    for place in range(size):
        values = [place - 0.5] + [0.0] * (len(FEATURES) - 1)
        assert trees.log(values) == walked(found, values) == 0.5 + 3 * place * 0.25


def test_the_shipped_trees_come_to_what_walking_them_does():
    found, trees, random = json.loads(DATA.read_bytes()), shipped(), Random(0)
    rows = [row for row, _ in trees.checks]
    mixed = [[random.choice(column) for column in zip(*rows, strict=True)] for _ in range(20)]
    for row in (*rows, *mixed, [-1e9] * len(FEATURES), [1e9] * len(FEATURES)):
        assert trees.log(row) == pytest.approx(walked(found, row), rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.op}-{problem.m}")
def test_what_a_problem_shares_is_masked_once(problem):
    here = Setting.of(problem, machine(H200))
    corrected = Corrected.of(here)
    for one in allowed(ask(problem), here):
        row = (*of_problem(here), *of_tile(here, one.tile, work(here, one.tile), one.us))
        assert corrected.us(one.tile) == one.us * math.exp(shipped().log(row))


@pytest.mark.parametrize(
    "other",
    [
        {"format": 2},
        {"features": list(FEATURES[:-1])},
        {"features": None},
        {"base": float("nan")},
        {"base": "0.5"},
        {"unit": True},
        {"unit": 10**400},
        {"cuts": [[1, 2.0], [len(FEATURES), 1.0]]},
        {"cuts": [[1, 2.0], [-1, 1.0]]},
        {"cuts": [[1, 2.0], [1.0, 1.0]]},
        {"cuts": [[1, 2.0], [1, float("inf")]]},
        {"cuts": [[1, 2.0]]},
        {"trees": [[]]},
        {"trees": [[1, 3]]},
        {"trees": [[0]]},
        {"trees": [[1, 0]]},
        {"trees": [[1, 3, 4]]},
        {"trees": [[1, 3, -2]]},
        {"trees": [[1, 3, "0"]]},
        {"trees": [[True]]},
        {"trees": [[2**80 + 1]]},
        {"trees": [7]},
        {"trees": {"0": [1]}},
        {"trees": [[1] * (MAX_NODES + 1)]},
        {"trees": [[1, *[1, 0] * WORD]]},
        {"checks": [[[0.0], 1.0]]},
        {"checks": [1]},
    ],
    ids=lambda other: str(other)[:40],
)
def test_a_damaged_document_is_refused_in_one_short_line(other):
    with pytest.raises(ValueError, match=r"^.{5,100}$"):
        parse(document(**other), FEATURES)
    with pytest.raises(ValueError, match="not trees of format"):
        parse([document()], FEATURES)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}', b"9" * 5000])
def test_without_a_sound_file_the_model_answers_alone_and_says_so(file, caplog, content):
    if content is not None:
        file.write_bytes(content)
    found = rank(ask(PROBLEM))
    assert not found.corrected
    assert [one.us for one in found.best] == [one.us for one in islice(allowed(ask(PROBLEM), setting()), 4)]
    assert "goes without its trees" in caplog.text
    rank(ask(PROBLEM))
    assert len(caplog.records) == 1


def setting(device=H200):
    return Setting.of(PROBLEM, machine(device))


@pytest.mark.parametrize("op", ["", *TREE_OPS])
def test_the_shipped_trees_predict_what_was_fitted(op):
    trees = shipped(op)
    assert len(trees.checks) >= 8
    for row, expected in trees.checks:
        assert trees.log(row) == pytest.approx(expected, abs=3e-3)
    assert len({expected for _, expected in trees.checks}) > 4


@pytest.mark.timed
@pytest.mark.parametrize("name", ["trees.json", *(f"trees-{op}.json" for op in TREE_OPS)])
def test_the_shipped_files_are_small_and_quick_to_read(name):
    path = DATA.with_name(name)
    assert path.stat().st_size < 2**20
    content = json.loads(path.read_bytes())

    def seconds():
        begin = time.process_time()
        parse(content, FEATURES)
        return time.process_time() - begin

    assert min(seconds() for _ in range(5)) < 0.05


@pytest.mark.parametrize("problem", [*PROBLEMS, *APART], ids=lambda problem: f"{problem.op}-{problem.m}")
def test_trees_reorder_the_first_of_the_model(problem):
    first = [one.config for one in islice(allowed(ask(problem), Setting.of(problem, machine(H200))), TREE_CANDIDATES)]
    found = rank(ask(problem), TREE_CANDIDATES)
    assert found.corrected
    assert {one.config for one in found.best} == set(first)
    assert [one.us for one in found.best] == sorted(one.us for one in found.best)
    few = rank(ask(problem), 4)
    assert few.best == found.best[:4]


def test_some_orders_and_all_times_differ_from_the_models():
    changed = 0
    for problem in PROBLEMS:
        here = Setting.of(problem, machine(H200))
        alone = list(islice(allowed(ask(problem), here), TREE_CANDIDATES))
        found = rank(ask(problem), TREE_CANDIDATES)
        changed += [one.config for one in alone] != [one.config for one in found.best]
        assert found.aten_us != FITTED.predict_aten(here)
        assert 0.5 < found.aten_us / FITTED.predict_aten(here) < 2
    assert changed > len(PROBLEMS) / 2


def test_they_have_no_say_on_an_arch_that_they_were_not_fitted_on(file):
    file.write_text(json.dumps(document(base=3.0)))
    assert Corrected.of(setting(A100)) is None
    assert not rank(ask(PROBLEM, A100)).corrected
    assert Corrected.of(setting(H100)) is not None
    assert rank(ask(PROBLEM)).aten_us > 10 * FITTED.predict_aten(setting())


@pytest.mark.parametrize("problem", APART, ids=lambda problem: f"{problem.op}-{problem.m}-{problem.scales}")
def test_ops_with_trees_of_their_own_need_them(file, problem, caplog):
    """The formula was not fitted to them. The file of the other ops has no say."""
    file.write_text(json.dumps(document(base=3.0)))
    assert rank(ask(problem)).reason == f"the trees of {problem.op} are missing"
    assert f"goes without its trees: trees-{problem.op}.json" in caplog.text
    file.with_name(f"trees-{problem.op}.json").write_text(json.dumps(document(base=6.0)))
    shipped.cache_clear()
    aten_us = FITTED.predict_aten(Setting.of(problem, machine(H200)))
    assert rank(ask(problem)).aten_us > 10 * aten_us
    assert rank(ask(problem, A100)).reason == f"GEMMs of the op {problem.op} are not modelled on sm80"


def test_rows_with_scales_of_their_own_cost_aten_more():
    """torch multiplies them by another kernel than those with one scale. The trees tell by the scales alone."""
    for m in (1, 8, 32):
        each, one = (Problem.gemm("scaled_mm", m=m, n=4096, k=4096, scales=way) for way in ("row", "tensor"))
        assert rank(ask(each)).aten_us > 1.1 * rank(ask(one)).aten_us


def test_an_exact_hit_and_other_archs_need_no_trees(file, lab):
    device = replace(H200, sku="Some GPU")
    config = rank(ask(PROBLEM, A100)).best[0].config
    rows = list(lab.rows(PROBLEM, {config: 0.5}, device=device, clock="graph"))
    assert answer(Query(PROBLEM, device), lab.catalog(rows), Policy()).rung == "exact"
    assert shipped.cache_info().currsize == 0
