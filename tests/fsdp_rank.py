"""One process of a job of two that trains a sharded model: `fsdp_rank.py RANK RENDEZVOUS BACKEND HOW`, on the GPU of
that number with nccl and on the CPU with gloo. Prints one line of JSON.

HOW: `blocks`, each compiled and then sharded, the usual recipe; `whole`, the sharded model compiled as one, where
Dynamo breaks the graph at the hooks of each block; `classic`, blocks in FullyShardedDataParallel.
"""

import copy
import json
import sys

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FullyShardedDataParallel as Classic
from torch.distributed.fsdp import fully_shard

import gemmdb.inductor

ROWS, WIDTH, HIDDEN = 64, 256, 512


class Block(torch.nn.Module):
    """Two weights that are trained and sharded, and an int8 one that is neither."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        self.register_buffer("frozen", torch.randint(-127, 128, (WIDTH, WIDTH), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(WIDTH) + 1) / 1024)

    def forward(self, x):
        x = self.down(torch.nn.functional.silu(self.up(x)))  # smooth: bf16 takes no side of a kink
        return torch.nn.functional.linear(x, self.frozen.to(x.dtype)) * self.scale


class Net(torch.nn.Module):
    """Two blocks of the same shapes: compiled alone, they share one graph."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def sharded(model, how, device):
    """`model` with each block sharded, and the whole."""
    if how != "whole":
        for block in model.blocks:
            block.compile()
    if how == "classic":
        for i, block in enumerate(model.blocks):
            model.blocks[i] = Classic(block, use_orig_params=True, device_id=device)
        return Classic(model, use_orig_params=True, device_id=device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return torch.compile(model) if how == "whole" else model


def gradients(model, how):
    """Those of all parameters in order, whole."""
    if how != "classic":
        return [parameter.grad.full_tensor() for parameter in model.parameters()]
    with Classic.summon_full_params(model, with_grads=True):
        return [parameter.grad.clone() for parameter in model.parameters()]


def error(found, wanted):
    """The largest, relative to the largest value."""
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def main(rank, rendezvous, backend, how):
    """Forward and backward, each rank with rows of its own; what sharding averages is that of all rows."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    gemmdb.inductor.enable(on_miss="aten")
    torch.manual_seed(0)
    model = Net().to(device, torch.bfloat16)
    reference = copy.deepcopy(model).double()
    rows = torch.randn(2, ROWS, WIDTH, device=device).bfloat16()
    wanted = reference(rows.double())
    wanted.square().mean().backward()

    model = sharded(model, how, device)
    found = model(rows[rank])
    found.float().square().mean().backward()
    pairs = zip(gradients(model, how), [parameter.grad for parameter in reference.parameters()], strict=True)
    stats = gemmdb.inductor.stats()
    reply = {
        "error": error(found.detach(), wanted[rank].detach()),
        "gradients": [error(one, exact) for one, exact in pairs],
        "kernels": sorted(f"{entry['problem']} {entry['config']}" for entry in stats["products"]),
        "rungs": stats["rungs"], "errors": stats["errors"], "benchmarked": stats["benchmarked"],
        "graphs": counters["stats"]["unique_graphs"],
    }  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(reply))


main(int(sys.argv[1]), *sys.argv[2:])
