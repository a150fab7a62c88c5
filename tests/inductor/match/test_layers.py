"""The classes of epilogues of whole layers, written as published models write them."""

import math

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from gemmdb.inductor import force
from gemmdb.inductor.lower.adapter import emission

B, S, D, HEADS = 2, 8, 64, 4


def fusions(module, *inputs):
    """The fusion contexts of all GEMMs of a layer in inference, in the order of the graph. No code is compiled."""
    seen = []
    given = [*inputs, *module.parameters()]

    def model(*tensors):
        names = [name for name, _ in module.named_parameters()]
        values = dict(zip(names, tensors[len(inputs) :], strict=True))
        return tree_leaves(torch.func.functional_call(module, values, tensors[: len(inputs)]))

    with torch.no_grad():
        graph = make_fx(model)(*given)
        with force(lambda problem: seen.append(problem)):
            emission.output_code(graph, given, lambda: None)
    return [problem.fusion for problem in seen]


def tanh_gelu(x):
    """GPT-2's."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Bert(nn.Module):
    """The part of a layer behind attention: the norm follows the residual."""

    def __init__(self, dropout):
        super().__init__()
        self.attended, self.up, self.down = nn.Linear(D, D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.first, self.second, self.dropout = nn.LayerNorm(D), nn.LayerNorm(D), nn.Dropout(dropout)

    def forward(self, x, attended):
        x = self.first(self.dropout(self.attended(attended)) + x)
        return self.second(self.dropout(self.down(functional.gelu(self.up(x)))) + x)


class Gpt(nn.Module):
    """The norm comes first; the residual goes on, and into the next norm."""

    def __init__(self, activation, last):
        super().__init__()
        self.norm, self.next = nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.activation, self.last = activation, last

    def forward(self, x):
        x = x + self.down(self.activation(self.up(self.norm(x))))
        return x if self.last else (x, self.next(x))


class Llama(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, 96, False), nn.Linear(D, 96, False), nn.Linear(96, D, False)
        self.next, self.last = nn.RMSNorm(D), last

    def forward(self, x):
        x = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return x if self.last else (x, self.next(x))


class Phi(nn.Module):
    """Both halves of a gated layer in one GEMM."""

    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(D, 192, False), nn.Linear(96, D, False)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(up * functional.silu(gate))


class Attention(nn.Module):
    """Rotary positions, and a store by heads for a cache."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D, False) for _ in range(3))

    def forward(self, x, cos, sin):
        q, k, v = (
            layer(x).view(B, S, HEADS, D // HEADS).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return rotated(q, cos, sin), rotated(k, cos, sin), v.contiguous()


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def tokens():
    return torch.randn(B, S, D)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bert(dropout):
    layer = Bert(dropout).train(dropout > 0)
    # Residuals, and dropout before them, become part of the norms.
    assert fusions(layer, tokens(), tokens()) == ["none", "pointwise:math", "none"]


@pytest.mark.parametrize("activation", [functional.gelu, nn.GELU(approximate="tanh"), tanh_gelu, functional.silu])
def test_gpt(activation):
    assert fusions(Gpt(activation, last=True), tokens()) == ["pointwise:math", "pointwise:reads1"]
    # The sum is the next norm's work, although it is stored, too.
    assert fusions(Gpt(activation, last=False), tokens()) == ["pointwise:math", "none"]


def test_llama():
    assert fusions(Llama(last=True), tokens()) == ["none", "pointwise:math:reads1", "pointwise:reads1"]
    assert fusions(Llama(last=False), tokens()) == ["none", "pointwise:math:reads1", "none"]


def test_halves_of_one_gemm_are_read_by_another_kernel():
    assert fusions(Phi(), tokens()) == ["none", "none"]


def test_rotary_positions_are_another_kernel():
    places = torch.randn(S, D // HEADS)
    assert fusions(Attention(), tokens(), places, places.clone()) == ["none", "none", "pointwise:permuted"]


def test_several_layers_in_a_row():
    stacked = nn.Sequential(Llama(last=True), Gpt(functional.gelu, last=True))
    # The sum behind the first layer is also the first step of the second one's norm.
    assert fusions(stacked, tokens()) == ["none", "pointwise:math:reads1", "none", "pointwise:math", "pointwise:reads1"]
