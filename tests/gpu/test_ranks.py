"""Processes of one job: they take the same kernels, and one that answers from other tables is told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemmdb import Problem

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
FSDP = Path(__file__).parents[1] / "fsdp_rank.py"
KINDS = [("mm", "nt", 64, 512, 256), ("mm", "nt", 64, 256, 512), ("mm", "nn", 64, 512, 256), ("mm", "nn", 64, 256, 512),
         ("mm", "tn", 512, 256, 64), ("mm", "tn", 256, 512, 64),
         ("mixed_mm", "nt", 64, 256, 256), ("mixed_mm", "nn", 64, 256, 256)]  # fmt: skip
SHARDED = [
    Problem.gemm(op, m=m, n=n, k=k, layout=layout, fusion=fusion)
    for op, layout, m, n, k in KINDS
    for fusion in ("none", "pointwise", *(["scale"] if op == "mixed_mm" else []))
]
"""The GEMMs of the sharded model, forward and backward, whatever Inductor fuses into them."""


def job(program: str, folder: Path, tables: Sequence[Path], *arguments: str) -> list[Any]:
    """What each of two processes prints, the first with the first of `tables`."""
    environ = {**ENVIRON, "XDG_DATA_HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, str(rank), str(folder / "rendezvous"), *arguments],
            env={**environ, "GEMMDB_TABLES": str(path)}, stdout=subprocess.PIPE, text=True,
        )
        for rank, path in enumerate(tables)
    ]  # fmt: skip
    return [json.loads(rank.communicate(timeout=200)[0].splitlines()[-1]) for rank in ranks]


def told(replies: Sequence[Any], same: bool) -> None:
    """Ranks with the same tables took the same kernels in silence; of others, one was told."""
    assert (replies[0]["kernels"] == replies[1]["kernels"]) == same
    said = [text for reply in replies for text in reply["errors"]]
    assert [text.partition(" uses ")[2][:12] for text in said] == ([] if same else ["other tables"])


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_of_ddp(kit: Any, make: Any, tmp_path: Path, backend: str, same: bool) -> None:
    first, second = make("tile", block_m=32), make("tile", block_m=64)
    tables = [kit.table(tmp_path / "first.db", {problem: {first: 40.0} for problem in FORWARD})]
    tables += tables if same else [kit.table(tmp_path / "second.db", {problem: {second: 40.0} for problem in FORWARD})]
    replies = job(RANK, tmp_path, tables, backend)
    assert all(reply["error"] < 0.02 and reply["exact"] for reply in replies), replies
    assert replies[0]["gradient"] == replies[1]["gradient"]
    told(replies, same)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("how", "same"), [("blocks", True), ("blocks", False), ("whole", True), ("classic", True)], ids=str
)
def test_ranks_of_fsdp(kit: Any, make: Any, tmp_path: Path, how: str, same: bool) -> None:
    first, second = make("tile", block_m=32), make("tile", block_m=64)
    tables = [kit.table(tmp_path / "first.db", {problem: {first: 40.0} for problem in SHARDED})]
    tables += tables if same else [kit.table(tmp_path / "second.db", {problem: {second: 40.0} for problem in SHARDED})]
    replies = job(FSDP.read_text(), tmp_path, tables, "nccl", how)
    for reply, config in zip(replies, (first, first if same else second), strict=True):
        assert max(reply["error"], *reply["gradients"]) < 0.02, reply
        assert (set(reply["rungs"]), reply["benchmarked"]) == ({"exact"}, 0), reply
        assert all(kernel.endswith(f" {config.text}") for kernel in reply["kernels"]), reply
    told(replies, same)
