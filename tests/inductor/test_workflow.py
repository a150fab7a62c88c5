"""From a recorded program over a table built for it to a strict compile: no product may get lost on the way."""

import pytest
import torch
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


@pytest.mark.slow
def test_int8_weights_with_a_bias(kit, tmp_path):
    models, x = [Quantised(forward).eval() for forward in SPELLINGS.values()], torch.randn(8, K).bfloat16()
    path, out = tmp_path / "workload.jsonl", tmp_path / "table.db"
    with gemmdb.inductor.record(path), torch.no_grad():
        for model in models:
            kit.compiled(model, x)
    assert len(set(kit.problems())) == 1
    assert kit.problems()[0].startswith("mixed_mm ")
    assert " bias=1d:bf16:8 " in kit.problems()[0]
    build(BuildRequest(arch="cpu", shapes=str(path), out=out))
    table = Table.open(out)
    statuses = {row.config: row.status for row in table.measurements()}
    table.close()
    assert statuses[kit.ATEN] is Status.OK
    gemmdb.inductor.enable(tables=[out], on_miss="error")
    gemmdb.inductor.reset_stats()
    with torch.no_grad():
        for model in models:
            kit.close(kit.compiled(model, x), model(x))
    assert gemmdb.inductor.stats()["rungs"] == {"exact": 3}
