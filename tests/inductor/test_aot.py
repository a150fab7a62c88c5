"""AOTInductor on a CPU (row S23 of the origins): no arguments, mapped weights, misaligned outputs."""

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


class Mixed(nn.Module):
    """An int8 weight, for ATen's weight-only kernel."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randint(-100, 100, (32, 64), dtype=torch.int8))
        self.register_buffer("s", torch.rand(32).bfloat16() / 64)

    def forward(self, x):
        return nn.functional.linear(x, self.w.to(x.dtype)) * self.s


def package(config, model, inputs, path):
    with torch.no_grad(), force(config):
        exported = torch.export.export(model.eval(), inputs)
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.mark.slow
def test_s23_no_arguments_mapped_weights_and_misaligned_outputs(kit, tmp_path):
    """They are loaded by a process without gemmdb."""
    x = torch.randn(8, 64)
    alone, mapped, mixed = Alone(), Mapped(tmp_path / "weights.pt"), Mixed()
    packages = [
        package(kit.CPP, alone, (), tmp_path / "alone.pt2"),
        package(kit.INT8PACK, mixed, (x.bfloat16(),), tmp_path / "mixed.pt2"),
    ]
    with inductor_config.patch({"aot_inductor.force_mmap_weights": True}):
        packages.append(package(kit.CPP, mapped, (x,), tmp_path / "mapped.pt2"))
    assert kit.lowered() == [kit.CPP, kit.INT8PACK, kit.CPP, kit.CPP]
    (y,), (z,), (pair,) = kit.unpacked_all(list(zip(packages, ([()], [(x.bfloat16(),)], [(x,)]), strict=True)))
    kit.close(y, alone())
    kit.close(z, mixed(x.bfloat16()))
    for found, wanted in zip(pair, mapped(x), strict=True):
        kit.close(found, wanted)
