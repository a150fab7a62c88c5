"""GEMMs of fp8 operands without a compile: how their arguments are read."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from kit.gemm_programs import placeholders

from gemmdb import Problem
from gemmdb.inductor.match import calls, fx, gemms

BF16 = torch.bfloat16
A, B = torch.randn(8, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn).t()


def test_the_second_version_for_groups_is_counted_by_name():
    if not hasattr(torch.ops.aten, "_scaled_grouped_mm_v2"):
        pytest.skip("this torch has none")
    node = torch.fx.Graph().call_function(torch.ops.aten._scaled_grouped_mm_v2.default)
    assert "scaled_grouped_mm_v2" in gemms.uncovered(node)


F8, ONES = torch.float8_e4m3fn, torch.ones(4, 16)
ROWS, EXPERTS, ENDS = A, torch.randn(4, 16, 32).to(F8).mT, torch.tensor([2, 2, 5, 8], dtype=torch.int32)
GROUPS = {
    "as torch calls it": ({}, None),
    "a fast accumulation": ({"use_fast_accum": True}, None),
    "two batches": ({"self": torch.randn(4, 8, 32).to(F8), "scale_a": torch.ones(4, 8), "offs": None},
                    "all groups have the same size"),
    "columns": ({"self": torch.randn(4, 8, 32).to(F8), "scale_a": torch.ones(4, 8), "mat2": B, "scale_b": ONES[0]},
                "divide the columns"),
    "depth": ({"mat2": B, "scale_a": torch.ones(32), "scale_b": torch.ones(64)}, "each has its own scales"),
    "mx": ({"scale_a": torch.ones(8).to(torch.float8_e8m0fnu), "scale_b": ONES.to(torch.float8_e8m0fnu)},
           "scales of torch.float8_e8m0fnu"),
    "a scaled output": ({"scale_result": torch.ones(())}, "the output is scaled"),
    "a bias": ({"bias": torch.ones(16).bfloat16()}, "a bias"),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_fp8_are_read(name):
    changes, reason = GROUPS[name]
    given = {"self": ROWS, "mat2": EXPERTS, "scale_a": ONES[0, :8], "scale_b": ONES, "offs": ENDS} | changes
    graph, nodes = placeholders(**{f"{key}_": one for key, one in given.items() if isinstance(one, torch.Tensor)})
    nodes = {key: nodes.get(f"{key}_", one) for key, one in given.items()}
    tensors = [nodes.pop(key) for key in ("self", "mat2", "scale_a", "scale_b")]
    node = graph.call_function(torch.ops.aten._scaled_grouped_mm.default, tuple(tensors), nodes)
    node.meta["val"] = torch.zeros(8, 16).bfloat16()
    assert gemms.uncovered(node) is None
    if reason is not None:
        with pytest.raises(fx.Unsupported, match=reason):
            gemms.read(node)
        return
    problem = gemms.read(node).query.problem
    fast = "use_fast_accum" in changes
    assert problem == Problem.gemm("grouped_mm", m=8, n=16, k=32, groups=4, dtype="fp8_e4m3", fast_accum=fast)


SCALES = {
    "blocks": (torch.rand(8, 1), torch.rand(2, 16), "scales of the sizes [8, 1] and [2, 16]"),
    "one kind each": (torch.rand(8, 1), torch.rand(1, 2), "scales of the sizes [8, 1] and [1, 2]"),
    "mx": (torch.ones(8, 1).to(torch.float8_e8m0fnu), torch.ones(1, 16).to(torch.float8_e8m0fnu), "scales of torch"),
    "rows with gaps": (torch.rand(8, 3)[:, :1], torch.rand(1, 16), "scales of the sizes"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_other_kinds_have_no_problem(name):
    first, second, reason = SCALES[name]
    _, nodes = placeholders(a=A, b=B, first=first, second=second)
    call = calls.read(torch.ops.aten._scaled_mm.default, list(nodes.values()), {})
    with pytest.raises(fx.Unsupported, match=re.escape(reason)):
        calls.scaled_fields(call)


@pytest.mark.parametrize(
    ("k", "n", "first", "second"),
    [
        (512, 256, (8, 4), (4, 2)),
        (384, 144, (8, 3), (3, 2)),
        (384, 144, (8, 3), (4, 2)),  # With room for a multiple of four, as `_scaled_mm_v2` wants it.
        (32, 16, (8, 1), (1, 1)),
    ],
)
def test_scales_of_blocks(k, n, first, second):
    a, b = torch.zeros(8, k).to(F8), torch.zeros(n, k).to(F8).t()
    _, nodes = placeholders(a=a, b=b, first=torch.rand(first), second=torch.rand(second[::-1]).t())
    call = calls.read(torch.ops.aten._scaled_mm.default, list(nodes.values()), {})
    assert calls.scaled_fields(call) == {"scales": "block", "bias": None}
    nodes["second"].meta["val"] = torch.rand(second[0] + 4, second[1])
    with pytest.raises(fx.Unsupported, match="scales of the sizes"):
        calls.scaled_fields(call)


V2 = {
    "two levels": ({"scale_a": [1, 2], "recipe_a": [3, 0]}, "multi-level scales"),
    "a swizzle": ({"swizzle_a": [1]}, "swizzled"),
    "other blocks": ({"recipe_a": [3], "recipe_b": [3]}, "scales of other block sizes"),
    "blocks of A that are square": ({"recipe_a": [5], "recipe_b": [4]}, "scales of other block sizes"),
    "two kinds": ({"recipe_a": [0], "recipe_b": [1]}, "of two kinds"),
    "another dimension": ({"contraction_dim": [0, 1]}, "other dimensions"),
}


@pytest.mark.parametrize("name", V2)
def test_what_the_second_version_says_besides_has_no_problem(name):
    changes, reason = V2[name]
    target = torch.ops.aten._scaled_mm_v2.default
    given = {"self": "a", "mat2": "b", "scale_a": ["s"], "recipe_a": [1], "swizzle_a": [0], "scale_b": ["t"],
             "recipe_b": [1], "swizzle_b": [], "bias": None, "out_dtype": BF16}  # fmt: skip
    call = calls.read(target, [], given)
    assert (call.a, call.b, *call.scales, call.bias) == ("a", "b", "s", "t", None)
    assert (call.fast, call.recipes) == (False, (1, 1))
    with pytest.raises(fx.Unsupported, match=reason):
        calls.read(target, [], {**given, **changes})
    assert calls.read(target, [], {**given, "recipe_a": [4], "recipe_b": [5]}).recipes == (4, 5)
