"""The trial of cuBLASLt's algorithms: its candidates, its finalists, and wrong results. There is no GPU here: times are
invented."""

import functools
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kit import cublaslt as calls
from kit.algorithms import FIRST, SECOND, SPLIT
from kit.cublaslt import instead
from kit.gpu import algorithm

from gemmdb import Config
from gemmdb.inductor.benchmark import algorithm_trial as trials
from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.benchmark.algorithm_trial import CLOSE, FINALISTS, finalists
from gemmdb.inductor.benchmark.limits import EXTENTS, Extent
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.cublaslt_nearby import activated
from gemmdb.key.problem import Problem

RECORDED = Path(__file__).parents[3] / "benchmarks/results/h200"
GELU = functools.partial(torch.nn.functional.gelu, approximate="tanh")
pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ({FIRST: 9.0, SECOND: 8.0, SPLIT: 8.5}, [SECOND, SPLIT, FIRST]),
        ({FIRST: 9.0, SECOND: 10 * CLOSE + 1}, [FIRST]),
        ({FIRST: 30.0, SECOND: 20.0}, [SECOND]),
        ({Config.of("cublaslt", "matmul", **{**FIRST.values, "tile": tile}): 9.0 + tile for tile in range(1)}, None),
    ],
)
def test_the_best_few_are_timed_against_aten(estimates, expected):
    found = finalists({ATEN: 10.0, **estimates})
    assert found == expected if expected else len(found) == min(FINALISTS, len(estimates))


class Library:
    """What a trial uses of cuBLASLt, and the algorithms' estimates. `wrong` computes another GEMM."""

    suggestions, around, wrong = (FIRST, SECOND), (SPLIT,), None

    def __init__(self, operands, copies, output):
        self.copies, self.output = copies, output

    def suggested(self):
        return list(self.suggestions)

    def near(self, estimates):
        return list(self.around)

    def loaded(self, configs, most):
        return {config: (lambda index, config=config: self.call(config)) for config in list(configs)[:most]}

    def call(self, config):
        a, b = self.copies[0][:2]
        self.output.copy_((a @ b) * (2 if config == self.wrong else 1))


@pytest.fixture
def raced(monkeypatch):
    """A trial on this CPU, with invented estimates. Returns its result."""
    estimates = {ATEN: 10.0, FIRST: 9.0, SECOND: 8.0, SPLIT: 7.0}
    monkeypatch.setattr(trials, "_Algorithms", Library)
    monkeypatch.setattr(trials.library, "loaded", lambda: True)
    monkeypatch.setattr(trials.trial, "preparation", lambda *args: None)
    monkeypatch.setattr(trials, "_estimates", lambda calls, prepare: {one: estimates[one] for one in calls})
    monkeypatch.setattr(
        trials, "in_turn", lambda prepare, calls, *rest: [[float(place)] for place, _ in enumerate(calls)]
    )
    x, w = torch.empty(32, 64, dtype=torch.bfloat16), torch.empty(64, 96, dtype=torch.bfloat16)

    def race(proposed=(), allowed=lambda config: True, activation="", extent=EXTENTS[0]):
        problem = Problem.gemm("mm", m=32, n=96, k=64, layout="nn")
        return trials._race(trials.Operands(problem, (x, w), (True, False), activation), proposed, allowed, extent)

    return race


def test_the_best_candidates_and_those_near_them_are_timed(raced):
    found = raced()
    assert found.aten == [0.0]
    assert found.finalists == {SPLIT: [1.0], SECOND: [2.0]}
    assert list(raced(allowed=lambda config: config != SPLIT).finalists) == [SECOND, FIRST]


def test_what_resembles_the_best_is_tried_only_where_something_may_be_faster_than_aten(raced, monkeypatch):
    assert trials.promising({ATEN: 8.1, FIRST: 9.0, SECOND: 8.0})
    assert not trials.promising({ATEN: 8.0, FIRST: 9.0, SECOND: 8.0})
    monkeypatch.setattr(trials, "promising", lambda estimates: False)
    assert list(raced().finalists) == [SECOND, FIRST]


