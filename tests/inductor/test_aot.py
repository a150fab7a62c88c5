"""AOTInductor on a CPU (row S23 of `docs/origins.md`): no arguments, mapped weights, misaligned outputs."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

from gemmdb.inductor import force


class Alone(nn.Module):
    """No arguments: all operands are the model's own."""

    def __init__(self):
        super().__init__()
        self.linear, self.x = nn.Linear(64, 32), nn.Parameter(torch.randn(8, 64))

    def forward(self):
        return torch.relu(self.linear(self.x))


class Mapped(nn.Module):
    """Weights in a mapped file, one of them inside its storage, and an output that starts behind its storage's start,
    at no multiple of a vector."""

    def __init__(self, path):
        super().__init__()
        torch.save({"first": torch.randn(48, 64) / 8, "second": torch.randn(32, 56) / 8}, path)
        weights = torch.load(path, mmap=True)
        self.first = nn.Parameter(weights["first"])
        self.register_buffer("second", weights["second"][:, 8:])

    def forward(self, x):
        y = nn.functional.linear(torch.relu(nn.functional.linear(x, self.first)), self.second)
        return y[:, 1:], y


def package(kit, model, inputs, path):
    with torch.no_grad(), force(kit.CPP):
        exported = torch.export.export(model.eval(), inputs)
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.mark.slow
def test_s23_no_arguments_mapped_weights_and_misaligned_outputs(kit, tmp_path):
    x = torch.randn(8, 64)
    alone, mapped = Alone(), Mapped(tmp_path / "weights.pt")
    packages = [package(kit, alone, (), tmp_path / "alone.pt2")]
    with inductor_config.patch({"aot_inductor.force_mmap_weights": True}):
        packages.append(package(kit, mapped, (x,), tmp_path / "mapped.pt2"))
    assert kit.lowered() == [kit.CPP] * 3
    (y,), (pair,) = kit.unpacked_all(list(zip(packages, ([()], [(x,)]), strict=True)))
    kit.close(y, alone())
    for found, wanted in zip(pair, mapped(x), strict=True):
        kit.close(found, wanted)
