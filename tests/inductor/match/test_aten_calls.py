"""Whether ATen's call for a GEMM splits K, as the heuristic of the loaded cuBLASLt says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from kit.cublaslt import Library, instead
from kit.devices import H200
from kit.for_a_gpu import rand
from kit.gpu import ALGORITHM
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gemmdb import Problem
from gemmdb.devices import detect
from gemmdb.inductor.match import aten_calls
from gemmdb.key.problem import Query

SPLIT = {**ALGORITHM, "split_k": 3, "reduction": 2}
MM = Query(Problem.gemm("mm", m=32, n=512, k=256), H200)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    aten_calls.first_splits.cache_clear()


def splits(monkeypatch: pytest.MonkeyPatch, query: Query, *named: Mapping[str, int]) -> bool:
    library = Library()
    library.named = named
    instead(monkeypatch, library)
    problem = query.problem
    return aten_calls.splits(query, rand(problem.m, problem.k), rand(problem.n, problem.k).t())


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_aten_runs_the_first_named_algorithm(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    query = Query(Problem.gemm(op, m=32, n=512, k=256), H200)
    assert splits(monkeypatch, query, SPLIT, ALGORITHM)
    aten_calls.first_splits.cache_clear()
    assert not splits(monkeypatch, query, ALGORITHM, SPLIT)


@pytest.mark.parametrize(
    "query",
    [
        Query(Problem.gemm("mm", m=32, n=512, k=256, dtype="fp32"), H200),
        Query(MM.problem, H200, {"m": (1, 64)}),
        Query(MM.problem, detect.cpu()),
    ],
    ids=["fp32", "symbolic", "cpu"],
)
def test_nothing_is_asked_where_it_does_not_count(monkeypatch: pytest.MonkeyPatch, query: Query) -> None:
    assert not splits(monkeypatch, query, SPLIT)


def test_nothing_is_asked_of_operands_that_aten_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = replace(MM.problem.b.layout, order="strided", align=1)
    query = replace(MM, problem=replace(MM.problem, b=replace(MM.problem.b, layout=layout)))
    assert not splits(monkeypatch, query, SPLIT)


def test_a_library_that_is_missing_or_names_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not splits(monkeypatch, MM)
    instead(monkeypatch, None)
    assert not aten_calls.splits(MM, rand(32, 256), rand(512, 256).t())


@pytest.mark.parametrize("context", [True, False])
def test_asking_takes_no_context_on_a_gpu(monkeypatch: pytest.MonkeyPatch, context: bool) -> None:
    """A process that generates code has initialized torch, but has no context."""
    for name, answer in {"is_available": True, "is_initialized": True, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: context, raising=False)
    assert splits(monkeypatch, MM, SPLIT) == context


@pytest.mark.parametrize("symbolic", ["a", "b"])
def test_nothing_is_asked_of_a_symbolic_leading_dimension(monkeypatch: pytest.MonkeyPatch, symbolic: str) -> None:
    """The operand is a part of a wider matrix, whose width is symbolic."""
    instead(monkeypatch, library := Library())
    library.named = (SPLIT,)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    width = StatelessSymbolicContext([DimDynamic.STATIC, DimDynamic.DYNAMIC])

    def operand(rows: int, name: str) -> torch.Tensor:
        if name == symbolic:
            return mode.from_tensor(rand(rows, 264), symbolic_context=width)[:, :256]
        return mode.from_tensor(rand(rows, 256))

    assert not aten_calls.splits(MM, operand(32, "a"), operand(512, "b").t())
