"""What cannot be carried out becomes ATen, with right results and an honest journal."""

import copy

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.sessions import FakeSession
from torch import nn

import gemmdb.inductor
from gemmdb import Policy
from gemmdb.hit import Hit
from gemmdb.inductor import force
from gemmdb.inductor.entry import active, enable


class Quantised(nn.Module):
    """Multiplies with an int8 weight; `step`: what every call adds to it."""

    def __init__(self, step=0):
        super().__init__()
        self.step = step
        self.register_buffer("w", torch.randint(-5, 5, (32, 64), dtype=torch.int8))

    def forward(self, x):
        y = nn.functional.linear(x, self.w.to(x.dtype))
        if self.step:
            self.w.add_(self.step)
        return y


def test_a_mutated_buffer_is_no_constant(kit):
    model, x = Quantised(step=1).eval(), torch.randn(8, 64).half()
    twin = copy.deepcopy(model)
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        run = torch.compile(model)
        for _ in range(2):
            kit.close(run(x), twin(x))
    assert kit.problems()[0].endswith("constant=0")
    assert kit.lowered() == [kit.ATEN]
    assert gemmdb.inductor.stats()["errors"] == []


@pytest.mark.parametrize("weight", ["float", "int8"])
def test_a_crash_in_the_lowering_never_fails_the_compile(kit, monkeypatch, weight):
    from gemmdb.inductor.lower.adapter import ir_view

    def broken(*_):
        raise ZeroDivisionError("layout")

    monkeypatch.setattr(ir_view, "confirm", broken)
    model = (nn.Linear(64, 32, bias=False) if weight == "float" else Quantised()).eval()
    x = torch.randn(8, 64, dtype=torch.float32 if weight == "float" else torch.float16)
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        kit.close(kit.compiled(model, x), model(x))
    assert "layout" in gemmdb.inductor.stats()["errors"][0]
    assert kit.lowered() == [kit.ATEN]


def test_a_refused_config_promises_nothing(kit):
    def find(query):
        return Hit("exact", kit.CPP, 50.0, 2.0, "table.db")

    x, w = torch.randn(8, 64), torch.randn(64, 32)
    enable.install()
    with active.use(FakeSession(find, Policy(), None)):
        kit.close(kit.compiled(torch.matmul, x, w), x @ w)
    (product,) = gemmdb.inductor.stats()["products"]
    assert "constant" in product["note"]
    assert (product["config"], product["speedup_vs_aten"], product["expected_us"]) == (kit.ATEN.text, 1.0, 100.0)


def test_a_square_packed_weight_is_not_read_as_its_transpose(kit):
    def find(query):
        return Hit("exact", kit.ATEN, 1.0, 1.0, "table.db") if query.problem.b.layout.order == "col" else None

    w, s = torch.randint(-5, 5, (64, 64), dtype=torch.int8), torch.rand(64).bfloat16()
    x = torch.randn(2, 4, 64).bfloat16()

    def model(x, w, s):
        return nn.functional.linear(x, w.to(x.dtype)) * s

    enable.install()
    strict = FakeSession(find, Policy(on_miss="error"), None)
    with torch.no_grad(), inductor_config.patch(max_autotune=True), active.use(strict):
        kit.close(kit.compiled(model, x, w, s), model(x, w, s))
    assert kit.lowered() == [kit.ATEN]
