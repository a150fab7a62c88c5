"""Which nodes of a graph have the same value."""

import pytest
import torch
from kit.horizontal import half, traced

from gemmdb.inductor.match.horizontal_members import Values

aten = torch.ops.aten
X = half(8, 64)


def same(function, *tensors, deepest=64):
    """Whether both tensors that a function returns have the same number."""
    graph = traced(function, *tensors)
    first, second = graph.graph.output_node().args[0]
    values = Values()
    return values.number(first, deepest) == values.number(second, deepest)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.abs().amax(-1, keepdim=True), x.abs().amax(-1, keepdim=True)),
        lambda x: (x.float().view(4, 128), x.float().view(4, 128)),
        lambda x: (torch.clamp(x / 2, -1, 1), torch.clamp(x / 2, -1, 1)),
    ],
    ids=["reduction", "view", "elementwise"],
)
def test_the_same_operators_on_the_same_tensor(function):
    assert same(function, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, x + 2),
        lambda x: (x.amax(0, keepdim=True), x.amax(0, keepdim=False)),
        lambda x: (x.to(torch.float32), x.to(torch.float16)),
        lambda x: (aten.add.Tensor(x, x, alpha=1), aten.add.Tensor(x, x, alpha=2)),
        lambda x: (torch.rand_like(x), torch.rand_like(x)),
        lambda x: (torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(x, 0.5)),
        lambda x: (x.sin(), x.cos()),
        lambda x: (x @ x.t(), x @ x.t()),
    ],
    ids=["number", "dimension", "dtype", "keyword", "random", "dropout", "operator", "product"],
)
def test_others_have_numbers_of_their_own(function):
    assert not same(function, X)


def test_of_two_inputs():
    assert not same(lambda x, y: (x.sin(), y.sin()), X, half(8, 64))


def test_long_ways_are_not_compared():
    def long(x):
        first, second = x, x
        for _ in range(5):
            first, second = first.sin(), second.sin()
        return first, second

    assert same(long, X, deepest=6)
    assert not same(long, X, deepest=3)
