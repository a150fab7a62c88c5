"""Processes of one job: the same tables pass in silence, different ones are named."""

import json
from concurrent.futures import ThreadPoolExecutor

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
        assert f"rank {told} answers from other tables" in said[0]
        assert bool(found[told][0]) == (strict == "error")
