"""A product is cut out of a graph with what becomes its epilogue, as a graph that computes the same."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb import Problem
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.tensors import inputs
from gemmdb.inductor.benchmark.trial import Untimed

FUSED = Problem.gemm("mm", m=8, n=16, k=32, fusion="pointwise")
ALONE = Problem.gemm("mm", m=8, n=16, k=32)
mm = torch.ops.aten.mm.default


def traced(function, *sizes, **options):
    """The graph of `function` on fp32 tensors of these sizes, and the places of its nodes."""
    given = tuple(torch.randn(*size) for size in sizes)
    graph = make_fx(function, tracing_mode="fake", **options)(*given).graph
    return graph, {node: place for place, node in enumerate(graph.nodes)}


def pieces(function, *sizes, problem=FUSED):
    graph, places = traced(function, *sizes)
    return [cutting.cut(node, problem, places) for node in graph.nodes if node.target is mm]


def operators(piece):
    return [node.target.overloadpacket.__name__ for node in piece.nodes]


def chain(a, w, gate):
    out = (torch.mm(a, w).view(2, 4, 16).relu() * gate).sum(-1)
    return out, gate.exp()


def test_the_epilogue_ends_where_something_else_begins():
    (piece,) = pieces(chain, (8, 32), (32, 16), (2, 4, 16))
    assert operators(piece) == ["mm", "view", "relu", "mul"]
    assert [node.name for node in piece.results] == ["mul"]
    assert [tuple(fake.shape) for fake in piece.fakes] == [(8, 32), (32, 16), (2, 4, 16)]


def test_a_scale_of_rows_is_expanded_inside_even_if_others_see_it_so():
    def scaled(a, w, rows):
        product, wide = torch.mm(a, w), rows.expand(8, 16)
        return product * torch.ops.prims.convert_element_type.default(wide, torch.float32), wide.exp()

    (piece,) = pieces(scaled, (8, 32), (32, 16), (8, 1))
    assert operators(piece) == ["mm", "expand", "convert_element_type", "mul"]
    assert [node.name for node in piece.results] == ["mul"]
    assert [tuple(fake.shape) for fake in piece.fakes] == [(8, 32), (32, 16), (8, 1)]
    graph, _ = piece.copies()
    given = [torch.randn(*size) for size in ((8, 32), (32, 16), (8, 1))]
    assert torch.equal(graph(*given)[0], scaled(*given)[0])


def test_without_an_epilogue_the_product_is_alone():
    (piece,) = pieces(chain, (8, 32), (32, 16), (2, 4, 16), problem=ALONE)
    assert operators(piece) == ["mm"]


def test_the_copy_computes_the_same():
    (piece,) = pieces(chain, (8, 32), (32, 16), (2, 4, 16))
    graph, new = piece.copies()
    assert new[piece.product].target is mm
    a, w, gate = (torch.randn(*size) for size in ((8, 32), (32, 16), (2, 4, 16)))
    (found,) = graph(a, w, gate)
    assert torch.equal(found, torch.mm(a, w).view(2, 4, 16).relu() * gate)


def test_every_value_that_the_rest_reads_is_a_result():
    def both(a, w):
        product = torch.mm(a, w)
        return product.relu().tanh(), product.sum(), product.neg().exp().sum()

    (piece,) = pieces(both, (8, 32), (32, 16))
    # The kernels of the sums compute what only they read.
    assert operators(piece) == ["mm", "relu", "tanh"]
    assert [node.name for node in piece.results] == ["mm", "tanh"]


def test_what_is_stored_in_another_order_and_what_is_computed_on_the_way_is_part_of_it():
    def gated(a, w, gate):
        return (torch.mm(a, w) * gate.sigmoid()).view(2, 4, 16).permute(1, 0, 2).contiguous()

    (piece,) = pieces(gated, (8, 32), (32, 16), (8, 16))
    assert operators(piece) == ["mm", "sigmoid", "mul", "view", "permute", "clone"]
    assert [node.name for node in piece.results] == ["clone"]
    graph, _ = piece.copies()
    given = [torch.randn(*size) for size in ((8, 32), (32, 16), (8, 16))]
    assert torch.equal(graph(*given)[0], gated(*given))


def test_a_value_that_depends_on_the_product_by_another_way_is_an_input():
    def normalised(a, w):
        product = torch.mm(a, w)
        return product / product.sum(-1, keepdim=True)

    (piece,) = pieces(normalised, (8, 32), (32, 16))
    assert operators(piece) == ["mm", "div"]
    assert [tuple(fake.shape) for fake in piece.fakes] == [(8, 32), (32, 16), (8, 1)]


def test_a_long_epilogue_is_cut_short():
    def long(a, w):
        out = torch.mm(a, w)
        for _ in range(100):
            out = out.sin()
        return out

    (piece,) = pieces(long, (8, 32), (32, 16))
    assert cutting.MOST_NODES <= len(piece.nodes) <= cutting.MOST_NODES + 1
    assert len(piece.results) == 1


def test_the_same_layer_twice_has_one_text():
    def twice(a, w1, b1, w2, b2, w3):
        return (torch.mm(a, w1) + b1).relu(), (torch.mm(a, w2) + b2).relu(), (torch.mm(a, w3) + b1).tanh()

    sizes = ((8, 32), (32, 16), (16,), (32, 16), (16,), (32, 16))
    first, second, third = pieces(twice, *sizes)
    assert first.text == second.text
    assert first.text != third.text


@pytest.mark.parametrize(
    "other",
    [
        lambda a, w: torch.mm(a[:, :32], w.t()),
        lambda a, w: torch.mm(a[:, 1:33], w),
        lambda a, w: torch.mm(a[:, :32], w).relu(),
        lambda a, w: torch.mm(a[:7, :32], w),
    ],
    ids=["strides", "alignment", "epilogue", "sizes"],
)
def test_what_compiles_to_other_code_has_another_text(other):
    (one,) = pieces(lambda a, w: torch.mm(a[:, :32], w), (8, 64), (32, 32))
    (two,) = pieces(other, (8, 64), (32, 32))
    assert one.text != two.text


def test_activations_are_warm_and_weights_are_cold():
    def two(x, w, v, b):
        return torch.mm(torch.mm(x, w).tanh(), v.t()) + b

    first, second = pieces(two, (8, 32), (32, 16), (12, 16), (12,))
    assert first.warm == [True, False]
    assert second.warm == [True, False, False]


def test_the_activation_of_an_addmm_is_warm_and_its_bias_is_not():
    graph, places = traced(lambda c, x, w: torch.addmm(c, x.exp(), w), (16,), (8, 32), (32, 16))
    (product,) = [node for node in graph.nodes if node.target is torch.ops.aten.addmm.default]
    piece = cutting.cut(product, ALONE, places)
    assert dict(zip([node.name for node in piece.inputs], piece.warm, strict=True)) == {
        "c_1": False, "exp": True, "w_1": False,
    }  # fmt: skip
    assert (piece.device, piece.outputs) == (torch.device("cpu"), 8 * 16 * 4)


def test_symbolic_sizes_are_not_cut():
    given = torch.randn(8, 32), torch.randn(32, 16)
    graph = make_fx(torch.mm, tracing_mode="symbolic")(*given).graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    (product,) = [node for node in graph.nodes if node.target is mm]
    with pytest.raises(Untimed, match="symbolic"):
        cutting.cut(product, ALONE, places)


def test_a_constant_is_one_in_the_copy():
    weight = torch.randn(32, 16)
    given = torch.randn(8, 32)
    module = make_fx(lambda a: torch.mm(a, weight).relu(), tracing_mode="fake", _allow_non_fake_inputs=True)(given)
    graph = module.graph
    for node in graph.nodes:
        if node.op == "get_attr":
            node.meta["val"] = FakeTensorMode().from_tensor(weight)
    (product,) = [node for node in graph.nodes if node.target is mm]
    piece = cutting.cut(product, FUSED, {node: place for place, node in enumerate(graph.nodes)})
    copied, _ = piece.copies()
    assert torch.equal(copied(given)[0], torch.mm(given, weight).relu())
    assert len(piece.fakes) == 1


def test_random_inputs_have_the_layouts_of_the_fake_ones():
    fakes = [
        torch.empty(100)[1:65].view(8, 8), torch.empty(16, 8).t(), torch.empty(4, 1).expand(4, 8),
        torch.empty(8, dtype=torch.int8), torch.empty(3, dtype=torch.bool), torch.empty(3, dtype=torch.int64),
        torch.empty(5, dtype=torch.float8_e4m3fn), torch.empty(0, 4), torch.empty(()),
    ]  # fmt: skip
    state = torch.get_rng_state()
    made = inputs(fakes)
    assert torch.equal(torch.get_rng_state(), state)
    for one, fake in zip(made, fakes, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (fake.shape, fake.stride(), fake.dtype)
        assert one.storage_offset() * one.itemsize % 16 == fake.storage_offset() * fake.itemsize % 16
    assert not torch.equal(made[0], made[1][:8])


def test_the_scales_of_an_integer_product_are_part_of_it_whatever_follows():
    def normed(a, w, rows, columns):
        product = torch._int_mm(a, w) * rows * columns
        return product * product.square().mean(-1, keepdim=True).rsqrt()

    integers = [torch.randint(-9, 9, size, dtype=torch.int8) for size in ((24, 32), (32, 16))]
    given = (*integers, torch.rand(24, 1), torch.rand(16))
    graph = make_fx(normed, tracing_mode="fake")(*given).graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    (product,) = (node for node in graph.nodes if node.target is torch.ops.aten._int_mm.default)
    problem = Problem.gemm("int_mm", m=24, n=16, k=32, fusion="scale", out_dtype="fp32")
    piece = cutting.cut(product, problem, places)
    assert operators(piece) == ["_int_mm", "mul", "mul"]
    copied, _ = piece.copies()
    assert torch.equal(copied(*given)[0], torch._int_mm(*integers) * given[2] * given[3])


def gated(a, gate, up):
    return torch.nn.functional.silu(torch.mm(a, gate).view(2, 4, 16)) * torch.mm(a, up).view(2, 4, 16), a.sum()


def test_several_products_are_cut_out_with_what_lies_between_them():
    graph, places = traced(gated, (8, 32), (32, 16), (32, 16))
    found = [node for node in graph.nodes if node.target is mm]
    piece = cutting.cut_all([(found[0], ALONE), (found[1], FUSED)], places)
    assert [tuple(fake.shape) for fake in piece.fakes] == [(8, 32), (32, 16), (32, 16)]
    copy, _ = piece.copies()
    given = [torch.randn(*size) for size in ((8, 32), (32, 16), (32, 16))]
    (result,) = copy(*given)
    assert torch.equal(result, gated(*given)[0])


def test_several_products_with_something_else_between_them_are_not_cut_out():
    def normalised(a, gate, up):
        return torch.mm(a, gate).sum(-1, keepdim=True) * torch.mm(a, up).relu()

    graph, places = traced(normalised, (8, 32), (32, 16), (32, 16))
    found = [node for node in graph.nodes if node.target is mm]
    with pytest.raises(Untimed, match="between the products"):
        cutting.cut_all([(found[0], ALONE), (found[1], FUSED)], places)


def branches(a, w, one, two):
    product = torch.mm(a, w)
    return (product.relu() * one).view(4, 32), product.sigmoid() * two


def test_the_order_of_the_graph_and_kinds_of_views_change_nothing():
    """Inductor's passes move operators, and make reshapes of views."""
    sizes = (8, 32), (32, 16), (8, 16), (8, 16)
    (piece,) = pieces(branches, *sizes)
    graph, _ = traced(branches, *sizes)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    relu = next(node for node in graph.nodes if node.target is torch.ops.aten.relu.default)
    sigmoid = next(node for node in graph.nodes if node.target is torch.ops.aten.sigmoid.default)
    relu.prepend(sigmoid)
    moved = cutting.cut(
        next(node for node in graph.nodes if node.target is mm), FUSED,
        {node: place for place, node in enumerate(graph.nodes)},
    )  # fmt: skip
    assert [node.name for node in moved.nodes] != [node.name for node in piece.nodes]
    assert moved.text == piece.text
    assert [node.name for node in moved.results] == [node.name for node in piece.results]
    given = [torch.randn(*size) for size in sizes]
    by_name = dict(zip(("a_1", "w_1", "one_1", "two_1"), given, strict=True))
    for one in (piece, moved):
        copy, _ = one.copies()
        found = copy(*(by_name[node.name] for node in one.inputs))
        wanted = [one.view(8, 16) for one in branches(*given)]
        assert len(found) == 2
        assert all(any(torch.equal(part, other) for part in found) for other in wanted)


def cast(a, w, scale):
    return torch.mm(a, (w * scale).t()), torch.mm(a, w.t())


def test_a_weight_that_the_graph_computes_is_told_from_one_that_it_is_given():
    computed, given = pieces(cast, (8, 32), (16, 32), (16, 1), problem=ALONE)
    assert [cutting.computes_weight(one.product) for one in (computed, given)] == [True, False]
    assert computed.warm == [True, True]
    assert given.warm == [True, False]
