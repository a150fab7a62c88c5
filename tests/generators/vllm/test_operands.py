"""Random operands of a layer and its exact result, beside a plain computation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gemmdb.generators.vllm import operands
from gemmdb.generators.vllm.layers import Experts

CPU = torch.device("cpu")
LAYER = Experts(5, 2, 256, 384)


def test_the_exact_result_of_experts_is_that_of_each_token_by_itself():
    first, second = (operands.weight(sizes, False, CPU) for sizes in LAYER.weights)
    (x, *_), (routing, *_) = operands.activations(7, LAYER.hidden, CPU), operands.routings(LAYER, 7, CPU)
    found = operands.exact_experts(x, first, second, routing)
    for token, shares, chosen in zip(x.double(), *routing, strict=True):
        expected = torch.zeros(LAYER.hidden, dtype=torch.float64)
        for share, expert in zip(shares, chosen, strict=True):
            gate, up = (first.values[expert].double() @ token).chunk(2)
            expected += share * (second.values[expert].double() @ (gate * torch.sigmoid(gate) * up))
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-3, atol=1e-4)
        found = found[1:]


@pytest.mark.parametrize("n", [256, 200])
def test_a_weight_with_scales_of_blocks_is_each_value_times_its_blocks_scale(n):
    weight = operands.weight((n, 384), True, CPU)
    assert weight.scale is not None
    exact = weight.exact()
    for row, column in ((0, 0), (127, 128), (n - 1, 383)):
        value = weight.values[row, column].float() * weight.scale[row // 128, column // 128]
        assert exact[row, column] == value


def test_quantized_activations_are_close_and_the_exact_product_uses_their_scales():
    x = operands.activations(9, 256, CPU)[0]
    values, scale = operands.quantized(x)
    assert (values.dtype, scale.shape) == (torch.float8_e4m3fn, (9, 2))
    weight = operands.weight((128, 256), True, CPU)
    found = operands.exact_linear(values, scale, weight)
    assert 0 < operands.error(found, x.float() @ weight.exact().t()) < 0.06


def test_each_token_goes_to_different_experts_and_the_copies_differ():
    found = operands.routings(LAYER, 50, CPU)
    assert len(found) == operands.COPIES
    for shares, chosen in found:
        assert all(len(set(row)) == LAYER.top_k for row in chosen.tolist())
        torch.testing.assert_close(shares.sum(-1), torch.ones(50))
    assert not torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("m", [1, 5, 32, 1000])
def test_the_first_and_the_last_row_are_checked(m):
    rows = operands.sample(m, CPU).tolist()
    assert len(set(rows)) == len(rows) == min(m, operands.CHECKED)
    assert (rows[0], rows[-1]) == (0, m - 1)


def test_the_error_is_that_of_the_worst_row():
    exact = torch.ones(100, 64)
    found = exact.clone()
    found[70] = 1.5
    assert operands.error(found, exact) == pytest.approx(0.5)
    found[3, 3] = float("nan")
    assert operands.error(found, exact) == float("inf")
