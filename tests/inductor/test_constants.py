"""Constant weights: those that begin inside their storage, as slices of a fused projection, and GEMMs without one."""

import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from torch import nn

import gemmdb.inductor
from gemmdb.inductor import force

linear = nn.functional.linear


class Sliced(nn.Module):
    """The last 32 rows of a fused weight [96, 64], as `dtype` and cast where it is used."""

    def __init__(self, dtype):
        super().__init__()
        fused = torch.randn(96, 64) if dtype.is_floating_point else torch.randint(0, 100, (96, 64))
        self.register_buffer("w", fused.to(dtype)[64:])

    def forward(self, x):
        return linear(x, self.w.to(x.dtype))


def test_a_weight_inside_its_storage_is_read_where_it_is(kit):
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    dtypes = [(fp32, fp32), (bf16, bf16), (bf16, torch.int8), (bf16, torch.uint8), (fp16, torch.int8)]
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(
            [Sliced(weight) for _, weight in dtypes], [(torch.randn(8, 64).to(activation),) for activation, _ in dtypes]
        )
    stats = gemmdb.inductor.stats()
    assert kit.lowered(stats) == [kit.CPP] * len(dtypes)
    assert ({entry["note"] for entry in stats["products"]}, stats["errors"]) == ({""}, [])


def test_inductor_freezes_nothing_where_gradients_are_enabled(kit):
    """Also if the program itself disables them. A table then served the C++ template, for a constant that was none."""
    layer, x = Sliced(torch.int8), torch.randn(8, 64).bfloat16()
    with inductor_config.patch(freezing=True), force(kit.left_alone):
        kit.close(kit.compiled(torch.no_grad()(lambda x: layer(x)), x), layer(x))
        layer.w += 1
        kit.close(kit.compiled(torch.no_grad()(lambda x: layer(x)), x), layer(x))
    assert kit.only()["problem"].endswith("constant=0")


def test_a_gemm_of_two_inputs_is_not_told_to_freeze(kit):
    """Its second operand is no weight: freezing changes nothing."""

    class Attention(torch.nn.Linear):
        def forward(self, x, y):
            q = super().forward(x) @ (y + 1)
            return torch.softmax(q @ q.t(), -1) @ q

    gemmdb.inductor.enable()
    with torch.no_grad():
        kit.compiled(Attention(24, 16, bias=False), torch.randn(8, 24), torch.randn(16, 16))
    whys = [one["why"] for one in gemmdb.inductor.stats()["products"]]
    assert sorted("freezing" in why for why in whys) == [False, False, False, True]
    text = str(gemmdb.inductor.summary())
    assert text.count("both operands of this GEMM are inputs or computed") == text.count("freezing = True") == 1


def test_a_weight_in_training_is_told_what_holds_in_inference(kit):
    """The inputs of a backward are others than those of its forward: whether they are weights is unknown."""
    gemmdb.inductor.enable()
    kit.compiled(torch.nn.Linear(16, 8), torch.randn(4, 16, requires_grad=True)).sum().backward()
    whys = [one["why"] for one in gemmdb.inductor.stats()["products"]]
    assert len(whys) == 3
    assert all("in inference, set" in why for why in whys)
