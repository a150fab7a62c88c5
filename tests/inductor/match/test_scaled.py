"""An integer GEMM and the scale that follows it, taken together in the graph."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb.inductor.match import int_mm_scale, ops

A, B = (torch.randint(-9, 9, size, dtype=torch.int8) for size in ((16, 32), (32, 24)))
VECTOR, ROWS = torch.rand(24), torch.rand(16)


@pytest.fixture(scope="module", autouse=True)
def operators():
    ops.overload("mixed_mm")


def graph_of(function, *inputs, tracing_mode="fake"):
    graph = make_fx(function, tracing_mode=tracing_mode)(*inputs)
    for node in graph.graph.nodes:
        node.meta.setdefault("val", None)
    return graph


def cast(x, dtype):
    return torch.ops.prims.convert_element_type.default(x, dtype)


CHAINS = {
    "vector": lambda a, b, s, r: torch._int_mm(a, b) * s,
    "scale first, cast after": lambda a, b, s, r: cast(s * torch._int_mm(a, b), torch.bfloat16),
    "cast before": lambda a, b, s, r: cast(torch._int_mm(a, b), torch.float32) * s,
    "one number": lambda a, b, s, r: torch._int_mm(a, b) * s[0],
    "row of one": lambda a, b, s, r: torch._int_mm(a, b) * s[None, :],
    "three dimensions": lambda a, b, s, r: cast(torch._int_mm(a, b).reshape(2, 8, 24) * s, torch.float16),
    "rows": lambda a, b, s, r: torch._int_mm(a, b) * r[:, None],
    "columns and rows": lambda a, b, s, r: torch._int_mm(a, b) * s * r[:, None],
    "rows and columns": lambda a, b, s, r: cast(cast(torch._int_mm(a, b), torch.float32) * r[:, None] * s, torch.half),
    "expanded rows": lambda a, b, s, r: torch._int_mm(a, b) * r[:, None].expand(16, 24) * s,
    "wider rows": lambda a, b, s, r: (
        torch._int_mm(a, b) * cast(cast(r, torch.bfloat16)[:, None].expand(16, 24), torch.float32) * s
    ),
    "rows of sequences": lambda a, b, s, r: torch._int_mm(a, b).view(2, 8, 24) * r.view(2, 8, 1) * s,
    "two numbers": lambda a, b, s, r: torch._int_mm(a, b) * s[0] * s[1],
    "a number and columns": lambda a, b, s, r: torch._int_mm(a, b) * s[0] * s,
    "a bias": lambda a, b, s, r: torch._int_mm(a, b) * r[:, None] + s,
    "a number as the bias": lambda a, b, s, r: s[0] + torch._int_mm(a, b) * s,
    "rows and a number": lambda a, b, s, r: torch._int_mm(a, b) * r[:, None] * s[0],
}
ROUNDED = {
    "torchao": lambda a, b, s, r: cast(cast(torch._int_mm(a, b) * r[:, None], torch.bfloat16) * s, torch.bfloat16),
    "with a zero point": lambda a, b, s, r: cast(torch._int_mm(a, b) * r[:, None], torch.bfloat16) - s.bfloat16() * s,
    "with a bias": lambda a, b, s, r: cast(
        cast(cast(torch._int_mm(a, b) * r[:, None], torch.bfloat16) * s, torch.float32).view(2, 8, 24) + s,
        torch.bfloat16,
    ),
    "with a narrower bias": lambda a, b, s, r: cast(
        cast(torch._int_mm(a, b) * r[:, None], torch.bfloat16) * s + cast(s, torch.bfloat16), torch.bfloat16
    ),
}
"""Those that round in between."""


@pytest.mark.parametrize("chain", [*CHAINS.values(), *ROUNDED.values()], ids=[*CHAINS, *ROUNDED])
def test_an_integer_gemm_and_its_scales_become_one_node(chain):
    graph = graph_of(chain, A, B, VECTOR, ROWS)
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default)
    new = int_mm_scale.absorb(node)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    assert [n for n in graph.graph.nodes if n.target is ops.overload("int_mm_scaled")] == [new]
    assert not [n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default]
    wanted = chain(A, B, VECTOR, ROWS)
    rounded = chain in ROUNDED.values()
    assert new.meta["val"].dtype == (torch.bfloat16 if rounded else wanted.dtype)
    close = {"rtol": 2**-6, "atol": 2**-6 * wanted.abs().max().item()} if rounded else {}
    torch.testing.assert_close(graph(A, B, VECTOR, ROWS), wanted, **close)


def test_a_cast_of_what_a_kernel_reads_is_no_kernel_of_its_own():
    graph = graph_of(ROUNDED["with a narrower bias"], A, B, VECTOR, ROWS)
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default)
    new = int_mm_scale.absorb(node)
    assert [n.op for n in (new.args[2], new.args[5])] == ["placeholder", "placeholder"]


def batched(a, b, s):
    return cast(torch._int_mm(a.view(-1, 32), b).view(a.shape[0], a.shape[1], -1) * s, torch.bfloat16)


def test_activations_of_three_dimensions_may_have_any_sizes():
    """As linears of int8 weights and activations are written; the views then take symbols besides the GEMM."""
    graph = graph_of(batched, A.view(2, 8, 32), B, VECTOR, tracing_mode="symbolic")
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default)
    assert int_mm_scale.absorb(node) is not None
    graph.graph.eliminate_dead_code()
    assert not [n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default]


@pytest.mark.filterwarnings("error:Raw SymInt")
def test_inductor_lowers_them_for_all_sizes(kit, monkeypatch):
    monkeypatch.setattr(int_mm_scale, "scales_in_kernel", lambda config, problem: True)
    refused = gemmdb.inductor.force(kit.INT8PACK)
    with torch.no_grad(), refused:
        run = torch.compile(batched)
        for size in (2, 3):
            a = torch.randint(-9, 9, (size, 8, 32), dtype=torch.int8)
            torch._dynamo.mark_dynamic(a, 0)
            torch.testing.assert_close(run(a, B, VECTOR), batched(a, B, VECTOR))
    stats = gemmdb.inductor.stats()
    assert stats["errors"] == []
    (product,) = stats["products"]
    assert " fusion=scale " in product["problem"]
    assert "m" in product["ranges"]
    assert "the scale is not a tensor" not in product["note"]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, s, r: torch._int_mm(a, b) * 0.5,
        lambda a, b, s, r: torch._int_mm(a, b).view(2, 8, 24) * r[:8, None],
        lambda a, b, s, r: torch._int_mm(a, b).view(16, 2, 12) * s[:2, None],
        lambda a, b, s, r: (lambda c: c * s + c)(torch._int_mm(a, b)),
        lambda a, b, s, r: torch._int_mm(a, b) * (s * 9).to(torch.int32),
    ],
    ids=["a Python number", "one per row of a part", "one per part of a row", "used twice", "an integer scale"],
)
def test_anything_else_is_left_alone(function):
    graph = graph_of(function, A, B, VECTOR, ROWS)
    before = str(graph.graph)
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default)
    assert int_mm_scale.absorb(node) is None
    assert str(graph.graph) == before


def test_a_number_that_is_on_the_cpu_scales_no_gemm_of_a_gpu():
    with FakeTensorMode():
        a, b = (torch.empty(size, dtype=torch.int8, device="cuda") for size in ((32, 64), (64, 24)))
        traced = {
            device: make_fx(lambda a, b, s: torch._int_mm(a, b) * s)(a, b, torch.empty((), device=device))
            for device in ("cpu", "cuda")
        }
    for device, graph in traced.items():
        (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten._int_mm.default)
        assert (int_mm_scale.find(node) is None) == (device == "cpu")
        assert (int_mm_scale.absorb(node) is None) == (device == "cpu")


@pytest.mark.parametrize("columns", [VECTOR, None])
@pytest.mark.parametrize("rows", [ROWS, None])
@pytest.mark.parametrize("bias", [VECTOR, None])
def test_the_operator_of_its_own(rows, columns, bias):
    result = torch.ops.gemmdb.int_mm_scaled(A, B, columns, torch.bfloat16, rows, bias)
    factors = (torch.ones(24) if columns is None else columns) * (torch.ones(16) if rows is None else rows)[:, None]
    torch.testing.assert_close(result, (torch._int_mm(A, B) * factors + (0 if bias is None else bias)).bfloat16())
    torch.library.opcheck(
        ops.overload("int_mm_scaled"), (A, B, columns, torch.bfloat16, rows, bias), test_utils="test_faketensor"
    )
