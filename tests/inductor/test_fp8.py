"""Products of fp8 operands without a compile: how their arguments are read, and what a template is given."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.inductor_ir import Operand  # noqa: E402
from torch._inductor.kernel import mm  # noqa: E402

from gemmdb import Config, Problem  # noqa: E402
from gemmdb.inductor.adapter import inductor_templates  # noqa: E402
from gemmdb.inductor.lower.inductor_templates import constants  # noqa: E402
from gemmdb.inductor.match import extract, products  # noqa: E402
from gemmdb.inductor.match import scaled_mm as reading  # noqa: E402

VALUES = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATE = Config.of("triton", "inductor_mm", **VALUES)
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
BF16 = torch.bfloat16
A, B = torch.randn(8, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn).t()


@pytest.mark.parametrize(("config", "name"), [(TEMPLATE, "mm_template"),
                                              (MAPPED, "scaled_mm_device_tma_epilogue_scaling_template")])  # fmt: skip
def test_every_name_that_a_template_reads_is_given(monkeypatch, config, name):
    """That differs from one torch to the other, and what is missing is found out by Triton alone, too late."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(getattr(mm, name), "generate", lambda **options: given.update(options))
    monkeypatch.setattr(inductor_templates, "get_tma_workspace_arg", lambda **options: "workspace")
    monkeypatch.setattr(inductor_templates, "get_num_sms", lambda: 132)
    problem = Problem.gemm("scaled_mm", m=64, n=64, k=64, scales="row", fast_accum=True)
    choice = inductor_templates.Choice(config.kernel, constants(config, problem), 4, 3)
    nodes = [Operand((64, 64))] * 4
    with pytest.raises(RuntimeError, match="cannot be generated"):
        inductor_templates.scaled_product(choice, nodes[:2], BF16, nodes[2:])
    assert len(given["input_nodes"]) == 4
    assert (given["USE_FAST_ACCUM"], given["SCALE_RECIPE_A"], given["SCALE_RECIPE_B"]) == (True, 1, 1)
    assert ("workspace_arg" in given) == (config == MAPPED)
    assert given.get("suffix_args") == (2 if config == TEMPLATE else None)
    file = {"mm_template": "triton_mm"}.get(name, "triton_epilogue_scaled_mm")
    source = Path(inspect.getfile(mm)).with_name("templates").joinpath(f"{file}.py.jinja").read_text()
    code = re.sub(r"#.*", "", source.partition("\n@triton.jit")[0])
    read = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", code)) - set(re.findall(r"\b([A-Z_]+) = ", code))
    assert "BLOCK_M" in read
    # Inductor gives it itself.
    assert read - {"INDEX_DTYPE"} <= set(given)


@pytest.mark.parametrize("name", ["_scaled_grouped_mm", "_scaled_grouped_mm_v2"])
def test_products_of_groups_are_counted_by_name(name):
    if not hasattr(torch.ops.aten, name):
        pytest.skip("this torch has none")
    node = torch.fx.Graph().call_function(getattr(torch.ops.aten, name).default)
    assert products.uncovered(node) == "scaled_grouped_mm"


SCALES = {
    "blocks": (torch.rand(8, 1), torch.rand(2, 16), {}, "scales of the sizes [8, 1] and [2, 16]"),
    "one kind each": (torch.rand(8, 1), torch.rand(1, 1), {}, "scales of the sizes [8, 1] and [1, 1]"),
    "mx": (torch.ones(8, 1).to(torch.float8_e8m0fnu), torch.ones(1, 16).to(torch.float8_e8m0fnu), {},
           "scales of torch"),
    "rows with gaps": (torch.rand(8, 3)[:, :1], torch.rand(1, 16), {}, "scales of the sizes"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
def test_scales_of_other_kinds_have_no_problem(name):
    first, second, rest, reason = SCALES[name]
    owner = torch.fx.Graph()
    nodes = [owner.placeholder(f"x{i}") for i in range(4)]
    for node, value in zip(nodes, (A, B, first, second), strict=True):
        node.meta["val"] = value
    call = reading.read(torch.ops.aten._scaled_mm.default, nodes, rest)
    with pytest.raises(extract.Unsupported, match=re.escape(reason)):
        reading.kind(call)


V2 = {
    "two levels": ({"scale_a": [1, 2], "recipe_a": [3, 0]}, "several levels"),
    "a swizzle": ({"swizzle_a": [1]}, "swizzled"),
    "blocks": ({"recipe_a": [3], "recipe_b": [3]}, "scales of blocks"),
    "two kinds": ({"recipe_a": [0], "recipe_b": [1]}, "of two kinds"),
    "another dimension": ({"contraction_dim": [0, 1]}, "other dimensions"),
}


@pytest.mark.parametrize("name", V2)
def test_what_the_second_version_says_besides_has_no_problem(name):
    changes, reason = V2[name]
    target = torch.ops.aten._scaled_mm_v2.default
    given = {"self": "a", "mat2": "b", "scale_a": ["s"], "recipe_a": [1], "swizzle_a": [0], "scale_b": ["t"],
             "recipe_b": [1], "swizzle_b": [], "bias": None, "out_dtype": BF16}  # fmt: skip
    call = reading.read(target, [], given)
    assert call.operands == ("a", "b", "s", "t", None)
    assert (call.fast, call.recipes) == (False, (1, 1))
    with pytest.raises(extract.Unsupported, match=reason):
        reading.read(target, [], {**given, **changes})
