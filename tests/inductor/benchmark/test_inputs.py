"""Random inputs of a trial: like those of the program, and such that a wrong kernel gives another result."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb import Problem
from gemmdb.generators.measure.operands import operands
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.packed_inputs import packed
from gemmdb.inductor.benchmark.tensors import PACKED, VALUES, differ, inputs
from gemmdb.inductor.match import ops
from gemmdb.inductor.match.ops import dequantised


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


@pytest.mark.parametrize("packing", ["gptq", "gptq2", "awq", "low-first", "mxfp4", "tinygemm8"])
def test_random_weights_in_groups_tell_a_wrong_order_of_their_numbers(packing):
    """Words of zeros would be the same weight in any order."""
    fp4 = packing == "mxfp4"
    problem = Problem.gemm(
        "mixed_mm",
        m=4,
        n=64,
        k=256,
        weight_dtype="fp4_e2m1" if fp4 else "int4",
        packing=packing,
        fusion="pointwise",
        **({} if fp4 else {"group": 64}),
    )
    own, rows = problem.int4, operands(problem, torch.device("cpu"), 1)
    tensors = [one for one in (rows.b, rows.scale, rows.zeros) if one is not None]

    def program(a, packed, scale, *zeros):
        product = ops.overload("int4_mm")(a, packed, scale, zeros[0] if zeros else None, own.size, packing)
        return (product, product.relu())

    graph = make_fx(program, tracing_mode="fake")(rows.a, *tensors).graph
    (gemm,) = [node for node in graph.nodes if str(node.target) == "gemmdb.int4_mm.default"]
    piece = cutting.cut(gemm, problem, {node: place for place, node in enumerate(graph.nodes)})
    a, words, scale, *zeros = inputs(piece.fakes, piece.kinds)
    weight = dequantised(words, scale, zeros[0] if zeros else None, own, torch.float32)
    assert torch.isfinite(weight).all()
    for place, one in enumerate((words, *zeros)):
        turned = one.view(torch.uint8).flip(-1).contiguous().view(one.dtype)
        tensors = (turned, scale, zeros[0] if zeros else None) if place == 0 else (words, scale, turned)
        other = dequantised(*tensors, own, torch.float32)
        assert differ([a.float() @ other.t()], [a.float() @ weight.t()])


def test_random_words_of_a_tiled_weight_are_no_zeros():
    given = (
        torch.randn(4, 256).bfloat16(),
        torch.zeros(8, 2, 32, 4, dtype=torch.int32),
        torch.randn(2, 64, 2).bfloat16(),
    )
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("a", "packed", "scale")]
    for node, one in zip(nodes, given, strict=True):
        node.meta["val"] = one
    gemm = graph.call_function(torch.ops.aten._weight_int4pack_mm.default, (*nodes[:2], 128, nodes[2]))
    assert list(packed(gemm)) == [(nodes[1], PACKED)]
    assert inputs(given, [VALUES, PACKED, VALUES])[1].unique().numel() > 1000
