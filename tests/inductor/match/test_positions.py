"""Places of a view's elements, against the views of a tensor that holds its own places."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.inductor.match.positions import Places, Unknown


def listed(places):
    """The place of each element, one by one."""
    along = []
    for dim in places.dims:
        parts = [range(0, size * step, step) if step else [0] * size for size, step in dim]
        along.append([sum(one) for one in product(*parts)])
    return [places.first + sum(one) for one in product(*along)]


def shapes(total):
    """Shapes of so many elements, some with sizes of 1."""
    sizes = [one for one in (1, 2, 3, 4, 6, 8, 12, 24, 48) if total % one == 0]
    found = [shape for shape in product(sizes, repeat=3) if math.prod(shape) == total]
    return st.sampled_from([(total,), *found, *((one, 1, *rest) for one, *rest in found)])


@st.composite
def views(draw):
    """(a tensor of its own places, their Places) after some views."""
    total = draw(st.sampled_from([8, 24, 48]))
    start = draw(shapes(total))
    tensor, places = torch.arange(total).reshape(start), Places.dense(start)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["reshape", "permute", "expand", "choose"]))
        try:
            if kind == "reshape":
                shape = draw(shapes(tensor.numel()))
                tensor, places = tensor.reshape(shape), places.reshaped(shape)
            elif kind == "permute":
                order = draw(st.permutations(range(tensor.dim())))
                tensor, places = tensor.permute(*order), places.permuted(order)
            elif kind == "expand" and tensor.numel() < 200:
                tensor, places = tensor.unsqueeze(0).expand(3, *tensor.shape), places.expanded((3, *places.shape))
            elif kind == "choose":
                dim = draw(st.integers(0, tensor.dim() - 1))
                chosen = draw(st.lists(st.integers(0, tensor.shape[dim] - 1), min_size=1, max_size=4))
                found = places.chosen(dim, Places.listed(chosen))
                tensor, places = tensor.index_select(dim, torch.tensor(chosen)), found
        except Unknown:
            return tensor, places  # What is not known is left, unchanged.
    return tensor, places


@given(view=views())
def test_places_are_those_of_the_view(view):
    tensor, places = view
    assert places.shape == tuple(tensor.shape)
    assert listed(places) == tensor.flatten().tolist()
    assert places.last == max(listed(places))


@given(shape=shapes(24), numbers=st.permutations(range(4)))
def test_equal_places_are_equal(shape, numbers):
    """However a view came about: two ways to the same places compare equal."""
    dense = Places.dense(shape)
    assert Places.dense([math.prod(shape)]).reshaped(shape) == dense
    assert dense.reshaped([24]).reshaped(shape) == dense
    try:
        order = Places.listed(numbers)
    except Unknown:
        return
    assert listed(order) == list(numbers)


def test_an_order_of_awq_is_a_sum_of_two():
    assert Places.listed([0, 4, 1, 5, 2, 6, 3, 7]) == Places(0, (((4, 1), (2, 4)),))
    assert Places.listed([1, 0]) == Places(1, (((2, -1),),))


@pytest.mark.parametrize("numbers", [[0, 1, 3, 2], [0, 2, 1], []])
def test_other_orders_are_unknown(numbers):
    with pytest.raises(Unknown):
        Places.listed(numbers)


def test_what_is_unknown():
    with pytest.raises(Unknown):
        Places.dense([6]).permuted([0]).reshaped([4])
    with pytest.raises(Unknown):
        Places.dense([2, 3]).permuted([1, 0]).reshaped([2, 3])
    with pytest.raises(Unknown):
        Places.dense([4]).plus(Places.dense([4]))
    with pytest.raises(Unknown):
        Places.dense([4]).chosen(0, Places.listed([2, 4]))
    with pytest.raises(Unknown):
        Places.dense([4], 6).divided(4)
