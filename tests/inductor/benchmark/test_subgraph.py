"""A GEMM is cut out of a graph with what becomes its epilogue, as a graph that computes the same."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb import Problem
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.trial import Untimed

FUSED = Problem.gemm("mm", m=8, n=16, k=32, fusion="pointwise")
ALONE = Problem.gemm("mm", m=8, n=16, k=32)
SCALED = Problem.gemm("int_mm", m=24, n=16, k=32, fusion="scale", out_dtype="fp32")
aten = torch.ops.aten
GEMMS = (aten.mm.default, aten.addmm.default, aten._int_mm.default)


def random(*sizes):
    return [torch.randn(*size) for size in sizes]


def traced(function, given, **options):
    """(the graph of `function` on fake tensors like `given`, the places of its nodes, its GEMMs)."""
    graph = make_fx(function, tracing_mode="fake", **options)(*given).graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    return graph, places, [node for node in graph.nodes if node.target in GEMMS]


def pieces(function, *sizes, problem=FUSED):
    _, places, gemms = traced(function, random(*sizes))
    return [cutting.cut(node, problem, places) for node in gemms]


def operators(piece):
    return [node.target.overloadpacket.__name__ for node in piece.nodes]


class Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps the value of each node."""

    def __init__(self, graph):
        super().__init__(torch.fx.GraphModule({}, graph))
        self.values = {}

    def run_node(self, node):
        self.values[node.name] = super().run_node(node)
        return self.values[node.name]


def check_copy(graph, piece, given):
    """The copy of a piece computes what the graph computes."""
    recorder = Recorder(graph)
    recorder.run(*given)
    copy, new = piece.copies()
    assert new[piece.gemm].target in GEMMS
    found = copy(*(recorder.values[node.name] for node in piece.inputs))
    assert len(found) == len(piece.results)
    for one, node in zip(found, piece.results, strict=True):
        assert torch.equal(one, recorder.values[node.name])


def chain(a, w, gate):
    out = (torch.mm(a, w).view(2, 4, 16).relu() * gate).sum(-1)
    return out, gate.exp()


def scaled_rows(a, w, rows):
    """Others see the scale expanded, too."""
    product, wide = torch.mm(a, w), rows.expand(8, 16)
    return product * torch.ops.prims.convert_element_type.default(wide, torch.float32), wide.exp()


def several_results(a, w):
    """The kernels of the sums compute what only they read."""
    product = torch.mm(a, w)
    return product.relu().tanh(), product.sum(), product.neg().exp().sum()


def another_order(a, w, gate):
    return (torch.mm(a, w) * gate.sigmoid()).view(2, 4, 16).permute(1, 0, 2).contiguous()


def normalised(a, w):
    """The divisor depends on the GEMM by a reduction."""
    product = torch.mm(a, w)
    return product / product.sum(-1, keepdim=True)


def normed_int8(a, w, rows, columns):
    """The scales are part of it whatever follows."""
    product = torch._int_mm(a, w) * rows * columns
    return product * product.square().mean(-1, keepdim=True).rsqrt()