@pytest.mark.parametrize(
    ("us", "count", "found"),
    [
        ((95.0, 96.0, 95.5), 5, True),  # At least 4% faster each time.
        ((95.0, 99.5, 95.5), 5, False),
        ((99.5, 100.5, 100.2), 5, True),  # It gains nothing.
        ((98.0, 98.5, 99.0), 5, False),
        ((95.0, 96.0, 95.5), 4, False),
        ((60.0, 95.0, 140.0), 6, False),  # Noise.
    ],
)
def test_the_last_rounds_end_once_it_is_settled_which_is_faster(us, count, found):
    best = [us[index % len(us)] for index in range(count)]
    assert trials.settled([100.0] * count, best) == found


@pytest.mark.parametrize("name", ["search", "search-short"])
def test_ending_early_changes_no_recorded_search(name):
    searches = json.loads((RECORDED / f"{name}.json").read_text())["searches"]
    saved = 0
    for one in (one for one in searches if "aten" in one):
        best = min(one["finalists"].values(), key=statistics.median)
        aten, rounds = one["aten"], range(1, len(best) + 1)
        ended = next((count for count in rounds if trials.settled(aten[:count], best[:count])), len(best))
        saved += len(best) - ended
        gains = [statistics.median(a / b for a, b in zip(aten[:end], best, strict=False)) for end in (ended, None)]
        assert (gains[0] > trials.FASTER) == (gains[1] > trials.FASTER)
    assert saved > 0.3 * sum(len(one["aten"]) for one in searches if "aten" in one)


def test_the_best_algorithm_that_does_not_split_k_is_timed_against_aten_too():
    """It is served where a split takes the host too long."""
    other = Config.of("cublaslt", "matmul", **{**SPLIT.values, "tile": 20})
    assert trials.last([SPLIT, other, SECOND, FIRST]) == [SPLIT, other, SECOND]
    assert trials.last([SPLIT, SECOND, FIRST]) == [SPLIT, SECOND]
    assert trials.last([SPLIT, other]) == [SPLIT, other]
    assert trials.last([]) == []


def test_a_few_rounds_correct_the_estimates_before_the_best_are_timed_against_aten(raced, monkeypatch):
    """Estimates are a microsecond off. Here the slowest by estimate is the fastest."""
    rounds = []

    def in_turn(prepare, calls, copies, protocol, sample_us, enough):
        if rounds:
            return [[float(place)] for place, _ in enumerate(calls)]
        samples = [[] for _ in calls]
        while not enough(samples):
            for one, us in zip(samples, (3.0, 2.0, 1.0), strict=True):
                one.append(us)
        rounds.append(len(samples[0]))
        return samples

    monkeypatch.setattr(trials, "in_turn", in_turn)
    assert list(raced().finalists) == [FIRST, SECOND]
    assert rounds == [trials.ROUNDS]


def test_a_proposed_algorithm_is_tried_before_the_heuristics_second(raced, monkeypatch):
    """A short search leaves out all but the first few, and what resembles them."""
    other = Config.of("cublaslt", "matmul", **{**SPLIT.values, "tile": 20})
    monkeypatch.setattr(Library, "around", (other,))
    assert list(raced([SPLIT], extent=Extent(2, 0, 0.01, 0.02)).finalists) == [SPLIT, FIRST]


def test_an_algorithm_with_another_result_is_not_timed(raced, monkeypatch):
    monkeypatch.setattr(Library, "wrong", SPLIT)
    found = raced()
    assert (list(found.finalists), found.wrong) == ([SECOND, FIRST], [SPLIT])
    monkeypatch.setattr(Library, "suggestions", ())
    with pytest.raises(Untimed, match="no algorithm"):
        raced()
    found = raced([SPLIT])
    assert (found.aten, found.finalists, found.wrong) == ((), {}, [SPLIT])


