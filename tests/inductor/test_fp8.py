"""GEMMs of fp8 operands with scales in real compiles: models, versions, constants, and kernels that take none."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gemm_programs import BF16, E4M3, ROWS, A, W, number, scaled
from torch._inductor.lowering import lowerings

import gemmdb.inductor
from gemmdb import Config, Problem


class Linear(torch.nn.Module):
    """A linear layer in fp8 as torchao's dynamic quantisation has it: the scales of its rows come from the rows."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        weight = torch.randn(n, k)
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("weight", (weight / scale).to(E4M3))
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", torch.randn(n).to(BF16))

    def forward(self, x: Any) -> Any:
        scale = x.abs().amax(1, keepdim=True).float() / 448
        return scaled((x / scale).to(E4M3), self.weight, scale, self.scale, bias=self.bias, use_fast_accum=True)


@ROWS
@pytest.mark.skipif(torch.ops.aten._scaled_mm_v2.default not in lowerings, reason="this torch leaves it to ATen")
def test_the_second_version_says_the_same(kit):
    from torch.nn.functional import ScalingType, scaled_mm

    rows = (A, W, torch.rand(8, 1), torch.rand(1, 16))
    one = (A, W, number(), number())
    for kind, inputs in (("RowWise", rows), ("TensorWise", one)):
        way = getattr(ScalingType, kind)
        gemmdb.inductor.reset_stats()

        def model(a, w, s, t, way=way):
            return scaled_mm(a, w.t(), s, way, t, way, use_fast_accum=True)

        (text,) = kit.problems(kit.forced(None, model, *inputs))
        gemmdb.inductor.reset_stats()
        assert kit.problems(kit.forced(None, lambda *x: scaled(*x, use_fast_accum=True), *inputs)) == [text]


@ROWS
def test_a_table_answers_for_a_model_with_aten(kit, table):
    model, x = Linear(32, 16), torch.randn(5, 32).to(BF16)
    problem = Problem.gemm("scaled_mm", m=5, n=16, k=32, scales="row", fast_accum=True, bias="1d")
    path = table({problem.text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    entry = kit.only(kit.checked(model, x))
    assert (entry["problem"], entry["rung"], entry["config"]) == (problem.text, "exact", kit.ATEN.text)
    gemmdb.inductor.enable(tables=[path], on_miss="aten")
    gemmdb.inductor.reset_stats()
    for rows in (6, 600):
        kit.checked(model, torch.randn(rows, 32).to(BF16))
    assert gemmdb.inductor.stats()["rungs"] == {"near": 1, "aten": 1}


def test_a_frozen_weight_is_a_constant(kit):
    weight = torch.nn.Parameter(W, requires_grad=False)

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, a, s, t):
            return scaled(a, self.weight, s, t)

    stats = kit.forced(None, Frozen().eval(), A, number(), number(), freezing=True)
    assert " constant=1 " in kit.only(stats)["problem"]


def test_kernels_of_other_ops_leave_aten_and_a_note(kit):
    padded = Config.of("aten", "padded", multiple=16)
    for config in (kit.CPP, kit.INT8PACK, padded):
        gemmdb.inductor.reset_stats()
        stats = kit.forced(config, scaled, A, W, number(), number())
        entry = kit.only(stats)
        assert (entry["config"], stats["errors"]) == (kit.ATEN.text, [])
        assert entry["note"]
