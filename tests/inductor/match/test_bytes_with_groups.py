"""Weights of eight bits whose groups have scales, as checkpoints of compressed-tensors have them: the
spellings that are found, and close ones that are other weights."""

import functools

import pytest
import torch
from kit import dequantised
from torch import nn

N, K, G = 64, 256, 64
GROUPS = K // G
INT32 = (-(2**31), 2**31 - 1, torch.int32)
INT8, UINT8 = (-128, 128, torch.int8), (0, 256, torch.uint8)


def unpacked(words, columns, along=1, bits=8, low=128, order=lambda place: place, places=None):
    """Numbers of words of 32 bits, written one after the other into a tensor."""
    many = 32 // bits
    sizes = (words.shape[0], columns) if along else (columns, words.shape[1])
    whole = torch.zeros(sizes, device=words.device, dtype=torch.int32)
    for place in places or range(many):
        found = (words >> bits * order(place)) & ((1 << bits) - 1)
        if along:
            whole[:, place::many] = found
        else:
            whole[place::many, :] = found
    return (whole[:, :columns] - low).to(torch.int8)


def scaled(numbers, scale, zeros=None):
    found = numbers.unflatten(-1, (GROUPS, G)).to(scale.dtype)
    if zeros is not None:
        found = found - zeros.unsqueeze(-1).to(scale.dtype)
    return (found * scale.unsqueeze(-1)).flatten(start_dim=-2)


def plain(w, s):
    return scaled(w, s)


def in_integers(w, s, z):
    """As torchao dequantised in earlier versions: zero points are taken off before the cast."""
    found = w.view(N, GROUPS, G).to(torch.int32) - z.view(N, GROUPS, 1).to(torch.int32)
    return (found.to(s.dtype) * s.view(N, GROUPS, 1)).view(N, K)


def fp32_scales(w, s, z):
    """As torchao dequantises int8 with groups: its scales are fp32."""
    found = w.view(N, GROUPS, G).to(torch.bfloat16) - z.view(N, GROUPS, 1).to(torch.bfloat16)
    return (found * s.view(N, GROUPS, 1)).view(N, K)


def unsigned(w, s):
    return ((w.view(N, GROUPS, G).to(s.dtype) - 128) * s.unsqueeze(-1)).view(N, K)


def in_words(w, s, **how):
    return scaled(unpacked(w, K, **how), s)


def in_words_with_zeros(w, s, z, **how):
    return scaled(unpacked(w, K), s, unpacked(z, N, along=0, **how))


def repeated(w, s, z):
    return (w.to(s.dtype) - z.repeat_interleave(G, 1).to(s.dtype)) * s.repeat_interleave(G, 1)


FLAT, WORDS, ZEROS, ZERO_WORDS = (N, K), (N, K // 4), (N, GROUPS), (N // 4, GROUPS)
FOUND = {
    # name: (weight [N, K], its tensor, zero points, weight and zero points in the key)
    "plain": (plain, (FLAT, INT8), None, "int8", "none"),
    "zero points": (in_integers, (FLAT, INT8), (ZEROS, INT8), "int8", "int8"),
    "fp32 scales": (fp32_scales, (FLAT, INT8), (ZEROS, INT8), "int8", "int8"),
    "unsigned": (unsigned, (FLAT, UINT8), None, "uint8", "none"),
    "unsigned with zero points": (repeated, (FLAT, UINT8), (ZEROS, UINT8), "uint8", "uint8"),
    "words": (in_words, (WORDS, INT32), None, "uint8", "none"),
    "words with zero points": (in_words_with_zeros, (WORDS, INT32), (ZERO_WORDS, INT32), "uint8", "uint8x4"),
}
UNLIKE = {
    "another zero": (functools.partial(in_words, low=127), (WORDS, INT32), None),
    "a cast that wraps around": (functools.partial(in_words, low=0), (WORDS, INT32), None),
    "places in another order": (functools.partial(in_words, order=lambda place: 3 - place), (WORDS, INT32), None),
    "a place that is never written": (functools.partial(in_words, places=(0, 1, 2)), (WORDS, INT32), None),
    "zero points that count from another number": (
        functools.partial(in_words_with_zeros, low=127), (WORDS, INT32), (ZERO_WORDS, INT32)),
    "signed zero points of an unsigned weight": (repeated, (FLAT, UINT8), (ZEROS, INT8)),
    "a difference in eight bits": (
        lambda w, s, z: scaled((w.view(N, GROUPS, G) - z.unsqueeze(-1)).view(N, K), s), (FLAT, INT8),
        (ZEROS, INT8)),
    "groups side by side": (lambda w, s: w.to(s.dtype) * s.repeat(1, G), (FLAT, INT8), None),
    "bytes that the program computes": (lambda w, s: scaled(w // 2, s), (FLAT, INT8), None),
}  # fmt: skip


def tensor(sizes, kind):
    return torch.randint(*kind[:2], sizes, dtype=kind[2])


class Layer(nn.Module):
    def __init__(self, weight, stored, zeros, dtype=torch.bfloat16):
        super().__init__()
        self.weight = weight
        self.register_buffer("w", tensor(*stored))
        self.register_buffer("s", (torch.rand(N, GROUPS) / 64).to(torch.float32 if weight is fp32_scales else dtype))
        self.register_buffer("z", None if zeros is None else tensor(*zeros))

    def forward(self, x):
        tensors = (self.w, self.s) if self.z is None else (self.w, self.s, self.z)
        return nn.functional.linear(x, self.weight(*tensors).to(x.dtype))


def packing_of(weight):
    return "byte-fp32" if weight is fp32_scales else "byte"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FOUND)
def test_the_operator_computes_what_the_program_does(name, dtype):
    weight, stored, given, _, zeros = FOUND[name]
    groups = dequantised.replaced(
        *dequantised.of_layer(Layer(weight, stored, given, dtype), torch.randn(4, K).to(dtype))
    )
    assert (groups.size, groups.packing, groups.zeros) == (G, packing_of(weight), zeros)


@pytest.mark.parametrize("name", UNLIKE)
def test_a_weight_that_is_another_one(name):
    graph = dequantised.traced(*dequantised.of_layer(Layer(*UNLIKE[name]), torch.randn(4, K).bfloat16()))
    assert dequantised.weights(graph) == []


def test_programs_compile_to_these_problems():
    ends = [
        (weight, f" group={G} zeros={zeros} packing={packing_of(spelling)}")
        for spelling, *_, weight, zeros in FOUND.values()
    ]
    dequantised.check_problems([Layer(*rest) for *rest, _, _ in FOUND.values()], (N, K), ends)


def test_weights_are_dequantised_where_no_kernel_multiplies_them():
    layers = [Layer(*one[:3]) for one in FOUND.values()]
    calls = [(layer.w, layer.s, layer.z, G, packing_of(layer.weight)) for layer in layers]
    dequantised.lowered_to_aten(layers, [torch.randn(4, K).bfloat16() for _ in layers], calls)
