"""Products of groups in real compiles: the spellings of programs, their backward, what is no problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import make
from kit.products import rand
from torch.nn.functional import silu

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.inductor import force
from gemmdb.inductor.benchmark import confirm_rules as rules
from gemmdb.inductor.match import products
from gemmdb.key.problem import Query
from gemmdb.settings import Policy

NOTHING: Callable[[Problem], None] = lambda problem: None  # noqa: E731
GROUPS, ROWS = 4, 16


def ends(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


X, W, OFFS = rand(ROWS, 32), rand(GROUPS, 64, 32), ends(3, 3, 9, 16)


def linear(x: Any, w: Any, offs: Any) -> Any:
    """Experts with weights [N, K]."""
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


def plain(x: Any, w: Any, offs: Any) -> Any:
    """Experts with weights [K, N]."""
    return torch._grouped_mm(x, w, offs)


def gradient(x: Any, y: Any, offs: Any) -> Any:
    return torch._grouped_mm(x.t(), y, offs=offs)


ROWS_OF = "grouped_mm m=16 n=64 k=32 "
SPELLINGS = {
    "weights as a linear's": (linear, (X, W, OFFS), ROWS_OF, "a=bf16:row:8 b=bf16:col:8 fusion=none groups=4 ragged=m"),
    "weights as stored": (plain, (X, rand(GROUPS, 32, 64), OFFS), ROWS_OF, "b=bf16:row:8 groups=4 ragged=m"),
    "padded rows": (lambda x, w, o: linear(x[:, :32], w, o), (rand(ROWS, 48), W, OFFS), ROWS_OF, "a=bf16:row-padded:8"),
    "an epilogue": (lambda *x: torch.relu(linear(*x)), (X, W, OFFS), ROWS_OF, "fusion=pointwise"),
    "one group": (linear, (X, W[:1], ends(16)), ROWS_OF, "groups=1 ragged=m"),
    "a gradient of weights": (gradient, (X, rand(ROWS, 64), OFFS), "grouped_mm m=32 n=64 k=16 ",
                              "a=bf16:col:8 b=bf16:row:8 groups=4 ragged=k"),
}  # fmt: skip
if hasattr(torch.nn.functional, "grouped_mm"):
    SPELLINGS["the public function"] = (
        lambda x, w, o: torch.nn.functional.grouped_mm(x, w.mT, offs=o), (X, W, OFFS), ROWS_OF, "groups=4 ragged=m"
    )  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_product_is_a_problem_and_a_miss_is_atens(kit, name):
    model, inputs, head, fields = SPELLINGS[name]
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    (text,) = kit.problems(stats)
    assert text.startswith(head)
    assert {*fields.split()} <= {*text.split()}
    assert (stats["hits"], stats["misses"], stats["uncovered"], stats["errors"]) == (0, 1, {}, [])


class Experts(torch.nn.Module):
    """A mixture of experts, spelled as transformers does for `experts_implementation="grouped_mm"`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(rand(GROUPS, 2 * 48, 32) / 8)
        self.down = torch.nn.Parameter(rand(GROUPS, 32, 48) / 8)

    def forward(self, x: Any, chosen: Any, weights: Any) -> Any:
        tokens, top = chosen.shape
        order = torch.argsort(chosen.reshape(-1))
        token, experts = torch.arange(tokens).repeat_interleave(top)[order], chosen.reshape(-1)[order]
        offs = torch.cumsum(torch.histc(experts.float(), bins=GROUPS, min=0, max=GROUPS - 1), 0, dtype=torch.int32)
        gate, up = linear(x[token], self.gate_up, offs).chunk(2, dim=-1)
        out = linear(silu(gate) * up, self.down, offs) * weights.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, token, out.to(x.dtype))


def test_the_experts_of_a_mixture_are_two_products(kit):
    model = Experts()
    inputs = rand(6, 32), torch.tensor([[0, 1], [0, 3], [3, 1], [1, 0], [0, 1], [3, 0]]), torch.rand(6, 2).bfloat16()
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    assert sorted(text.partition(" a=")[0] for text in kit.problems()) == [
        "grouped_mm m=12 n=32 k=48", "grouped_mm m=12 n=96 k=32",
    ]  # fmt: skip
    assert gemmdb.inductor.stats()["uncovered"] == {}


