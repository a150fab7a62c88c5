"""Processes of one job: the same tables pass in silence, different ones are named."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gemmdb import Problem

RANK = """
import torch
import torch.distributed as dist
import gemmdb.inductor
rank, strict = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
gemmdb.inductor.enable(on_miss=strict)
try:
    torch.compile(lambda x: x.t())(torch.ones(8, 8))  # nothing to generate code for
    raised = ""
except Exception as error:
    raised = str(error)
dist.barrier()
print(json.dumps([raised, gemmdb.inductor.stats()["errors"]]))
"""


FSDP = Path(__file__).parents[1] / "fsdp_rank.py"


@pytest.mark.parametrize(("same", "strict"), [(True, "aten"), (False, "aten"), (False, "error")])
def test_ranks_with_different_tables_are_told(kit, table, tmp_path, same, strict):
    problem = Problem.gemm("mm", m=16, n=64, k=64, dtype="fp32")
    first = table({}, "first.db")
    second = first if same else table({problem.text: kit.CPP}, "second.db")

    def run(rank, path):
        return kit.forked(RANK, {"GEMMDB_TABLES": str(path)}, [str(rank), str(tmp_path / "rendezvous"), strict])

    with ThreadPoolExecutor(2) as ranks:
        found = list(ranks.map(run, (0, 1), (first, second)))
    said = [text for raised, errors in found for text in (raised, *errors) if "other tables" in text]
    assert len(said) == (0 if same else 1)
    if not same:
        told = next(i for i, reply in enumerate(found) if "other tables" in json.dumps(reply))
        assert f"rank {told} uses other tables" in said[0]
        assert bool(found[told][0]) == (strict == "error")


def sharded_products(kit):
    """Winners of every GEMM of the sharded model, forward and backward, by problem text: the int8 weight's forward
    has ATen's weight-only kernel, and nothing else beats the default where no weight is a constant."""
    kinds = [("nt", 64, 512, 256), ("nt", 64, 256, 512), ("nn", 64, 512, 256), ("nn", 64, 256, 512),
             ("tn", 512, 256, 64), ("tn", 256, 512, 64)]  # fmt: skip
    plain = [
        Problem.gemm("mm", m=m, n=n, k=k, layout=layout, fusion=fusion)
        for layout, m, n, k in kinds
        for fusion in ("none", "pointwise", "pointwise:math:kept", "pointwise:math:reads1")
    ]
    forward, backward = (
        Problem.gemm("mixed_mm", m=64, n=256, k=256, layout=layout, fusion=fusion)
        for layout, fusion in (("nt", "scale"), ("nn", "none"))
    )
    return {**{problem.text: kit.ATEN for problem in (*plain, backward)}, forward.text: kit.INT8PACK}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("how", "same"), [("blocks", True), ("blocks", False), ("whole", True), ("classic", True)], ids=str
)
def test_ranks_of_fsdp(kit, table, tmp_path, how, same):
    products = sharded_products(kit)
    first = table(products, "first.db")
    second = first if same else table(dict.fromkeys(products, kit.ATEN), "second.db")

    def run(rank, path):
        environment = {"GEMMDB_TABLES": str(path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        return kit.forked(FSDP.read_text(), environment, [str(rank), str(tmp_path / "rendezvous"), "gloo", how])

    with ThreadPoolExecutor(2) as ranks:
        replies = list(ranks.map(run, (0, 1), (first, second)))
    for reply in replies:
        # Both blocks, forward and backward: nothing asks for the gradient of the first block's input.
        assert (reply["rungs"], reply["benchmarked"]) == ({"exact": 15}, 0), reply
        assert max(reply["error"], *reply["gradients"]) < 0.02, reply
    packed = [sum(kit.INT8PACK.text in kernel for kernel in reply["kernels"]) for reply in replies]
    assert packed == [1, 1]  # The same kernel: ATen stands for it in the second table.
    said = [text.partition(" uses ")[2][:12] for reply in replies for text in reply["errors"]]
    assert said == ([] if same else ["other tables"])
