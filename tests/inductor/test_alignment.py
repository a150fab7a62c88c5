"""Inputs at run time that are less aligned than those that were compiled for."""

import json

import pytest

PROGRAM = """
    import torch
    import gemmdb.inductor
    from gemmdb import Config
    from torch.nn.functional import linear

    config = Config.of("aten", "int8pack_mm")
    f = torch.compile(lambda x, w: linear(x, w.to(x.dtype)), backend="inductor")
    w = torch.randint(-5, 5, (32, 1024), dtype=torch.int8)
    memory = torch.randn(8 * 1024 + 64).bfloat16()
    start = -(memory.data_ptr() // 2) % 32  # the first element on a boundary of 64 bytes
    errors = []
    with torch.no_grad(), gemmdb.inductor.force(config):
        for offset in OFFSETS:
            x = memory[start + offset :][: 8 * 1024].view(8, 1024)
            error = (f(x, w).double() - x.double() @ w.double().t()).abs().max()
            errors.append(float(error))
    print(json.dumps([errors, [p["config"] for p in gemmdb.inductor.stats()["products"]]]))
"""


@pytest.mark.parametrize("offsets", [[0, 8, 16], [8, 0]])
def test_the_weight_only_kernel_never_sees_a_misaligned_row(kit, offsets):
    errors, configs = kit.forked(PROGRAM.replace("OFFSETS", json.dumps(offsets)))
    assert set(configs) == {"aten:int8pack_mm"}
    assert max(errors) < 2