@pytest.mark.parametrize(("model", "w"), [(linear, W), (plain, rand(GROUPS, 32, 64))], ids=["nt", "nn"])
def test_the_backward_is_a_product_of_each_kind(kit, model, w):
    x, w = X.clone().requires_grad_(), w.clone().requires_grad_()
    with force(NOTHING):
        kit.compiled(model, x, w, OFFS).float().square().sum().backward()
    grads = x.grad, w.grad
    x.grad = w.grad = None
    model(x, w, OFFS).float().square().sum().backward()
    for found, wanted in zip(grads, (x.grad, w.grad), strict=True):
        kit.close(found, wanted)
    texts = kit.problems()
    assert len(texts) == 3
    assert sorted(text.rpartition(" ")[2] for text in texts) == ["ragged=k", "ragged=m", "ragged=m"]
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_a_table_answers_with_aten(kit, table):
    problem = Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=4)
    path = table({problem.text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with torch.no_grad():
        kit.close(kit.compiled(linear, X, W, OFFS), linear(X, W, OFFS))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["problem"], entry["rung"], entry["config"]) == (problem.text, "exact", kit.ATEN.text)


def test_another_number_of_groups_is_another_problem(kit, table):
    path = table({Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=5).text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="aten")
    with torch.no_grad():
        kit.compiled(linear, X, W, OFFS)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["rung"] == "aten"


@pytest.mark.parametrize("kernel", ["grouped", "tile"])
def test_a_kernel_that_a_cpu_lacks_leaves_the_product_to_aten(kit, kernel):
    with torch.no_grad(), force(make(kernel)):
        kit.close(kit.compiled(linear, X, W, OFFS), linear(X, W, OFFS))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["config"] == kit.ATEN.text
    assert "does not solve grouped_mm on cpu" in entry["note"]


def test_a_symbolic_number_of_rows_has_a_range(kit):
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(linear, x, W, OFFS), linear(x, W, OFFS))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["ranges"] == {"m": [2, None]}


UNCOVERED = {
    "a batch": (lambda a, b: torch._grouped_mm(a, b), (rand(4, 8, 32), rand(4, 32, 64)),
                "all groups have one size, as in a bmm"),
    "columns": (lambda a, b, o: torch._grouped_mm(a, b, offs=o), (rand(4, 8, 32), rand(32, 16), OFFS),
                "the groups divide the columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_no_problem_is_counted_as_uncovered(kit, name):
    model, inputs, reason = UNCOVERED[name]
    with torch.no_grad(), force(make("grouped")):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    assert (stats["products"], stats["errors"]) == ([], [])
    assert stats["uncovered"] == {f"aten._grouped_mm.default: {reason}": 1}


def test_a_bias_and_other_offsets_are_no_problem():
    """torch itself refuses them today, before any graph."""
    graph = torch.fx.Graph()
    tensors = {"a": X, "b": W.mT, "offs": OFFS, "wide": OFFS.long(), "bias": rand(64)}
    nodes = {name: graph.placeholder(name) for name in tensors}
    for name, node in nodes.items():
        node.meta["val"] = tensors[name]
    call = torch.ops.aten._grouped_mm.default
    for arguments, reason in (
        (("a", "b", "offs", "bias"), "a bias"),
        (("a", "b", "wide"), "offsets of torch.int64"),
        (("a", "b"), "no offsets"),
    ):  # fmt: skip
        node = graph.call_function(call, tuple(nodes[name] for name in arguments))
        node.meta["val"] = rand(16, 64)
        with pytest.raises(products.Unsupported, match=reason):
            products.product(node)


def test_what_transformers_calls_for_other_dtypes_is_counted(kit):
    """torch compiles products of groups of bf16 alone."""
    pytest.importorskip("transformers")
    moe = pytest.importorskip("transformers.integrations.moe")
    if not hasattr(moe, "_grouped_mm_fallback"):
        pytest.skip("this transformers has no such operator")

    def model(x: Any, w: Any, offs: Any) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(x, w, offs)

    inputs = X.half(), W.mT.contiguous().half(), OFFS
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    assert gemmdb.inductor.stats()["uncovered"] == {"grouped_mm in a dtype that torch does not compile": 1}


def test_no_trial_stands_for_every_split():
    problem = Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=4)
    reason = rules.objection(Query(problem, H200, {}), Policy(confirm=True))
    assert reason == "how its groups are divided is known when the program runs"
