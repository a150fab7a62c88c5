"""Processes of one job: they take the same kernels, and one that answers from other tables is told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemmdb import Problem  # noqa: E402

pytestmark = pytest.mark.timeout(240)
RANK = """
import json, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gemmdb.inductor
rank, rendezvous, backend = int(sys.argv[1]), sys.argv[2], sys.argv[3]
gpu = rank if backend == "nccl" else 0
torch.cuda.set_device(gpu)
dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=2)
gemmdb.inductor.enable(on_miss="aten")
torch.manual_seed(0)

class Net(torch.nn.Module):  # of our own: Dynamo does not look into torch's containers below DDP
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 512, bias=False), torch.nn.Linear(512, 256, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

model = Net().to("cuda", torch.bfloat16)
x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
found = torch.compile(DistributedDataParallel(model, device_ids=[gpu]))(x)
found.float().square().mean().backward()
wanted = torch.relu(x.double() @ model.up.weight.double().t()) @ model.down.weight.double().t()
stats = gemmdb.inductor.stats()
print(json.dumps({
    "error": float((found.double() - wanted).abs().max() / wanted.abs().max()),
    "gradient": float(model.up.weight.grad.double().sum()),
    "kernels": sorted(entry["problem"] + entry["config"] for entry in stats["products"]),
    "exact": stats["rungs"].get("exact", 0), "errors": stats["errors"],
}))
dist.destroy_process_group()
"""
ENVIRON = dict(os.environ)
"""As it is before any test: one that compiles for a build lets its process see one GPU alone."""
FORWARD = [Problem.gemm("mm", m=64, n=512, k=256, fusion=fusion) for fusion in ("none", "pointwise")]
BACKENDS = [
    "gloo",
    pytest.param("nccl", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")),
]
"""gloo: both ranks on one GPU. nccl: each on its own."""


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_of_ddp(kit: Any, make: Any, tmp_path: Path, backend: str, same: bool) -> None:
    first, second = make("tile", block_m=32), make("tile", block_m=64)
    tables = [kit.table(tmp_path / "first.db", {problem: {first: 40.0} for problem in FORWARD})]
    tables += tables if same else [kit.table(tmp_path / "second.db", {problem: {second: 40.0} for problem in FORWARD})]
    environ = {**ENVIRON, "XDG_DATA_HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, str(rank), str(tmp_path / "rendezvous"), backend],
            env={**environ, "GEMMDB_TABLES": str(path)}, stdout=subprocess.PIPE, text=True,
        )
        for rank, path in enumerate(tables)
    ]  # fmt: skip
    replies = [json.loads(rank.communicate(timeout=200)[0].splitlines()[-1]) for rank in ranks]
    assert all(reply["error"] < 0.02 and reply["exact"] for reply in replies), replies
    assert replies[0]["gradient"] == replies[1]["gradient"]
    assert (replies[0]["kernels"] == replies[1]["kernels"]) == same
    said = [text for reply in replies for text in reply["errors"]]
    assert [text.partition(" answers from ")[2][:12] for text in said] == ([] if same else ["other tables"])
