"""The scale of an int8-weight GEMM is handed to the kernel as it lies in memory."""

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear

from gemmdb.inductor.match import mixed, ops

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("scale", "sizes", "dtype"),
    [
        (lambda s: s.to(BF16), (32,), torch.float32),
        (lambda s: s.to(BF16).view(-1), (32, 1), torch.float32),
        (lambda s: s.view(-1).to(BF16), (32, 1), torch.float32),
        (lambda s: (s * 2).to(BF16), (32,), torch.float32),
        (lambda s: s.to(BF16) * 2, (32,), BF16),
        (lambda s: s.to(torch.float64).to(BF16), (32,), BF16),
        (lambda s: s.to(BF16).expand(32), (1,), BF16),
    ],
    ids=["cast", "cast column", "column cast", "computed in fp32", "computed in bf16", "fp64", "one number"],
)
def test_a_scale_that_was_cast_from_fp32_is_read_in_fp32_on_a_gpu(monkeypatch, scale, sizes, dtype):
    monkeypatch.setattr(mixed, "_GPUS", ("cpu",))
    assert scale_of(scale, sizes) == dtype


def test_on_a_cpu_it_is_read_as_the_program_casts_it():
    """Freezing makes a constant of the cast, and the C++ template takes its scale only from memory."""
    assert scale_of(lambda s: s.to(BF16), (32,)) == BF16


def scale_of(scale, sizes):
    """The dtype of the scale that a rewritten GEMM reads. The graph computes the same."""

    def product(x, w, s):
        return linear(x, w.to(BF16)) * scale(s)

    tensors = torch.randn(8, 64).to(BF16), torch.randint(-9, 9, (32, 64), dtype=torch.int8), torch.rand(*sizes)
    graph = make_fx(product, select_decomp_table(), tracing_mode="fake")(*tensors)
    (node,) = (one for one in graph.graph.nodes if one.target is torch.ops.aten.mm.default)
    mixed.find(node).rewrite(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    (made,) = (one for one in graph.graph.nodes if one.target is ops.overload("mixed_mm"))
    assert made.meta["val"].dtype == BF16
    torch.testing.assert_close(graph(*tensors), product(*tensors))
    return made.args[2].meta["val"].dtype
