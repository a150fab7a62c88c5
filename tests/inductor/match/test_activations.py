"""Activations that a library computes are recognised where they are the whole epilogue, however they are written."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from gemmdb import Config, Problem
from gemmdb.inductor.match import activations, extract, gemms
from gemmdb.kernels import cublaslt
from gemmdb.key.problem import Query
from gemmdb.lookup import lowering

M, N, K = 32, 96, 64
relu, gelu = torch.relu, lambda x: functional.gelu(x, approximate="tanh")
ALGORITHM = dict.fromkeys(cublaslt.MATMUL.params, 0) | {"split_k": 1}


def of_gpt2(x: Any) -> Any:
    """As transformers writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def of_bloom(x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class Model(torch.nn.Module):
    """A program as a module."""

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Any, w: Any, b: Any) -> Any:
        return self.program(x, w, b)


def traced(model: Callable[..., Any]) -> torch.fx.Graph:
    inputs = [torch.randn(*sizes).bfloat16() for sizes in ((M, K), (N, K), (N,))]
    return make_fx(model, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs).graph


def found(model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Query]:
    """The first GEMM of a program, and its query."""
    monkeypatch.setattr(extract, "device", lambda of: H200)
    reads = (gemms.read(node) for node in traced(model).nodes)
    gemm = next(one for one in reads if one is not None)
    return gemm.node, gemm.query


def after(activation: Callable[[Any], Any], linear: Callable[..., Any] = functional.linear) -> Callable[..., Any]:
    """A program that needs the activation's result in memory."""
    return lambda x, w, b: activation(linear(x, w, b)) @ w


def tokens(x: Any, w: Any, b: Any) -> Any:
    return functional.linear(x[None], w, b)


def bare(x: Any, w: Any, b: Any) -> Any:
    return x @ w.t()


def summed(x: Any, w: Any, b: Any) -> Any:
    """The kernel of the sum computes the tanh again, and reads the GEMM's output."""
    y = functional.linear(x, w, b)
    t = torch.tanh(0.7978845608 * (y + 0.044715 * y**3))
    return (0.5 * y * (1 + t)) @ w, t.sum(0)


@pytest.mark.parametrize("linear", [functional.linear, tokens, bare])
@pytest.mark.parametrize(
    ("activation", "name"),
    [(relu, "relu"), (gelu, "gelu_tanh"), (of_gpt2, "gelu_tanh"), (of_bloom, "gelu_tanh")],
)
def test_an_activation_is_recognised(monkeypatch, activation, name, linear):
    assert found(after(activation, linear), monkeypatch)[1].activation == name


@pytest.mark.parametrize(
    "model",
    [
        after(lambda x: x + 1),
        after(lambda x: torch.clamp(x, 0, 6)),
        after(lambda x: relu(x) * 2),
        after(lambda x: relu(x + x)),
        after(functional.gelu),
        after(functional.silu),
        after(torch.tanh),
        after(lambda x: gelu(x) * 1.01),
        after(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))),
        after(lambda x: relu(x).float().to(torch.bfloat16) + x),
        after(lambda x: relu(x.t()).t().contiguous()),
        lambda x, w, b: relu(functional.linear(x, w, b)).float(),
        lambda x, w, b: (lambda y: (y, relu(y) @ w))(functional.linear(x, w, b)),
        lambda x, w, b: torch.softmax(relu(functional.linear(x, w, b)), -1),
        lambda x, w, b: functional.linear(x, w, b),
        summed,
        after(lambda x: torch.tanh(x**1.5)),
        after(lambda x: torch.tanh(x**400.0)),
    ],
)
def test_other_epilogues_are_none(monkeypatch, model):
    assert found(model, monkeypatch)[1].activation == ""


def test_the_gemm_and_its_activation_become_one_node(monkeypatch):
    node, query = found(after(of_gpt2, tokens), monkeypatch)
    new = activations.absorb(node, "gelu_tanh")
    graph = new.graph
    graph.eliminate_dead_code()
    called = [str(one.target) for one in graph.nodes if one.op == "call_function"]
    assert called.count("gemmdb.mm_activation.default") == 1
    assert not any("tanh.default" in name or "addmm" in name for name in called)
    assert new.meta["val"].shape == (M, N)
    inputs = [torch.randn(*sizes).bfloat16() for sizes in ((M, K), (N, K), (N,))]
    result = torch.fx.GraphModule({}, graph)(*inputs)
    wanted = after(of_gpt2, tokens)(*inputs)
    assert result.shape == wanted.shape
    assert (result - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert query.problem.op == "addmm"


@pytest.mark.filterwarnings("error:Raw SymInt")
@pytest.mark.parametrize("shape", [(-1, N), (2, -1, N)])
def test_a_symbolic_number_of_rows_is_inferred(shape):
    def model(x: Any, w: Any, b: Any) -> Any:
        return relu(functional.linear(x, w, b).view(shape)).view(-1, N) @ w

    inputs = [torch.randn(*sizes).bfloat16() for sizes in ((M, K), (N, K), (N,))]
    rows = 2 * torch.export.Dim("pairs", min=2)
    exported = torch.export.export(Model(model), tuple(inputs), dynamic_shapes=({0: rows}, None, None))
    graph = exported.run_decompositions(select_decomp_table()).graph
    node = next(one for one in graph.nodes if one.target is torch.ops.aten.addmm.default)
    new = activations.absorb(node, "relu")
    assert new.meta["val"].shape[1] == N
    graph.eliminate_dead_code()
    (reshaped,) = [one for one in graph.nodes if one.target is torch.ops.aten.reshape.default]
    assert reshaped.args == (new, list(shape))


def test_another_activation_changes_nothing(monkeypatch):
    node, _ = found(after(relu), monkeypatch)
    before = str(node.graph)
    assert activations.absorb(node, "gelu_tanh") is None
    assert str(node.graph) == before


@pytest.mark.parametrize(("activation", "fusion"), [("relu", "pointwise"), ("gelu_tanh", "pointwise:math")])
def test_a_config_needs_its_activation(activation, fusion):
    config = Config.of("cublaslt", "matmul_activation", activation=activation, **ALGORITHM)
    problem = Problem.gemm("addmm", m=M, n=N, k=K, fusion=fusion)
    assert lowering.rejection(config, Query(problem, H200, activation=activation)) is None
    for other in ("", "gelu_tanh" if activation == "relu" else "relu"):
        assert "alone" in str(lowering.rejection(config, Query(problem, H200, activation=other)))
    for fused in ("none", "pointwise:reads1"):
        bare = Problem.gemm("addmm", m=M, n=N, k=K, fusion=fused)
        assert "the class" in str(lowering.rejection(config, Query(bare, H200, activation=activation)))
