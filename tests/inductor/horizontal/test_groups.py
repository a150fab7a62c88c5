"""Which GEMMs of a graph can become one kernel."""

from dataclasses import replace

import pytest
import torch
from kit.horizontal import decided, fp8_linear, grouped, half, quantised, traced

import gemmdb.inductor
from gemmdb.devices import detect
from gemmdb.inductor.match import horizontal as groups
from gemmdb.inductor.match import ops
from gemmdb.kernels.triton import parts

linear = torch.nn.functional.linear
X, W = half(8, 64), [half(32, 64), half(16, 64), half(16, 64)]
BIASES = [half(32), half(16), half(16)]


@pytest.fixture(autouse=True)
def enabled(clean):
    """Inductor's own lowering of fp8 GEMMs knows no decision."""
    gemmdb.inductor.enable()


def used(*products):
    """What reads GEMMs, so that the graph returns none of them."""
    return [product.sin() for product in products]


def widths(function, *tensors):
    return [group.widths for group in grouped(traced(function, *tensors))]


def test_gemms_of_one_activation_are_a_group_in_the_order_of_the_graph():
    assert widths(lambda x, *w: used(*(linear(x, one) for one in w)), X, *W) == [(32, 16, 16)]


def test_each_layer_may_see_the_activation_by_a_view_of_its_own():
    x = half(2, 4, 64)
    assert widths(lambda x, *w: used(*(linear(x, one) for one in w)), x, *W) == [(32, 16, 16)]


def test_with_biases():
    def biased(x, *given):
        return used(*(linear(x, w, b) for w, b in zip(given[:3], given[3:], strict=True)))

    assert widths(biased, X, *W, *BIASES) == [(32, 16, 16)]


def test_an_int8_weight_with_its_scales():
    op = ops.overload("mixed_mm")
    weights = [torch.randint(-9, 9, (64, n), dtype=torch.int8) for n in (32, 16)]

    def mixed(x, w0, w1, s0, s1):
        return used(op(x, w0, s0), op(x, w1, s1))

    # Row-major weights of different widths lie differently, and one kernel has one stride.
    assert widths(mixed, X, *weights, half(32), half(16)) == []
    columns = [w.t().contiguous().t() for w in weights]
    (group,) = grouped(traced(mixed, X, *columns, half(32), half(16)))
    assert group.widths == (32, 16)
    assert [member.scale is not None for member in group.members] == [True, True]


def test_a_scale_that_comes_first_or_has_another_dtype():
    op = ops.overload("mixed_mm")
    weights = [torch.randint(-9, 9, (n, 64), dtype=torch.int8) for n in (32, 32)]

    def last(x, w0, w1, s0, s1):
        return used(op(x, w0.t(), s0), op(x, w1.t(), s1))

    def first(x, w0, w1, s0, s1):
        return used(op(x, w0.t(), s0, True), op(x, w1.t(), s1, True))

    assert widths(last, X, *weights, half(32), half(32)) == [(32, 32)]
    assert widths(last, X, *weights, half(32), torch.rand(32)) == []
    assert widths(first, X, *weights, half(32), half(32)) == []


INT4 = [torch.randint(0, 256, (n, 32), dtype=torch.uint8) for n in (32, 16)]


def test_int4_weights_of_one_activation():
    op = ops.overload("int4_mm")

    def model(x, y, first, second, *rest, packing="low-first"):
        (scale, other), zeros = rest[:2], rest[2:] or (None, None)
        return used(op(x, first, scale, zeros[0], 32, "low-first"), op(y, second, other, zeros[1], 32, packing))

    def same(x, *given):
        return model(x, x, *given)

    scales, zeros = [half(32, 2), half(16, 2)], [INT4[0][:, :2], INT4[1][:, :2]]
    assert widths(same, X, *INT4, *scales) == [(32, 16)]
    assert widths(same, X, *INT4, *scales, *zeros) == [(32, 16)]
    assert widths(same, X, *INT4, *scales, zeros[0], zeros[1].bfloat16()) == []
    assert widths(model, X, half(8, 64), *INT4, *scales) == []
    assert widths(lambda x, *given: model(x, x, *given, packing="high-first"), X, *INT4, *scales) == []


FP8 = (*quantised(half(32, 64)), *quantised(half(16, 64)))


def fp8(x, y, first, scale, second, other):
    return used(fp8_linear(x, first, scale), fp8_linear(y, second, other))


def test_an_activation_that_each_layer_quantises_anew():
    assert widths(lambda x, *weights: fp8(x, x, *weights), half(2, 4, 64), *FP8) == [(32, 16)]
    graph = traced(lambda x, *weights: fp8(x, x, *weights), X, *FP8)
    (group,) = grouped(graph)
    group.unify()
    graph.graph.eliminate_dead_code()
    assert [str(node.target) for node in graph.graph.nodes].count("aten.amax.default") == 1


def test_fp8_of_other_values_or_other_scales_is_no_group():
    assert widths(fp8, X, half(8, 64), *FP8) == []
    assert widths(lambda x, *weights: fp8(x, x * 2, *weights), X, *FP8) == []

    def noisy(x, *weights):
        return fp8(x + torch.rand_like(x), x + torch.rand_like(x), *weights)

    assert widths(noisy, X, *FP8) == []


