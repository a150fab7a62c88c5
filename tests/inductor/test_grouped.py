"""GEMMs of groups in real compiles: mixtures of experts, their backward, and what a CPU lacks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gemm_programs import placeholders, rand
from kit.gpu import make
from torch.nn.functional import silu

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.inductor import force
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.match import gemms
from gemmdb.key.problem import Query
from gemmdb.settings import Policy

GROUPS, ROWS = 4, 16
X, W, OFFS = rand(ROWS, 32), rand(GROUPS, 64, 32), torch.tensor((3, 3, 9, 16), dtype=torch.int32)


def linear(x: Any, w: Any, offs: Any) -> Any:
    """Experts with weights [N, K]."""
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


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


def test_the_experts_of_a_mixture_are_two_gemms(kit):
    inputs = rand(6, 32), torch.tensor([[0, 1], [0, 3], [3, 1], [1, 0], [0, 1], [3, 0]]), torch.rand(6, 2).bfloat16()
    stats = kit.forced(None, Experts(), *inputs)
    assert sorted(text.partition(" a=")[0] for text in kit.problems(stats)) == [
        "grouped_mm m=12 n=32 k=48", "grouped_mm m=12 n=96 k=32",
    ]  # fmt: skip
    assert stats["uncovered"] == {}


@pytest.mark.parametrize(("model", "w"), [(linear, W), (torch._grouped_mm, rand(GROUPS, 32, 64))], ids=["nt", "nn"])
def test_the_backward_is_a_gemm_of_each_kind(kit, model, w):
    x, w = X.clone().requires_grad_(), w.clone().requires_grad_()
    with force(kit.left_alone):
        kit.compiled(lambda *given: model(*given), x, w, OFFS).float().square().sum().backward()
    grads = x.grad, w.grad
    x.grad = w.grad = None
    model(x, w, OFFS).float().square().sum().backward()
    for found, wanted in zip(grads, (x.grad, w.grad), strict=True):
        kit.close(found, wanted)
    assert sorted(text.rpartition(" ")[2] for text in kit.problems()) == ["ragged=k", "ragged=m", "ragged=m"]
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_another_number_of_groups_is_another_problem(kit, table):
    path = table({Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=5).text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="aten")
    assert kit.only(kit.checked(linear, X, W, OFFS))["rung"] == "aten"


@pytest.mark.parametrize("kernel", ["grouped", "tile"])
def test_a_kernel_that_a_cpu_lacks_leaves_the_gemm_to_aten(kit, kernel):
    entry = kit.only(kit.forced(make(kernel), linear, X, W, OFFS))
    assert entry["config"] == kit.ATEN.text
    assert "does not solve grouped_mm on cpu" in entry["note"]


def test_a_bias_and_other_offsets_are_no_problem():
    """torch itself refuses them today, before any graph."""
    graph, nodes = placeholders(a=X, b=W.mT, offs=OFFS, wide=OFFS.long(), bias=rand(64))
    call = torch.ops.aten._grouped_mm.default
    for arguments, reason in (
        (("a", "b", "offs", "bias"), "a bias"),
        (("a", "b", "wide"), "offsets of torch.int64"),
        (("a", "b"), "no offsets"),
    ):  # fmt: skip
        node = graph.call_function(call, tuple(nodes[name] for name in arguments))
        node.meta["val"] = rand(16, 64)
        with pytest.raises(gemms.Unsupported, match=reason):
            gemms.read(node)


def test_what_transformers_calls_for_other_dtypes_is_counted(kit):
    """torch compiles GEMMs of groups of bf16 alone."""
    pytest.importorskip("transformers")
    moe = pytest.importorskip("transformers.integrations.moe")
    if not hasattr(moe, "_grouped_mm_fallback"):
        pytest.skip("this transformers has no such operator")

    def model(x: Any, w: Any, offs: Any) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(x, w, offs)

    stats = kit.forced(None, model, X.half(), W.mT.contiguous().half(), OFFS)
    assert stats["uncovered"] == {"grouped_mm in a dtype that torch does not compile": 1}


def test_no_trial_stands_for_every_split():
    problem = Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=4)
    reason = str(rules.confirm_rejection(Query(problem, H200, {}), Policy(confirm=True)))
    assert reason == "how its groups are divided is known when the program runs"
