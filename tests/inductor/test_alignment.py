"""Operands that begin elsewhere than those that were compiled for, or than a kernel can read them."""

import json

import pytest

HEAD = """
    import torch
    import torch._inductor.config as inductor_config
    import gemmdb.inductor
    from gemmdb import Config
    from torch.nn.functional import linear

    config = Config.of("aten", "int8pack_mm")
    product = lambda x, w: linear(x, w.to(x.dtype))
"""
ROWS = """
    f = torch.compile(product, backend="inductor")
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
    errors, configs = kit.forked(HEAD + ROWS.replace("OFFSETS", json.dumps(offsets)))
    assert set(configs) == {"aten:int8pack_mm"}
    assert max(errors) < 2


WEIGHTS = """
    class Model(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x):
            return linear(x, self.weight.to(x.dtype))

    memory = torch.randint(-128, 128, (64 * 128 + 64,), dtype=torch.int8)
    start = -memory.data_ptr() % 64
    raw = bytearray(len(memory))
    torch.frombuffer(raw, dtype=torch.int8).copy_(memory)
    x = torch.randn(8, 128).bfloat16()

    def at(offset):  # How far into its storage says the weight itself.
        return memory[start + offset :][: 64 * 128].view(64, 128)

    def mapped(offset):  # And here nothing does.
        base = torch.frombuffer(raw, dtype=torch.int8).data_ptr()
        return torch.frombuffer(raw, dtype=torch.int8, offset=-base % 64 + offset, count=64 * 128).view(64, 128)

    def run(f, calls):
        torch._dynamo.reset()
        f = torch.compile(f, backend="inductor")
        return [float((f(x, *call).double() - x.double() @ w.double().t()).abs().max()) for w, *call in calls]

    errors = []
    with torch.no_grad(), gemmdb.inductor.force(config), inductor_config.patch(PATCH):
        for make in (at, mapped):
            errors += run(product, [(make(offset),) * 2 for offset in (0, 3, 8, 16)])
            errors += run(product, [(make(8),) * 2, (make(0),) * 2])
            errors += run(Model(make(8)), [(make(8),)])
        errors += run(lambda x, w: product(x, w.view(-1)[8:][: 63 * 128].view(63, 128)),
                      [(at(8)[:63], at(0))])
    print(json.dumps([errors, [p["config"] for p in gemmdb.inductor.stats()["products"]]]))
"""


@pytest.mark.parametrize(
    "patch", [{}, {"freezing": True}, pytest.param({"cpp_wrapper": True}, marks=pytest.mark.slow)], ids=str
)
def test_the_weight_only_kernel_never_sees_a_misaligned_weight(kit, patch):
    errors, configs = kit.forked(HEAD + WEIGHTS.replace("PATCH", repr(patch)))
    assert len(errors) == 15
    assert max(errors) < 16  # Of sums of 128 products of up to 127 each, rounded to bf16.
    assert "aten:int8pack_mm" in configs