@pytest.mark.parametrize("one", [torch.tensor(0.5), torch.full((1, 1), 0.5)], ids=["number", "matrix"])
def test_fp8_with_one_scale_for_each_operand(one):
    def model(x, first, second, *scales):
        values = [(x * 2).to(torch.float8_e4m3fn) for _ in range(2)]
        given = zip(values, (first, second), scales[::2], scales[1::2], strict=True)
        return used(*(torch._scaled_mm(a, w.t(), s, t, out_dtype=torch.bfloat16) for a, w, s, t in given))

    assert widths(lambda x, a, b, s, t, u: model(x, a, b, s, t, s, u), X, FP8[0], FP8[2], *[one] * 3) == [(32, 16)]
    assert widths(model, X, FP8[0], FP8[2], *(one.clone() for _ in range(4))) == []


def test_one_number_that_scales_both_operands():
    def model(x, first, second, scale):
        views = [scale.view(1, 1), scale.view(1, 1)]
        return used(*(torch._scaled_mm(x.to(torch.float8_e4m3fn), w.t(), s, s, out_dtype=torch.bfloat16)
                      for w, s in zip((first, second), views, strict=True)))  # fmt: skip

    (group,) = grouped(traced(model, X, FP8[0], FP8[2], torch.tensor(0.5)))
    group.unify()
    assert all(set(member.own) <= set(member.node.all_input_nodes) for member in group.members)


def test_fp8_whose_sums_differ_is_no_group():
    def sums(x, first, scale, second, other):
        values, rows = quantised(x)
        pairs = zip((first, second), (scale, other), (True, False), strict=True)
        return used(*(torch._scaled_mm(values, w.t(), rows, s.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)
                      for w, s, fast in pairs))  # fmt: skip

    assert widths(sums, X, *FP8) == []


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x, y, a, b: used(linear(x, a), linear(y, b)), (X, half(8, 64), W[1], W[2])),
        (lambda x, a, b: used(linear(x, a), linear(x.t().contiguous().view(8, 64), b)), (X, W[1], W[2])),
        (lambda x, a, b, c: used(linear(x, a), linear(x, b, c)), (X, W[1], W[2], BIASES[2])),
        (lambda x, a, b: used(linear(x, a), linear(x, b * 2)), (X, W[1], W[2])),
        (lambda x, a, b: used(linear(x, a), linear(x, b[:15])), (X, W[1], W[2])),
        (lambda x, a, b: used(linear(x, a)), (X, W[1], W[2])),
        (lambda x, a, b: used(linear(x[:, :60], a[:, :60]), linear(x, b)), (X, W[1], W[2])),
        (lambda x, a, b: used(linear(x.float(), a.float()), linear(x.float(), b.float())), (X, W[1], W[2])),
    ],
    ids=["activations", "order", "bias", "computed weight", "odd width", "alone", "k", "fp32"],
)
def test_other_gemms_are_no_group(function, tensors):
    assert widths(function, *tensors) == []


def test_a_gemm_that_the_graph_returns_keeps_its_memory():
    assert widths(lambda x, a, b, c: (linear(x, a).view(2, 4, 32), *used(linear(x, b), linear(x, c))), X, *W) == [
        (16, 16)
    ]


@pytest.mark.parametrize(
    "see",
    [
        lambda product: torch.as_strided(product, (6, 16), (16, 1), 16) + 1,
        lambda product: product.split(8, 1)[0],
        lambda product: product.diagonal(),
    ],
    ids=["strided", "returned in part", "returned diagonal"],
)
def test_what_sees_the_memory_of_a_gemm_keeps_it_out(see):
    assert widths(lambda x, a, b: (linear(x, a).sin(), see(linear(x, b))), X, W[1], W[2]) == []


def test_views_and_pieces_do_not():
    def heads(x, q, k):
        first, second = linear(x, q).split(8, 1)
        return first.sin() + second, linear(x, k).view(2, 4, 16).transpose(0, 1).sin()

    assert widths(heads, X, W[1], W[2]) == [(16, 16)]


def test_a_kernel_takes_a_few_weights():
    weights = [half(16, 64) for _ in range(parts.MAX_WEIGHTS + 3)]
    assert widths(lambda x, *w: used(*(linear(x, one) for one in w)), X, *weights) == [
        (16,) * parts.MAX_WEIGHTS,
        (16,) * 3,
    ]


def test_layers_far_apart_are_different_groups():
    def layers(x, memory, *given):
        for place in range(0, len(given), 4):
            q, k, v, out = given[place : place + 4]
            scores = linear(x, q) @ linear(memory, k).t()
            x = linear(scores @ linear(memory, v), out)
        return x.sin()

    given = [half(64, 64) for _ in range(12)]
    found = grouped(traced(layers, half(8, 64), half(8, 64), *given))
    assert [group.widths for group in found] == [(64, 64)] * 3


def test_what_is_not_for_a_gpu_or_has_no_answer_is_left_alone():
    graph = traced(lambda x, a, b: used(linear(x, a), linear(x, b)), X, W[1], W[2])
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    pairs = decided(graph)
    numbers = groups.numbered(pairs, places)
    assert len(groups.find(pairs, numbers)) == 1
    cpu = detect.cpu(2)
    elsewhere = [(node, replace(one, query=replace(one.query, device=cpu))) for node, one in pairs]
    unknown = [(node, replace(one, config=None)) for node, one in pairs]
    ranges = [(node, replace(one, query=replace(one.query, ranges={"m": (1, 8)}))) for node, one in pairs]
    for changed in (elsewhere, unknown, ranges):
        assert groups.find(changed, numbers) == []


def test_the_query_of_a_group_is_that_of_a_gemm_with_all_columns():
    (group,) = grouped(traced(lambda x, *w: used(*(linear(x, one) for one in w)), X, *W))
    problem = group.query.problem
    assert (problem.m, problem.n, problem.k, problem.fusion) == (8, 64, 64, "none")
