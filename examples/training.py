"""A training step: every GEMM of the forward and the backward is looked up as a separate problem.

    python examples/training.py

`enable()` applies to every compile of the process, so the program compiles as usual. Expect five GEMMs: one per linear
in the forward, and three in the backward (the gradients of both weights and of the first activation). The compiled
losses match eager training.
"""

import copy

import torch
from torch import nn

import gemmdb.inductor

gemmdb.inductor.enable()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
eager = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).to(device)
model = copy.deepcopy(eager)
x, target = torch.randn(64, 256, device=device), torch.randn(64, 128, device=device)


def train(program: nn.Module, parameters: nn.Module, steps: int = 3) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(program(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


expected, losses = train(eager, eager), train(torch.compile(model), model)
for product in gemmdb.inductor.stats()["products"]:
    print(f"{product['rung']}  {product['config']}  {product['problem']}")
print("eager losses:   ", *(f"{loss:.4f}" for loss in expected))
print("compiled losses:", *(f"{loss:.4f}" for loss in losses))
