"""Constant weights that begin inside their storage: slices of a fused projection, frozen."""

import pytest
import torch
from torch import nn

linear = nn.functional.linear


class Sliced(nn.Module):
    """The last 32 rows of a fused weight [96, 64], as `dtype` and cast where it is used."""

    def __init__(self, dtype):
        super().__init__()
        fused = torch.randn(96, 64) if dtype.is_floating_point else torch.randint(0, 100, (96, 64))
        self.register_buffer("w", fused.to(dtype)[64:])

    def forward(self, x):
        return linear(x, self.w.to(x.dtype))


@pytest.mark.parametrize(
    ("activation", "weight"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.int8),
        (torch.bfloat16, torch.uint8),
        (torch.float16, torch.int8),
    ],
    ids=str,
)
def test_a_weight_inside_its_storage_is_read_where_it_is(kit, activation, weight):
    stats = kit.forced(kit.CPP, Sliced(weight).eval(), torch.randn(8, 64).to(activation), freezing=True)
    product = kit.only(stats)
    assert (product["config"], product["note"], stats["errors"]) == (kit.CPP.text, "", [])
