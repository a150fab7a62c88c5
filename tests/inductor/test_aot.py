"""AOTInductor on a CPU (row S23 of the origins): no arguments, mapped weights, misaligned outputs."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

from gemmdb.inductor import force


class Alone(nn.Module):
    """No arguments: all operands are the model's own, an int8 weight for ATen's weight-only kernel among them."""

    def __init__(self):
        super().__init__()
        self.linear, self.x = nn.Linear(64, 32), nn.Parameter(torch.randn(8, 64))
        self.register_buffer("w", torch.randint(-100, 100, (32, 64), dtype=torch.int8))
        self.register_buffer("s", torch.rand(32).bfloat16() / 64)
        self.register_buffer("z", torch.randn(8, 64).bfloat16())

    def forward(self):
        return torch.relu(self.linear(self.x)), nn.functional.linear(self.z, self.w.to(self.z.dtype)) * self.s


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


def package(config, model, inputs, path):
    with torch.no_grad(), force(config):
        exported = torch.export.export(model.eval(), inputs)
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.mark.slow
def test_s23_no_arguments_mapped_weights_and_misaligned_outputs(kit, tmp_path):
    """They are loaded by a process without gemmdb."""
    x = torch.randn(8, 64)
    alone, mapped = Alone(), Mapped(tmp_path / "weights.pt")

    def chosen(problem):
        return kit.INT8PACK if problem.op == "mixed_mm" else kit.CPP

    packages = [package(chosen, alone, (), tmp_path / "alone.pt2")]
    # No other code has these flags: a precompiled header would take longer than it saves.
    mapping = {"aot_inductor.force_mmap_weights": True, "aot_inductor.precompile_headers": False}
    with inductor_config.patch(mapping):
        packages.append(package(kit.CPP, mapped, (x,), tmp_path / "mapped.pt2"))
    assert sorted(kit.lowered(), key=str) == sorted([kit.CPP, kit.INT8PACK, kit.CPP, kit.CPP], key=str)
    both = kit.unpacked_all(list(zip(packages, ([()], [(x,)]), strict=True)))
    for (pair,), wanted in zip(both, (alone(), mapped(x)), strict=True):
        for one, other in zip(pair, wanted, strict=True):
            kit.close(one, other)
