"""Products of one activation as one kernel, on a GPU: right, and served where a trial says that it is faster."""

import math

import pytest
import torch
from kit.horizontal import fp8_linear, quantised
from torch import nn

import gemmdb.inductor
from gemmdb import Policy
from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.observe.journal import JOURNAL

CASES = {
    "decode": (1, (4096, 1024, 1024), False, torch.bfloat16),
    "few rows": (4, (2048, 512, 512), True, torch.bfloat16),
    "16 rows": (16, (4096, 1024, 1024), False, torch.float16),
    "an encoder": (308, (512, 512, 512), True, torch.bfloat16),
    "odd rows": (777, (768, 768), True, torch.float16),
}

PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=60.0)
"""The kernels compile one after the other in a test."""


class Several(nn.Module):
    """Linear layers of one input, each followed by elementwise work of its own."""

    def __init__(self, k: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, width, bias=bias) for width in widths)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """One output for each layer."""
        return [layer(x).sin() + place for place, layer in enumerate(self.layers)]


@pytest.fixture
def always(monkeypatch):
    """The one kernel is tried and served, whatever the tables expect and the trial says."""
    monkeypatch.setattr(fusing, "PROMISING", math.inf)
    monkeypatch.setattr(fusing, "_pays", lambda timed, job: True)
    monkeypatch.setattr(fusing, "noisy", lambda aten, ours: False)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel_is_right(clean, kit, tmp_path, monkeypatch, always, case) -> None:
    rows, widths, bias, dtype = case
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model = Several(1024, widths, bias).cuda().to(dtype)
    x = torch.randn(rows, 1024, device="cuda", dtype=dtype)
    gemmdb.inductor.enable(policy=PATIENT)
    with torch.no_grad():
        wanted = [one.float() for one in Several.forward(model.float(), x.float())]
        found = torch.compile(model.to(dtype))(x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.05)
    stats = gemmdb.inductor.stats()
    assert not stats["errors"]
    events = JOURNAL.events
    assert [event.evidence["horizontal"]["products"] for event in events] == [len(widths)] * len(widths)
    (config,) = {event.config for event in events}
    assert config.startswith("triton:")


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_one_kernel_of_int4_weights(clean, kit, tmp_path, monkeypatch, always, rows) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    k, widths, pack = 4096, (4096, 1024, 1024), torch.ops.aten._convert_weight_to_int4pack
    numbers = [torch.randint(0, 256, (width, k // 2), dtype=torch.uint8, device="cuda") for width in widths]
    layers = [(pack(one, 8), kit.rand(k // 128, one.shape[0], 2) * 0.01) for one in numbers]
    x = kit.rand(rows, k)

    def model(x):
        multiply = torch.ops.aten._weight_int4pack_mm
        return [multiply(x, weight, 128, scale).relu() + place for place, (weight, scale) in enumerate(layers)]

    wanted = model(x)
    gemmdb.inductor.enable(policy=PATIENT)
    with torch.no_grad():
        found = torch.compile(model)(x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.02, atol=0.05)
    assert not gemmdb.inductor.stats()["errors"]
    assert [event.evidence["horizontal"]["products"] for event in JOURNAL.events] == [3, 3, 3]


FP8_CASES = {"one row": (1, False), "a few": (4, True), "16 rows": (16, False), "64 rows": (64, True)}


@pytest.mark.parametrize("case", FP8_CASES.values(), ids=FP8_CASES)
def test_one_kernel_of_layers_that_quantise_for_themselves(clean, kit, tmp_path, monkeypatch, always, case) -> None:
    rows, bias = case
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    widths = (4096, 1024, 1024)
    layers = [(*quantised(kit.rand(width, 4096)), kit.rand(width) if bias else None) for width in widths]
    x = kit.rand(rows, 4096)

    def model(x):
        return [fp8_linear(x, *layer).relu() + place for place, layer in enumerate(layers)]

    with torch.no_grad():
        # Compiled code rounds a scale less often than the eager one, so that many activations become other numbers.
        wanted = torch.compile(model)(x)
        torch._dynamo.reset()
        gemmdb.inductor.enable(policy=PATIENT)
        found = torch.compile(model)(x)
    for one, other in zip(found, wanted, strict=True):
        # The products are about 64, and rounded to 8 bits.
        torch.testing.assert_close(one.float(), other.float(), rtol=0.02, atol=0.5)
    assert not gemmdb.inductor.stats()["errors"]
    assert [event.evidence["horizontal"]["products"] for event in JOURNAL.events] == [3, 3, 3]