def algorithms_of(monkeypatch, library, bias=False):
    """The algorithms of a library that multiplies nothing, for operands on this CPU, and the copies of these."""
    instead(monkeypatch, library)
    monkeypatch.setattr(trials, "LOAD_S", 60.0)  # This machine may be busy.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    x, w, b = torch.empty(32, 64).bfloat16(), torch.empty(64, 96).bfloat16(), torch.empty(96).bfloat16()
    problem = Problem.gemm("addmm" if bias else "mm", m=32, n=96, k=64, layout="nn")
    given = trials.Operands(problem, (x, w, b) if bias else (x, w), (True, False, False)[: 3 if bias else 2])
    copies = [given.fakes, [one.clone() for one in given.fakes]]
    return trials._Algorithms(given, copies, given.output()), copies


def test_each_candidate_is_called_once_before_it_is_timed(monkeypatch):
    library = calls.Library()
    found, copies = algorithms_of(monkeypatch, library)
    loaded = found.loaded([FIRST, FIRST, SECOND, SPLIT], 2)
    assert (list(loaded), len(library.calls)) == ([FIRST, SECOND], 2)
    loaded[SECOND](1)
    left, right = library.calls[-1][3], library.calls[-1][5]
    assert (left, right) == (copies[1][1].data_ptr(), copies[1][0].data_ptr())
    assert library.calls[-1][-2:] == (trials.MAX_WORKSPACE, 7)


def test_a_bias_is_the_same_memory_in_every_call(monkeypatch):
    library = calls.Library()
    found, copies = algorithms_of(monkeypatch, library, bias=True)
    found.loaded([FIRST], 1)[FIRST](1)
    assert set(library.biases.values()) >= {copies[0][2].data_ptr()}


@pytest.mark.parametrize(
    "library",
    [
        calls.Library(cublasLtMatmulAlgoCheck=calls.STATUS_NOT_SUPPORTED),
        calls.Library(cublasLtMatmul=calls.STATUS_NOT_SUPPORTED),
        calls.Library(workspace=trials.MAX_WORKSPACE + 1),
    ],
)
def test_what_the_library_does_not_support_is_no_candidate(monkeypatch, library):
    found, _ = algorithms_of(monkeypatch, library)
    assert found.loaded([FIRST, SECOND], 9) == {}


def test_loading_kernels_ends_in_time(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library())
    now = iter([0.0, 0.0, 100.0, 100.0])
    monkeypatch.setattr(limits, "now", lambda: next(now))
    assert list(found.loaded([FIRST, SECOND], 9)) == [FIRST]


def test_a_heuristic_that_fails_suggests_nothing(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library(cublasLtMatmulAlgoGetHeuristic=calls.STATUS_NOT_SUPPORTED))
    assert found.suggested() == []


def test_algorithms_near_the_best_two_are_candidates(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library())
    other = algorithm(custom=0)
    near = found.near({ATEN: 1.0, FIRST: 9.0, algorithm(): 2.0, other: 3.0})
    assert {one.values["algo"] for one in near} == {other.values["algo"]}
    assert len(near) == len(set(near)) > 10


@pytest.mark.parametrize("loses", [None, activated(FIRST, "relu")])
def test_what_is_not_a_number_must_stay(monkeypatch, raced, loses):
    """A maximum may lose it."""

    def call(self, config):
        a, b = self.copies[0][:2]
        result = torch.relu(a @ b)
        self.output.copy_(result.nan_to_num(0.0) if config == loses else result)

    monkeypatch.setattr(Library, "call", call)
    monkeypatch.setattr(Library, "suggestions", tuple(activated(one, "relu") for one in (FIRST, SECOND)))
    monkeypatch.setattr(Library, "around", ())
    monkeypatch.setattr(trials, "_estimates", lambda calls, prepare: dict.fromkeys(calls, 1.0))
    found = raced(activation="relu")
    assert list(found.wrong) == ([loses] if loses else [])
    assert len(found.finalists) == 2 - len(found.wrong)


def test_aten_s_time_includes_the_activation():
    x, w = torch.randn(32, 64).bfloat16(), torch.randn(64, 96).bfloat16()
    for activation, function in (("relu", torch.relu), ("gelu_tanh", GELU)):
        problem = Problem.gemm("mm", m=32, n=96, k=64, layout="nn")
        given = trials.Operands(problem, (x, w), (True, False), activation)
        output = given.output()
        trials._call_aten(given, [(x, w)], output, 0)
        assert torch.equal(output, function(x @ w))
