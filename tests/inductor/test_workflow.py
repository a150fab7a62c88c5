"""From a recorded program over a table built for it to a strict compile: no GEMM may get lost on the way."""

import functools

import pytest
import torch
from kit.gemm_programs import E4M3, ROWS, scaled
from torch import nn

import gemmdb.inductor
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

N, K = 64, 64
SPELLINGS = {
    "linear with a bias": lambda s, x: nn.functional.linear(x, s.w.to(x.dtype), s.b),
    "product and sum": lambda s, x: x @ s.w.t().to(x.dtype) + s.b,
    "unit scalars": lambda s, x: torch.addmm(s.b, x, s.w.to(x.dtype).t(), alpha=1.0, beta=1.0),
}


class Quantised(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.register_buffer("w", torch.randint(-100, 100, (N, K), dtype=torch.int8))
        self.register_buffer("b", torch.randn(N).bfloat16())
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


class Fp8(nn.Module):
    """A linear layer in fp8 as torchao's dynamic quantisation has it: the scales of its rows come from the rows."""

    def __init__(self):
        super().__init__()
        weight = torch.randn(N, K)
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("w", (weight / scale).to(E4M3))
        self.register_buffer("s", scale.t().contiguous())

    def forward(self, x):
        rows = x.abs().amax(1, keepdim=True).float() / 448
        return scaled((x / rows).to(E4M3), self.w, rows, self.s, use_fast_accum=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ([functools.partial(Quantised, forward) for forward in SPELLINGS.values()], ("mixed_mm ", " bias=1d:bf16:8 ")),
        pytest.param([Fp8], ("scaled_mm ", "scales=row fast=1"), marks=ROWS),
    ],
    ids=["int8 weights with a bias", "fp8"],
)
def test_what_is_recorded_is_built_and_served(kit, tmp_path, kinds, words):
    models, x = [kind().eval() for kind in kinds], torch.randn(8, K).bfloat16()
    path, out = tmp_path / "workload.jsonl", tmp_path / "table.db"
    with gemmdb.inductor.record(path), torch.no_grad():
        for model in models:
            kit.compiled(model, x)
    (problem,) = set(kit.problems())
    assert all(word in problem for word in words)
    # ATen is the only kernel that a CPU has for fp8, so a build measures it only with `every`.
    build(BuildRequest(arch="cpu", shapes=str(path), out=out, every=True))
    table = Table.open(out)
    statuses = {row.config: row.status for row in table.measurements()}
    table.close()
    assert statuses[kit.ATEN] is Status.OK
    gemmdb.inductor.enable(tables=[out], on_miss="error")
    gemmdb.inductor.reset_stats()
    for model in models:
        kit.checked(model, x)
    assert gemmdb.inductor.stats()["rungs"] == {"exact": len(models)}
