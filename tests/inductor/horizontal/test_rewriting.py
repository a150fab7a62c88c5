"""The call in the place of a group's GEMMs computes the same."""

import pytest
import torch
from kit.gemm_programs import ROWS
from kit.horizontal import NARROW, fp8_linear, grouped, half, quantised, traced

import gemmdb.inductor
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.match import ops
from gemmdb.inductor.match.horizontal import rewrite

linear = torch.nn.functional.linear
HIT = Hit("near", NARROW, 5.0, 1.0, "")


def attention(x, q, k, v):
    heads = [linear(x, w).view(2, 4, 2, 16).transpose(1, 2) for w in (q, k, v)]
    return torch.softmax(heads[0] @ heads[1].transpose(2, 3), -1) @ heads[2]


def gated(x, gate, up, first, second):
    return torch.nn.functional.silu(linear(x, gate, first)) * linear(x, up, second)


def with_scales(x, first, second, scale, other):
    op = ops.overload("mixed_mm")
    return op(x, first.t(), scale).sin(), op(x, second.t(), other).cos()


def ints(*sizes):
    return torch.randint(-9, 9, sizes, dtype=torch.int8)


def fp8(x, first, scale, second, other):
    return fp8_linear(x, first, scale).sin(), fp8_linear(x, second, other).cos()


def fp8_biased(x, first, scale, second, other, *biases):
    return fp8_linear(x, first, scale, biases[0]).sin(), fp8_linear(x, second, other, biases[1]).cos()


def int4(x, *given):
    op = ops.overload("int4_mm")
    pairs = [op(x, *given[place : place + 3], 32, "low-first") for place in (0, 3)]
    return pairs[0].relu(), pairs[1] * 2


def int4_without_zeros(x, first, scale, second, other):
    op = ops.overload("int4_mm")
    return op(x, first, scale, None, 32, "high-first").relu(), op(x, second, other, None, 32, "high-first") * 2


def packed(n):
    return torch.randint(0, 256, (n, 32), dtype=torch.uint8)


FP8 = (*quantised(half(32, 64)), *quantised(half(16, 64)))
CASES = {
    "attention": (attention, (half(2, 4, 64), half(32, 64), half(32, 64), half(32, 64))),
    "biases": (gated, (half(8, 64), half(32, 64), half(32, 64), half(32), half(32))),
    "int8": (with_scales, (half(8, 64), ints(32, 64), ints(16, 64), half(32), half(16))),
    "int4": (int4, (half(8, 64), packed(32), half(32, 2), packed(32)[:, :2] & 15, packed(16), half(16, 2),
                    packed(16)[:, :2] & 15)),
    "int4 without zeros": (int4_without_zeros, (half(8, 64), packed(32), half(32, 2), packed(16), half(16, 2))),
    "fp8": (fp8, (half(2, 4, 64), *FP8)),
    "fp8 with biases": (fp8_biased, (half(2, 4, 64), *FP8, half(32), half(16))),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=ROWS if "fp8" in name else ()) for name in CASES])
def test_the_graph_computes_the_same(clean, name):
    gemmdb.inductor.enable()
    function, tensors = CASES[name]
    graph = traced(function, *tensors)
    (group,) = grouped(graph)
    group.unify()
    rewrite(graph.graph, group, fusing.fused(group, HIT))
    graph.graph.lint()
    graph.recompile()
    targets = [node.target for node in graph.graph.nodes]
    assert targets.count(ops.overload("horizontal_int4") if "int4" in name else ops.overload("horizontal_mm")) == 1
    one_by_one = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten._scaled_mm.default}
    assert not {*one_by_one, ops.overload("mixed_mm"), ops.overload("int4_mm")} & set(targets)
    found, wanted = graph(*tensors), function(*tensors)
    for one, other in zip(*([it] if isinstance(it, torch.Tensor) else it for it in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.1)


def test_the_parts_lie_in_memory_as_the_gemms_did():
    graph = traced(attention, *CASES["attention"][1])
    (group,) = grouped(graph)
    strides = [member.node.meta["val"].stride() for member in group.members]
    readers = [set(member.node.users) for member in group.members]
    rewrite(graph.graph, group, fusing.fused(group, HIT))
    for users, stride in zip(readers, strides, strict=True):
        (user,) = users
        assert user.args[0].meta["val"].stride() == stride
        assert user.args[0].meta["val"].is_contiguous()


def test_the_work_is_counted():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        ops.overload("horizontal_mm")(half(8, 64), [half(64, 32), half(64, 16)], [], [])
    assert counter.get_total_flops() >= 2 * 8 * 64 * 48
