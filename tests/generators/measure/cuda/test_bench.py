"""The errors of candidates: those with the bits of the first have its error, all others are compared anew."""

import pytest

torch = pytest.importorskip("torch")

from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda.bench import Bench
from gemmdb.generators.measure.operands import operands
from gemmdb.key.problem import Problem

PROBLEM = Problem.gemm("mm", m=8, n=16, k=32)


@pytest.fixture
def bench(monkeypatch):
    """A problem on the CPU, with three copies of its operands."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    made = operands(PROBLEM, torch.device("cpu"), 2)
    copies = [{**made.named, "out": torch.empty(8, 16, dtype=torch.bfloat16)} for _ in range(3)]
    return Bench(PROBLEM, copies, [reference(PROBLEM, made)])


def writes(bench, change=lambda out: out):
    """A call that writes the product, changed."""

    def call(index):
        one = bench.copies[index]
        one["out"].copy_(change(one["A"].float() @ one["B"].float()))

    return call


def counted(bench, monkeypatch):
    asked = []
    real = type(bench.expected[0]).error
    monkeypatch.setattr(type(bench.expected[0]), "error", lambda self, out: asked.append(1) or real(self, out))
    return asked


def test_equal_bits_are_not_compared_again(bench, monkeypatch):
    asked = counted(bench, monkeypatch)
    first = bench.error(writes(bench))
    assert len(asked) == 2  # The first and the last copy.
    assert bench.error(writes(bench)) == first
    assert len(asked) == 2


def test_one_wrong_element_is_found(bench):
    def change(out):
        out[3, 5] += 8
        return out

    first = bench.error(writes(bench))
    assert bench.error(writes(bench, change)) > 100 * max(first, 1e-6)


def test_an_output_that_is_not_written_is_not_equal(bench):
    bench.error(writes(bench))
    found = bench.error(lambda index: None)
    assert found != found or found == float("inf")


def test_an_output_of_nan_never_counts_as_the_first(bench):
    first = bench.error(lambda index: None)
    again = bench.error(lambda index: None)
    assert not first <= 1
    assert not again <= 1
