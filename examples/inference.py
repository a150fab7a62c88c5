"""Inference with frozen weights: compile a model with gemmdb and print the config of every GEMM.

    python examples/inference.py

Freezing makes the weights constants of the graph, which Inductor packs on a CPU. Expect two GEMMs, each with its rung,
the source of its config. No table ships for CPUs, so both GEMMs miss there: their rung is `aten`, and Inductor uses its
default. `workload.py` shows how to build a table. A table ships for the NVIDIA H200.
"""

import torch
import torch._inductor.config
from torch import nn

import gemmdb.inductor

torch._inductor.config.freezing = True

gpu = torch.cuda.is_available()
device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(device, dtype).eval()
x = torch.randn(16, 1024, device=device, dtype=dtype)

with torch.no_grad():
    compiled = torch.compile(model, backend="gemmdb")
    difference = (compiled(x) - model(x)).abs().max().item()

stats = gemmdb.inductor.stats()
for product in stats["products"]:
    print(f"{product['rung']}  {product['config']}  {product['problem']}")
print(f"largest difference from eager: {difference:.1e}")
print(f"kernels benchmarked at compile time: {stats['benchmarked']}")
