"""Which nodes of a graph have the same value."""

import pytest
import torch
from kit.horizontal import half, traced

from gemmdb.inductor.match.horizontal_members import Values

aten = torch.ops.aten


def is_same(function, depth=64):
    """Whether both tensors that a function of a tensor returns have the same number."""
    first, second = traced(function, half(8, 64)).graph.output_node().args[0]
    values = Values()
    return values.number(first, depth) == values.number(second, depth)


def long(x):
    first, second = x, x
    for _ in range(5):
        first, second = first.sin(), second.sin()
    return first, second


@pytest.mark.parametrize(
    ("same", "function"),
    [
        (True, lambda x: (x.abs().amax(-1, keepdim=True), x.abs().amax(-1, keepdim=True))),
        (True, lambda x: (x.float().view(4, 128), x.float().view(4, 128))),
        (True, lambda x: (torch.clamp(x / 2, -1, 1), torch.clamp(x / 2, -1, 1))),
        (False, lambda x: (x + 1, x + 2)),
        (False, lambda x: (x.amax(0, keepdim=True), x.amax(0, keepdim=False))),
        (False, lambda x: (x.to(torch.float32), x.to(torch.float16))),
        (False, lambda x: (aten.add.Tensor(x, x, alpha=1), aten.add.Tensor(x, x, alpha=2))),
        (False, lambda x: (torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(x, 0.5))),
        (False, lambda x: (x.sin(), x.cos())),
        (False, lambda x: (x @ x.t(), x @ x.t())),
    ],
)
def test_the_same_operators_on_the_same_tensor_have_the_same_value(same, function):
    assert is_same(function) == same


def test_values_far_from_what_both_read_are_not_compared():
    assert is_same(long, depth=6)
    assert not is_same(long, depth=3)