PAIR = random((8, 32), (32, 16))
GATED = [*PAIR, torch.randn(2, 4, 16)]
INT8 = [torch.randint(-9, 9, size, dtype=torch.int8) for size in ((24, 32), (32, 16))]
CASES = {
    "epilogue": (chain, GATED, FUSED, "mm view relu mul", ["mul"]),
    "alone": (chain, GATED, ALONE, "mm", ["mm"]),
    "scale": (scaled_rows, [*PAIR, torch.randn(8, 1)], FUSED, "mm expand convert_element_type mul", ["mul"]),
    "several results": (several_results, PAIR, FUSED, "mm relu tanh", ["mm", "tanh"]),
    "order": (another_order, [*PAIR, torch.randn(8, 16)], FUSED, "mm sigmoid mul view permute clone", ["clone"]),
    "reduction": (normalised, PAIR, FUSED, "mm div", ["mm", "div"]),
    "int8": (normed_int8, [*INT8, torch.rand(24, 1), torch.rand(16)], SCALED, "_int_mm mul mul", ["mul_1"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_the_epilogue_is_cut_out_and_computes_the_same(name):
    function, given, problem, nodes, results = CASES[name]
    graph, places, (gemm,) = traced(function, given)
    piece = cutting.cut(gemm, problem, places)
    assert " ".join(operators(piece)) == nodes
    assert [node.name for node in piece.results] == results
    # A value that the rest of the graph computes is an input.
    sizes = [tuple(one.shape) for one in given] if nodes != "mm" else [(8, 32), (32, 16)]
    assert [tuple(fake.shape) for fake in piece.fakes] == (sizes if name != "reduction" else [*sizes, (8, 1)])
    check_copy(graph, piece, given)


def test_a_long_epilogue_is_cut_short():
    def long(a, w):
        out = torch.mm(a, w)
        for _ in range(100):
            out = out.sin()
        return out

    (piece,) = pieces(long, (8, 32), (32, 16))
    assert cutting.MAX_NODES <= len(piece.nodes) <= cutting.MAX_NODES + 1
    assert len(piece.results) == 1


def test_the_same_layer_twice_has_one_text():
    def twice(a, w1, b1, w2, b2, w3):
        return (torch.mm(a, w1) + b1).relu(), (torch.mm(a, w2) + b2).relu(), (torch.mm(a, w3) + b1).tanh()

    first, second, third = pieces(twice, (8, 32), (32, 16), (16,), (32, 16), (16,), (32, 16))
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


def test_activations_are_warm_and_weights_and_biases_are_cold():
    def two(x, w, v, b):
        return torch.mm(torch.mm(x, w).tanh(), v.t()) + b

    first, second = pieces(two, (8, 32), (32, 16), (12, 16), (12,))
    assert first.warm == [True, False]
    assert second.warm == [True, False, False]
    (piece,) = pieces(lambda c, x, w: torch.addmm(c, x.exp(), w), (16,), (8, 32), (32, 16), problem=ALONE)
    assert dict(zip([node.name for node in piece.inputs], piece.warm, strict=True)) == {
        "c_1": False, "exp": True, "w_1": False,
    }  # fmt: skip
    assert (piece.device, piece.outputs) == (torch.device("cpu"), 8 * 16 * 4)


def test_a_weight_that_the_graph_computes_is_told_from_one_that_it_is_given():
    def cast(a, w, scale):
        return torch.mm(a, (w * scale).t()), torch.mm(a, w.t())

    computed, given = pieces(cast, (8, 32), (16, 32), (16, 1), problem=ALONE)
    assert [cutting.computes_weight(one.gemm) for one in (computed, given)] == [True, False]
    assert [computed.warm, given.warm] == [[True, True], [True, False]]


def test_symbolic_sizes_are_not_cut():
    graph = make_fx(torch.mm, tracing_mode="symbolic")(*PAIR).graph
    (gemm,) = [node for node in graph.nodes if node.target in GEMMS]
    with pytest.raises(Untimed, match="symbolic"):
        cutting.cut(gemm, ALONE, {node: place for place, node in enumerate(graph.nodes)})


def test_a_constant_is_one_in_the_copy():
    given, weight = PAIR
    graph, places, (gemm,) = traced(lambda a: torch.mm(a, weight).relu(), [given], _allow_non_fake_inputs=True)
    for node in graph.find_nodes(op="get_attr", target="_tensor_constant0"):
        node.meta["val"] = FakeTensorMode().from_tensor(weight)
    piece = cutting.cut(gemm, FUSED, places)
    copy, _ = piece.copies()
    assert torch.equal(copy(given)[0], torch.mm(given, weight).relu())
    assert len(piece.fakes) == 1


def test_several_gemms_are_cut_out_with_what_lies_between_them():
    def gated(a, gate, up):
        return torch.nn.functional.silu(torch.mm(a, gate).view(2, 4, 16)) * torch.mm(a, up).view(2, 4, 16), a.sum()

    given = random((8, 32), (32, 16), (32, 16))
    graph, places, (first, second) = traced(gated, given)
    piece = cutting.cut_all([(first, ALONE), (second, FUSED)], places)
    assert [tuple(fake.shape) for fake in piece.fakes] == [(8, 32), (32, 16), (32, 16)]
    assert len(piece.results) == 1
    check_copy(graph, piece, given)


def test_several_gemms_with_something_else_between_them_are_not_cut_out():
    def reduced(a, gate, up):
        return torch.mm(a, gate).sum(-1, keepdim=True) * torch.mm(a, up).relu()

    _, places, (first, second) = traced(reduced, random((8, 32), (32, 16), (32, 16)))
    with pytest.raises(Untimed, match="between the GEMMs"):
        cutting.cut_all([(first, ALONE), (second, FUSED)], places)


def test_the_order_of_the_graph_and_kinds_of_views_change_nothing():
    """Inductor's passes move operators, and make reshapes of views."""

    def branches(a, w, one, two):
        product = torch.mm(a, w)
        return (product.relu() * one).view(4, 32), product.sigmoid() * two

    given = random((8, 32), (32, 16), (8, 16), (8, 16))
    graph, places, (gemm,) = traced(branches, given)
    piece = cutting.cut(gemm, FUSED, places)
    other, _, (gemm,) = traced(branches, given)
    for node in other.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    relu, sigmoid = (
        other.find_nodes(op="call_function", target=target)[0] for target in (aten.relu.default, aten.sigmoid.default)
    )
    relu.prepend(sigmoid)
    moved = cutting.cut(gemm, FUSED, {node: place for place, node in enumerate(other.nodes)})
    assert [node.name for node in moved.nodes] != [node.name for node in piece.nodes]
    assert moved.text == piece.text
    assert [node.name for node in moved.results] == [node.name for node in piece.results]
    assert len(piece.results) == 2
    check_copy(graph, piece, given)
    check_copy(other, moved, given)
