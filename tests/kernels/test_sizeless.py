"""Rules that read no size of a problem are remembered by its class: they must say the same at all sizes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import A100, H200

from gemmdb.cost.data import menus
from gemmdb.kernels import cutlass, inductor
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton import shared
from gemmdb.key.problem import Problem

RULES = {
    **dict.fromkeys(("tile", "narrow", "persistent"), shared._reject_sizeless_tile),
    "gemm": cutlass.rules._reject_sizeless, "inductor_mm": inductor._reject_tile,
}  # fmt: skip
MENU = {text for menu in menus().values() for texts in menu.values() for text in texts}
CONFIGS = [config for config in map(Config.parse, sorted(MENU)) if config.kernel in RULES]
CLASSES = [
    Problem.gemm(op, m=64, n=512, k=512, dtype=dtype, layout=layout)
    for op, dtypes in {"mm": ("bf16", "fp32"), "addmm": ("fp16",), "int_mm": ("int8",), "mixed_mm": ("bf16",)}.items()
    for dtype in dtypes
    for layout in ("nt", "nn")
]  # fmt: skip
SIZES = st.integers(1, 70_000)


@given(st.sampled_from(CONFIGS), st.sampled_from(CLASSES), st.sampled_from((H200, A100)), SIZES, SIZES, SIZES)
def test_a_sizeless_rule_says_the_same_at_all_sizes(config, problem, device, m, n, k):
    rule = RULES[config.kernel].__wrapped__
    assert rule(config, problem.resized(m, n, k), device) == rule(config, problem, device)


def test_every_kernel_with_such_a_rule_is_among_the_configs():
    assert {config.kernel for config in CONFIGS} == set(RULES)


@pytest.mark.parametrize("kernel", ["tile", "gemm"])
def test_devices_that_differ_in_their_shared_memory_alone_are_told_apart(kernel):
    config = next(one for one in CONFIGS if one.kernel == kernel and one.rejection(CLASSES[0], H200) is None)
    small = replace(H200, figures={**H200.figures, "smem_bytes": 1024})
    assert "fit into shared memory" in str(config.rejection(CLASSES[0], small))
    assert config.rejection(CLASSES[0], H200) is None
