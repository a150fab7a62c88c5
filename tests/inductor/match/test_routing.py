"""The routing of experts: cheaper operators around their grouped GEMMs, and the same results."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from kit.gemm_programs import rand
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import silu

import gemmdb.inductor
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import ops, routing

aten = torch.ops.aten
EXPERTS, HIDDEN = 20, 16
UP, DOWN = rand(EXPERTS, HIDDEN, 32) / 4, rand(EXPERTS, 16, HIDDEN) / 4


def layer(x: Any, shares: Any, chosen: Any) -> Any:
    """Experts as transformers spells them."""
    numbers, order = chosen.flatten().sort()
    ends = torch.histc(numbers.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    gate, up = torch._grouped_mm(x[order // chosen.shape[1]], UP, offs=ends).chunk(2, dim=-1)
    out = torch._grouped_mm((silu(gate) * up).to(x.dtype), DOWN, offs=ends) * shares.flatten()[order, None]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return out[place].view(len(x), -1, x.shape[1]).sum(1)


def inputs(tokens: int = 12, top: int = 8) -> tuple[Any, ...]:
    scores = torch.rand(tokens, EXPERTS)
    return rand(tokens, HIDDEN), scores[:, :top].to(torch.bfloat16), scores.topk(top).indices


def graph_of(function: Any, *given: Any) -> Any:
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)


def targets(graph: Any) -> set[Any]:
    return {node.target for node in graph.graph.nodes}


def rewritten(function: Any, *given: Any) -> Any:
    graph = graph_of(function, *given)
    routing.rewrite(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


@pytest.mark.parametrize(("tokens", "top"), [(1, 8), (12, 8), (70, 16)])
def test_a_layer_gives_the_same_results(tokens, top, kit):
    given = inputs(tokens, top)
    graph = rewritten(layer, *given)
    assert aten.histc.default not in targets(graph)
    assert aten.cumsum.default not in targets(graph)
    assert ops.overload("short_sum") in targets(graph)
    assert aten.sum.dim_IntList not in targets(graph)
    (sort,) = graph.graph.find_nodes(op="call_function", target=aten.sort.default)
    assert sort.args[0].meta["val"].dtype is torch.uint8
    kit.close(graph(*given), layer(*given))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_compiles(dynamic, kit, tmp_path):
    given = inputs()
    compiled = torch.compile(layer, backend="gemmdb", dynamic=dynamic)
    kit.close(compiled(*given), layer(*given))
    assert not gemmdb.inductor.stats()["errors"]


def _ends(numbers: Any, bins: int = EXPERTS, least: int = 0, most: int = EXPERTS - 1) -> Any:
    return torch.histc(numbers, bins, least, most).cumsum(0, dtype=torch.int32)


def grouped(rows: int) -> Any:
    """A grouped GEMM, without which a graph has no experts."""
    return torch._grouped_mm(rand(rows, 16), DOWN, offs=torch.full((EXPERTS,), rows, dtype=torch.int32))


@given(
    experts=st.sampled_from((2, 7, 254, 255, 256, 300)),
    chosen=st.lists(st.integers(-3, 310), min_size=1, max_size=60),
    wide=st.booleans(),
)
def test_order_numbers_and_ends_are_those_of_the_program(experts, chosen, wide):
    """With ids out of range, too, which some programs give to tokens of other ranks."""

    def program(chosen: Any) -> Any:
        numbers, order = chosen.sort()
        return numbers * 1, order, _ends(numbers.float(), experts, 0, experts - 1), grouped(len(chosen))

    given = torch.tensor(chosen, dtype=torch.int64 if wide else torch.int32)
    graph = rewritten(program, given)
    assert aten.histc.default not in targets(graph)
    numbers, order, ends, _ = graph(given)
    wanted = program(given)
    assert torch.equal(given[order], numbers)
    assert sorted(order.tolist()) == list(range(len(chosen)))
    kept = torch.clamp(numbers, -1, experts)
    assert torch.equal(kept, torch.clamp(wanted[0], -1, experts))  # Ids out of range may change places.
    assert torch.equal(ends, wanted[2])
    assert ends.dtype is torch.int32


def argsorted(chosen: Any) -> Any:
    flat = chosen.reshape(-1)
    order = torch.argsort(flat)
    ends = torch.histc(flat[order].float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    return order, ends, grouped(len(flat))


def test_argsort_is_narrowed_too():
    chosen = inputs()[2]
    graph = rewritten(argsorted, chosen)
    assert aten.histc.default not in targets(graph)
    order, ends, _ = graph(chosen)
    assert torch.equal(ends, argsorted(chosen)[1])
    assert torch.equal(chosen.flatten()[order], chosen.flatten().sort()[0])


OTHERS = {
    "falling": lambda chosen: _ends(chosen.sort(descending=True)[0].float()),
    "rows": lambda chosen: chosen.view(2, -1).sort()[1],
    "without counts": lambda chosen: chosen.sort(),
    "other bins": lambda chosen: _ends(chosen.sort()[0].float(), most=EXPERTS),
    "from 1": lambda chosen: _ends(chosen.sort()[0].float(), least=1, most=EXPERTS),
    "floats": lambda chosen: _ends(chosen.float().sort()[0]),
    "two numbers of experts": lambda chosen: [
        _ends(numbers.float(), n, 0, n - 1) for numbers in [chosen.sort()[0]] for n in (4, 5)
    ],
    "a cast to fewer bits": lambda chosen: _ends(chosen.sort()[0].to(torch.uint8).float()),
    "ids that must be sorted": lambda chosen: [
        (_ends(ids.float()), torch.searchsorted(ids, torch.tensor([3, 9]))) for ids in [chosen.sort()[0]]
    ],
    "sorted ids that are returned": lambda chosen: [(ids, _ends(ids.float())) for ids in [chosen.sort()[0]]],
    "counts only": lambda chosen: torch.histc(chosen.sort()[0].float(), EXPERTS, 0, EXPERTS - 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sorts_stay(name):
    def program(chosen: Any) -> Any:
        found = OTHERS[name](chosen)
        return found, grouped(len(chosen))

    chosen = torch.randint(0, EXPERTS, (32,))
    before = [node.target for node in graph_of(program, chosen).graph.nodes]
    assert [node.target for node in rewritten(program, chosen).graph.nodes] == before


SUMS = {
    "few": lambda out: out.view(-1, 4, HIDDEN).sum(1),
    "many": lambda out: out.view(-1, 32, HIDDEN).sum(1),
    "another dimension": lambda out: out.view(-1, 8, HIDDEN).sum(2),
    "kept dimension": lambda out: out.view(-1, 8, HIDDEN).sum(1, keepdim=True),
    "after an activation": lambda out: silu(out.view(-1, 8, HIDDEN)).sum(1),
    "of other rows": lambda out: torch.ones(4, 8, HIDDEN).sum(1) + out[0],
}


@pytest.mark.parametrize("name", SUMS)
def test_other_sums_stay(name):
    offs = torch.full((EXPERTS,), 32, dtype=torch.int32)
    graph = rewritten(lambda x: SUMS[name](torch._grouped_mm(x, DOWN, offs=offs)), rand(32, 16))
    assert ops.overload("short_sum") not in targets(graph)


def test_a_sum_keeps_the_dtype_that_the_program_asks_for():
    offs = torch.full((EXPERTS,), 32, dtype=torch.int32)

    def program(x: Any) -> Any:
        return torch._grouped_mm(x, DOWN, offs=offs).view(-1, 8, HIDDEN).sum(1, dtype=torch.float32)

    x = rand(32, 16)
    graph = rewritten(program, x)
    assert ops.overload("short_sum") in targets(graph)
    assert graph(x).dtype is torch.float32
    assert torch.allclose(graph(x), program(x))


def test_graphs_without_experts_stay():
    def program(chosen: Any) -> Any:
        return _ends(chosen.sort()[0].float())

    chosen = torch.randint(0, EXPERTS, (32,))
    assert aten.histc.default in targets(rewritten(program, chosen))


def test_the_sum_is_pointwise_code():
    """Inductor would make a reduction of eight."""
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x))
    layout = ir.FixedLayout(torch.device("cpu"), torch.bfloat16, [6, 8, 16], [128, 16, 1])
    with V.set_graph_handler(graph):
        graph.graph_inputs["rows"] = ir.InputBuffer(name="rows", layout=layout)
        rows = ir.TensorBox(ir.StorageBox(graph.graph_inputs["rows"]))
        ours = state.unrolled_sum(rows, 1, torch.bfloat16)
        plain = state.lowering_of(aten.sum.dim_IntList)(rows, [1])
    assert isinstance(ours.data.data, ir.Pointwise)
    assert not isinstance(plain.data.data, ir.Pointwise)
    assert (list(ours.get_size()), ours.get_dtype()) == ([6, 16], torch.bfloat16)


def test_ids_that_index_and_mask_are_read_in_the_order_of_the_rows():
    """As a bias of each expert, and the mask of tokens of other ranks."""
    bias = rand(EXPERTS + 1, 4)

    def program(chosen):
        ids, order = chosen.sort()
        return order, bias[ids], ids >= EXPERTS, _ends(ids.float()), grouped(len(chosen))

    chosen = torch.randint(0, EXPERTS + 1, (40,))
    graph = rewritten(program, chosen)
    assert aten.histc.default not in targets(graph)
    order, rows, masked, ends, _ = graph(chosen)
    assert torch.equal(rows, bias[chosen[order]])
    assert torch.equal(masked, chosen[order] >= EXPERTS)
    assert torch.equal(ends, program(chosen)[3])
