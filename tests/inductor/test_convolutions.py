"""Vision models: which convolutions Inductor makes GEMMs of, and linear layers of images that are stored channels
last. What stays a convolution is counted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kit import program_batch
from torch import nn
from torch._inductor import config as inductor_config

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.inductor import force

LAST = torch.channels_last


class Block(nn.Module):
    """As in a residual network: into few channels, over neighbours, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.over = nn.Conv2d(32, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.back = nn.Conv2d(8, 32, 1)

    def forward(self, x):
        return self.back(self.over(self.into(x).relu()).relu()) + x


class Mixing(nn.Module):
    """As in ConvNeXt: linear layers over the channels of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        y = self.narrow(self.wide(x.permute(0, 2, 3, 1)).relu())
        return x + y.permute(0, 3, 1, 2)


def images(layout=LAST):
    return torch.randn(2, 32, 5, 6).to(memory_format=layout)


def compiled(kit, model, x, **flags):
    stats = kit.forced(None, model, x, **flags)
    return kit.problems(stats), stats["uncovered"]


def test_convolutions_that_stay_are_counted(kit):
    problems, uncovered = compiled(kit, Block().eval(), images())
    assert problems == []
    assert uncovered == {"conv1x1": 2}


def test_those_that_become_gemms_are_looked_up(kit):
    problems, uncovered = compiled(kit, Block().eval(), images(), conv_1x1_as_mm=True)
    plain = Problem.gemm("mm", m=60, n=8, k=32, dtype="fp32")
    biased = Problem.gemm("addmm", m=60, n=32, k=8, dtype="fp32")
    assert [Problem.parse(text).head for text in problems] == [plain.head, biased.head]
    assert [Problem.parse(text).b for text in problems] == [plain.b, biased.b]
    assert uncovered == {}


class Strided(nn.Module):
    def __init__(self, **rest) -> None:
        super().__init__()
        self.one = nn.Conv2d(32, 8, 1, **rest)

    def forward(self, x):
        return self.one(x)


def test_steps_borders_and_groups_stay_convolutions(kit):
    models = [Strided(**rest) for rest in ({"stride": 2}, {"padding": 1}, {"groups": 4})]
    model = program_batch.ProgramBatch(models).eval()
    with torch.no_grad(), force(kit.left_alone), inductor_config.patch(conv_1x1_as_mm=True):
        kit.compiled(model, *((images(),) for _ in models))
    assert (kit.problems(), gemmdb.inductor.stats()["uncovered"]) == ([], {"conv1x1": 3})


def test_a_gemm_is_found_in_the_backward_too(kit):
    model, x = Strided().to(memory_format=LAST), images().requires_grad_()
    with force(kit.left_alone), inductor_config.patch(conv_1x1_as_mm=True):
        kit.compiled(model, x).square().sum().backward()
    found, x.grad = x.grad, None
    model(x).square().sum().backward()
    kit.close(found, x.grad)
    assert Problem.gemm("addmm", m=60, n=8, k=32, dtype="fp32").head in [
        Problem.parse(text).head for text in kit.problems()
    ]


def test_linear_layers_of_channels_are_gemms(kit):
    problems, uncovered = compiled(kit, Mixing().eval(), images())
    wide, narrow = (Problem.parse(text) for text in problems)
    assert (wide.head, narrow.head) == ("addmm m=60 n=64 k=32", "addmm m=60 n=32 k=64")
    assert (wide.a.layout.order, wide.b.layout.order) == ("row", "col")
    assert uncovered == {}
