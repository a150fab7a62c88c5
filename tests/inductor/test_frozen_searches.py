"""Frozen compiles: Inductor searches nothing by times, and each of its kernels has one launch configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, ReductionHint, TileHint

from gemmdb.inductor.lower.adapter import slots


@pytest.mark.parametrize("given", [None, {"max_autotune": True}])
def test_inductors_searches_are_off(given):
    class Body:
        frozen, identity = True, "x"

    assert slots.patches_for({"post_grad_custom_post_pass": Body()}, given).items() >= slots.SETTLED.items()
    Body.frozen = False
    assert slots.patches_for({"post_grad_custom_post_pass": Body()}, given).get("max_autotune") == (given and True)


class LaunchConfig(SimpleNamespace):
    """Triton's Config, which is not installed for a CPU."""

    def __init__(self, kwargs, num_warps=4, num_stages=2, **_):
        super().__init__(kwargs=kwargs, num_warps=num_warps, num_stages=num_stages)


@pytest.mark.parametrize("frozen", [False, True])
def test_each_kernel_has_one_launch_configuration(monkeypatch, frozen):
    """Inductor times them at the first call; a reduction's sums depend on it."""
    monkeypatch.setattr(torch.utils._triton, "triton_hash_with_backend", lambda: "hash")
    for name in ("Config", "InductorConfig"):
        monkeypatch.setattr(triton_heuristics, name, LaunchConfig)
    with inductor_config.patch(slots.SETTLED if frozen else {}):
        meta = TritonKernel.inductor_meta_common()
    assert meta["dynamic_scale_rblock"] is not frozen
    made = {"triton_meta": {"device": DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32), "signature": {}}}
    made = {"inductor_meta": meta, "return_configs": True, **made}
    numbers = [
        len(triton_heuristics.pointwise({"x": 2**20}, **made)),
        len(triton_heuristics.pointwise({"x": 4096, "y": 4096}, tile_hint=TileHint.DEFAULT, **made)),
        len(triton_heuristics.reduction({"x": 4096, "r0_": 4096}, ReductionHint.DEFAULT, **made)),
        len(triton_heuristics.persistent_reduction({"x": 4096, "r0_": 64}, ReductionHint.DEFAULT, **made)),
    ]
    assert numbers == [1] * 4 if frozen else all(number > 1 for number in numbers)
