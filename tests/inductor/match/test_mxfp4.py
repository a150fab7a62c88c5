"""MXFP4 weights that a program unpacks and scales itself: the spellings that are found, and close ones that are other
weights."""

import functools

import torch
from kit.dequantised import check_problems, compiled_problems, lowered_to_aten
from torch import nn

N, K, G = 64, 256, 32
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES += [-one for one in VALUES]


def by_slices(w, s, values=VALUES, bias=127, low=0):
    """As transformers dequantises gpt-oss: values are written in turn, and ldexp scales them."""
    table = torch.tensor(values, dtype=torch.bfloat16, device=w.device)
    exponents = s.to(torch.int32) - bias
    blocks = w.reshape(-1, G // 2)
    out = torch.empty(len(blocks), G, dtype=torch.bfloat16, device=w.device)
    out[:, low::2] = table[(blocks & 15).to(torch.long)]
    out[:, 1 - low :: 2] = table[(blocks >> 4).to(torch.long)]
    torch.ldexp(out, exponents.reshape(-1, 1), out=out)
    return out.reshape(N, K)


def stacked(w, s, scale=lambda s: torch.exp2(s.to(torch.float32) - 127).to(torch.bfloat16), group=G):
    table = torch.tensor(VALUES, dtype=torch.bfloat16, device=w.device)
    numbers = torch.stack((w & 15, w >> 4), dim=-1).view(N, K)
    return (table[numbers.int()].view(N, K // group, group) * scale(s).unsqueeze(-1)).view(N, K)


def in_fp32(w, s):
    table = torch.tensor(VALUES, device=w.device)
    numbers = torch.stack((w & 15, w >> 4), dim=-1).view(N, K)
    scale = 2.0 ** (s.to(torch.int32) - 127)
    return (table[numbers.int()] * scale.repeat_interleave(G, 1)).to(torch.bfloat16)


FOUND = {
    "slices and ldexp": by_slices,
    "stacked, with exp2": stacked,
    "a power of bf16": functools.partial(stacked, scale=lambda s: 2.0 ** (s.to(torch.int32) - 127).to(torch.bfloat16)),
    "in fp32": in_fp32,
}
UNLIKE = {
    "other values": functools.partial(by_slices, values=[*VALUES[:7], 8.0, *VALUES[8:]]),
    "another bias": functools.partial(by_slices, bias=126),
    "the high four bits first": functools.partial(by_slices, low=1),
    "the exponent as the scale": functools.partial(stacked, scale=lambda s: (s.to(torch.bfloat16) - 127)),
    "a power of three": functools.partial(stacked, scale=lambda s: (3.0 ** (s.to(torch.int32) - 127)).bfloat16()),
    "values as numbers": lambda w, s: (torch.stack((w & 15, w >> 4), dim=-1).view(N, K).bfloat16()
                                       * torch.exp2(s.float() - 127).bfloat16().repeat_interleave(G, 1)),
}  # fmt: skip


class Layer(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.register_buffer("w", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("s", torch.randint(120, 130, (N, K // G), dtype=torch.uint8))

    def forward(self, x):
        return nn.functional.linear(x, self.weight(self.w, self.s))


def test_programs_compile_to_these_problems():
    layers = [Layer(weight) for weight in FOUND.values()]
    check_problems(layers, (N, K), [("fp4_e2m1", f" group={G} zeros=none packing=mxfp4")] * len(layers))


def test_weights_that_are_others_are_bf16_gemms():
    found = compiled_problems([Layer(weight) for weight in UNLIKE.values()], K)
    assert [text.partition(" ")[0] for text in found] == ["mm"] * len(UNLIKE)


def test_weights_are_dequantised_where_no_kernel_multiplies_them():
    """Every scale included."""
    layers = [Layer(weight) for weight in FOUND.values()]
    for layer in layers:
        layer.s[:2] = torch.arange(16, dtype=torch.uint8).view(2, -1)
    calls = [(layer.w, layer.s, None, G, "mxfp4") for layer in layers]
    lowered_to_aten(layers, [torch.randn(4, K).bfloat16() for _ in layers], calls)
