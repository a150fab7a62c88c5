"""The class of a GEMM's epilogue, as torch.compile shows it to the passes."""

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from gemmdb.inductor import force
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.match import epilogues

B, S, HEADS, SIZE = 2, 4, 4, 8
M, K, N = B * S, 64, HEADS * SIZE


def fusions(model, *inputs, **options):
    """The problems of all GEMMs of a model, in a list that its backward adds to, and what the model returns."""
    seen = []
    with force(lambda problem: seen.append(problem)):
        torch._dynamo.reset()
        result = torch.compile(model, **options)(*inputs)
    return seen, result


def words(seen):
    return [problem.fusion for problem in seen]


def heads(y):
    return y.view(B, S, HEADS, SIZE).permute(0, 2, 1, 3)


# Each takes a GEMM y [M, N] and tensors r, g of its size, a vector v over N, and a square matrix q [N, N].
ONE = {
    "relu": (lambda y, r, g, v, q: torch.relu(y) * 3, "pointwise"),
    "number": (lambda y, r, g, v, q: y * 0.125, "pointwise"),
    "vector": (lambda y, r, g, v, q: (y * v).clamp(-1, 1), "pointwise"),
    "square": (lambda y, r, g, v, q: torch.relu(y) ** 2, "pointwise"),
    "GELU": (lambda y, r, g, v, q: functional.gelu(y), "pointwise:math"),
    "GELU by tanh": (lambda y, r, g, v, q: functional.gelu(y, approximate="tanh"), "pointwise:math"),
    "SiLU": (lambda y, r, g, v, q: functional.silu(y), "pointwise:math"),
    "softplus": (lambda y, r, g, v, q: functional.softplus(y), "pointwise:math"),
    "a power": (lambda y, r, g, v, q: y.abs() ** 1.7, "pointwise:math"),
    "residual": (lambda y, r, g, v, q: torch.relu(y) + r, "pointwise:reads1"),
    "SiLU times a gate": (lambda y, r, g, v, q: functional.silu(g) * y, "pointwise:math:reads1"),
    "the gate of a tensor": (lambda y, r, g, v, q: torch.sigmoid(y) * g, "pointwise:math:reads1"),
    "gate and residual": (lambda y, r, g, v, q: y * g + r, "pointwise:reads2"),
    "one tensor twice": (lambda y, r, g, v, q: (torch.relu(y) + r) * r, "pointwise:reads1"),
    "a half of a tensor": (lambda y, r, g, v, q: torch.relu(y) + r[:1], "pointwise"),
    "kept": (lambda y, r, g, v, q: (torch.relu(y), y), "pointwise:kept"),
    "kept for a product": (lambda y, r, g, v, q: (functional.gelu(y), y @ q), "pointwise:math:kept"),
    "two results": (lambda y, r, g, v, q: (torch.relu(y), torch.tanh(y)), "pointwise:math"),
    "scaled heads": (lambda y, r, g, v, q: heads(y * 0.5).contiguous(), "pointwise:permuted"),
    "heads": (lambda y, r, g, v, q: heads(y).contiguous(), "pointwise:permuted"),
    "heads in place": (lambda y, r, g, v, q: heads(y) * 0.5, "pointwise"),
    "transposed": (lambda y, r, g, v, q: torch.relu(y).t().contiguous(), "pointwise:transposed"),
    "a view": (lambda y, r, g, v, q: torch.relu(y.view(B, S, N)), "pointwise"),
    "a wider cast": (lambda y, r, g, v, q: y.double(), "pointwise:fp64"),
    "a cast": (lambda y, r, g, v, q: torch.relu(y).bfloat16(), "pointwise:bf16"),
    "a mask": (lambda y, r, g, v, q: y > 0, "pointwise:int8"),
    "a mask beside": (lambda y, r, g, v, q: (torch.relu(y), y > 0), "pointwise"),
    "between": (lambda y, r, g, v, q: torch.relu(y) @ q, "pointwise"),
    # What the chain waits for is no part of it.
    "a residual around": (lambda y, r, g, v, q: (z := torch.relu(y)) + z @ q, "pointwise"),
    "columns": (lambda y, r, g, v, q: torch.relu(y).sum(0), "none"),
    "columns, and stored": (lambda y, r, g, v, q: ((z := torch.relu(y) * r) @ q, z.sum(0)), "pointwise:reads1"),
    "more elements": (lambda y, r, g, v, q: y.view(1, M, N) + v.view(1, 1, N).expand(3, 1, N), "none"),
    "a part": (lambda y, r, g, v, q: torch.relu(y[:, : N // 2]), "none"),
    "a view alone": (lambda y, r, g, v, q: heads(y), "none"),
    "a norm": (lambda y, r, g, v, q: functional.rms_norm(y + r.exp(), (N,)), "none"),
}  # fmt: skip


def every(names, see):
    """The fusion context of the GEMM of each case, all in one program. Each has its own K. `see` returns the
    problems of a model and its inputs."""
    depths = {name: 40 + 8 * place for place, name in enumerate(names)}
    inputs = [
        (torch.randn(M, k), torch.randn(M, N), torch.randn(M, N), torch.randn(k, N), torch.randn(N), torch.randn(N, N))
        for k in depths.values()
    ]  # fmt: skip

    def model(*tensors):
        given = zip(names, batched(tensors, 6), strict=True)
        return [ONE[name][0](x @ w, r, g, v, q) for name, (x, r, g, w, v, q) in given]

    by_depth = {problem.k: problem.fusion for problem in see(model, [one for each in inputs for one in each])}
    return {name: by_depth[k] for name, k in depths.items()}


def batched(items, count):
    return [items[start : start + count] for start in range(0, len(items), count)]


def generated(model, inputs):
    """The problems that Inductor sees until it has made its code, which is not compiled."""
    seen = []
    graph = make_fx(lambda *tensors: tree_leaves(model(*tensors)))(*inputs)
    with force(lambda problem: seen.append(problem)):
        emission.output_code(graph, inputs, lambda: None)
    return seen


def symbolic(model, inputs):
    for tensor in inputs:
        if tensor.dim() == 2 and tensor.shape[0] == M:
            torch._dynamo.mark_dynamic(tensor, 0)
    seen, results = fusions(model, *inputs)
    torch.testing.assert_close(results, model(*inputs), rtol=1e-3, atol=1e-3)
    return seen


def test_the_class_of_what_follows():
    assert every(list(ONE), generated) == {name: wanted for name, (_, wanted) in ONE.items()}


def test_symbolic_sizes_have_the_same_classes():
    names = ["SiLU times a gate", "kept for a product", "transposed", "a cast", "columns, and stored"]
    assert every(names, symbolic) == {name: ONE[name][1] for name in names}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(K, N, False), nn.Linear(K, N, False), nn.Linear(N, K, False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x)) + x


def test_the_second_gemm_of_a_gated_layer_has_the_epilogue():
    with torch.no_grad():
        seen, _ = fusions(Gated(), torch.randn(B, S, K))
    assert words(seen)[:2] == ["none", "pointwise:math:reads1"]


def test_the_last_of_several_gemms_has_the_epilogue():
    def model(x, w, a, b):
        return torch.relu(x @ w) * ((x @ a) @ b)

    seen, _ = fusions(model, torch.randn(M, K), torch.randn(K, N), torch.randn(K, 4), torch.randn(4, N))
    assert words(seen) == ["none", "none", "pointwise:reads1"]


class Feed(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(K, N, False), nn.Linear(N, K, False), nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.dropout(functional.gelu(self.up(x))))


def test_training_keeps_the_gemm_for_the_backward():
    seen, result = fusions(Feed(0.0), torch.randn(M, K, requires_grad=True))
    assert words(seen) == ["pointwise:math:kept", "none"]
    result.sum().backward()
    # The gradient of GELU reads the GEMM of the forward. The weights' gradients are stored as they are.
    assert sorted(words(seen[2:])) == ["none", "none", "none", "pointwise:math:reads1"]


def test_dropout_is_random():
    with torch.no_grad():
        seen, _ = fusions(Feed(0.5), torch.randn(M, K))
    assert words(seen) == ["pointwise:random", "none"]
    seen, _ = fusions(nn.Sequential(nn.Linear(K, N, False), nn.Dropout(0.5)), torch.randn(M, K))
    assert words(seen) == ["pointwise:random"]


def test_autocast_stores_another_size():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        seen, _ = fusions(lambda x, w: (x @ w).float(), torch.randn(M, K), torch.randn(K, N))
        assert words(seen) == ["pointwise:fp32"]


def test_a_batch_is_stored_in_the_order_of_tokens():
    def attend(a, v):
        return (a @ v).permute(1, 0, 2).contiguous()

    seen, _ = fusions(attend, torch.randn(HEADS, S, S), torch.randn(HEADS, S, SIZE))
    assert words(seen) == ["pointwise:permuted"]


def test_a_chain_that_is_too_long_is_no_epilogue():
    def model(x, w, count):
        y = x @ w
        for _ in range(count):
            y = torch.relu(y)
        return y

    def word(count):
        made = make_fx(lambda x, w: model(x, w, count), tracing_mode="fake")(torch.ones(M, K), torch.ones(K, N))
        (node,) = (node for node in made.graph.nodes if node.target is torch.ops.aten.mm.default)
        return epilogues.fusion(node)

    counts = 1, epilogues.MAX_CHAIN, epilogues.MAX_CHAIN + 2
    assert [word(count) for count in counts] == ["pointwise", "pointwise", "none"]
