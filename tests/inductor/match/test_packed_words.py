"""Weights as checkpoints of GPTQ, AWQ and compressed-tensors have them: the spellings that are found, and close ones
that are other weights."""

import functools

import pytest
import torch
from kit import dequantised
from torch import nn

N, K, G = 64, 256, 64
AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def shifts(dtype=torch.int32, step=4):
    return torch.arange(0, 8 * step, step, dtype=dtype)


def words_of_rows(w, by=shifts, mask=15):
    """[K / 8, N] words along K as numbers [K, N]."""
    shift = by().unsqueeze(0).unsqueeze(-1)
    numbers = torch.bitwise_right_shift(w.unsqueeze(1).expand(-1, 8, -1), shift).to(torch.int8)
    return torch.bitwise_and(numbers, mask).reshape(-1, w.shape[1])


def words_of_columns(w, order=None, by=shifts, mask=15):
    """[K, N / 8] words along N as numbers [K, N]."""
    numbers = torch.bitwise_right_shift(w[:, :, None], by(torch.int64)[None, None, :]).to(torch.int8)
    numbers = numbers.view(w.shape[0], -1)
    if order is not None:
        index = torch.arange(numbers.shape[1], dtype=torch.int32).view(-1, 8)[:, order].reshape(-1)
        numbers = numbers[:, index]
    return numbers if mask == 255 else torch.bitwise_and(numbers, mask)


def first_format(s, add=1, wrap=True, unpack=words_of_rows):
    """Scales and zero points of groups beside the numbers, one less than they are: the first format of GPTQ."""
    zeros = words_of_columns(s.z, mask=255 if wrap else 15) + add
    zeros = torch.bitwise_and(zeros, 15) if wrap else zeros
    weight = unpack(s.w).reshape(-1, G, N)
    return (s.s.reshape(-1, 1, N) * (weight - zeros.reshape(-1, 1, N))).reshape(K, N)


def second_format(s, unpack=words_of_rows):
    """Scales and zero points repeated for each row, as they are: the second format of GPTQ."""
    zeros = words_of_columns(s.z)[:, :N].repeat_interleave(G, 0)
    return s.s.repeat_interleave(G, dim=0) * (unpack(s.w) - zeros)


def by_shifts(s):
    """Each number of a word is shifted by itself."""
    numbers = torch.stack([(s.w >> (4 * place)) & 15 for place in range(8)], dim=1).reshape(K // G, G, N)
    zeros = torch.stack([(s.z >> (4 * place)) & 15 for place in range(8)], dim=2).reshape(K // G, 1, N)
    return ((numbers - zeros).to(s.s.dtype) * s.s.unsqueeze(1)).reshape(K, N)


def awq(s, order=AWQ, zero_order=AWQ, repeats=None):
    repeats = repeats or (lambda one: one.repeat_interleave(G, dim=0))
    return (words_of_columns(s.w, order) - repeats(words_of_columns(s.z, zero_order))) * repeats(s.s)


def compressed(s):
    """Four bytes in a word, low four bits first, less 8."""
    numbers = s.w.view(torch.uint8)
    numbers = torch.stack((numbers & 15, numbers >> 4), dim=-1).view(torch.int8).view(N, -1)[:, :K] - 8
    return (numbers.view(N, K // G, G).to(s.s.dtype) * s.s[..., None]).view(N, K).t()


def in_bytes(words):
    """The numbers of words [rows, columns], by their bytes."""
    found = words.contiguous().view(torch.uint8)
    return torch.stack((found & 15, found >> 4), dim=-1).view(torch.int8).view(len(words), -1) - 8


def by_slices(words, dim):
    """The numbers of words, written one after the other into a tensor."""
    rows, columns = words.shape
    whole = torch.zeros((rows, 8 * columns) if dim else (8 * rows, columns), dtype=torch.int32)
    for place in range(8):
        found = (words >> (4 * place)) & 15
        if dim:
            whole[:, place::8] = found
        else:
            whole[place::8, :] = found
    return (whole - 8).to(torch.int8)


def compressed_with_zeros(s, unpack=None, low=0):
    """Zero points share words along N."""
    numbers, zeros = (unpack or (lambda s: (in_bytes(s.w), in_bytes(s.z.transpose(0, 1)).transpose(0, 1))))(s)
    found = numbers.view(N, K // G, G).to(s.s.dtype) - (zeros - low).unsqueeze(-1).to(s.s.dtype)
    return (found * s.s[..., None]).view(N, K).t()


def sliced_with_zeros(s):
    return compressed_with_zeros(s, lambda s: (by_slices(s.w, 1), by_slices(s.z, 0)))


FOUND = {
    # name: (weight [K, N] of the tensors, packing, zero points)
    "first format": (first_format, "gptq", "int4"),
    "second format": (second_format, "gptq2", "int4"),
    "second format, by shifts": (by_shifts, "gptq2", "int4"),
    "awq": (awq, "awq", "int4"),
    "bytes in words": (compressed, "low-first", "none"),
    "bytes in words, with zero points": (compressed_with_zeros, "low-first", "int4"),
    "slices of words, with zero points": (sliced_with_zeros, "low-first", "int4"),
}
COPIES_BYTES = torch.__version__ >= "2.13"
"""Whether Inductor compiles the bytes of a transposed matrix's copy: before, it raises, with or without gemmdb."""
UNLIKE = {
    "zero points plus 2": ("gptq", functools.partial(first_format, add=2)),
    "zero points plus 1 with other bits": ("gptq", functools.partial(
        first_format, unpack=functools.partial(words_of_rows, mask=255))),
    "zero points plus 1 that may be 16": ("gptq", functools.partial(first_format, wrap=False)),
    "three bits": ("gptq", functools.partial(first_format, unpack=functools.partial(words_of_rows, mask=7))),
    "shifts of three": ("gptq", functools.partial(
        first_format, unpack=functools.partial(words_of_rows, by=functools.partial(shifts, step=3)))),
    "numbers of a word from the high end": ("gptq", functools.partial(
        first_format, unpack=functools.partial(words_of_rows, by=lambda: 28 - shifts()))),
    "words of neighbours as rows": ("gptq", functools.partial(
        first_format, unpack=lambda w: words_of_rows(w).view(K // 8, 8, N).transpose(0, 1).reshape(K, N))),
    "columns in the order that they lie": ("awq", functools.partial(awq, order=None)),
    "columns in the order of packing": ("awq", functools.partial(awq, order=[0, 2, 4, 6, 1, 3, 5, 7])),
    "zero points in another order": ("awq", functools.partial(awq, zero_order=None)),
    "zero points of bytes that count from another number": ("low-first", functools.partial(
        compressed_with_zeros, low=1)),
    "zero points of bytes along the groups": ("low-first", functools.partial(
        compressed_with_zeros, unpack=lambda s: (in_bytes(s.w), in_bytes(s.z.view(K // G, -1)).view(N, -1)))),
    "groups side by side": ("awq", functools.partial(awq, repeats=lambda one: one.repeat(G, 1))),
}  # fmt: skip


class Layer(nn.Module):
    def __init__(self, packing, weight, dtype=torch.bfloat16):
        super().__init__()
        whole, sizes = (N // 8, K // G) if packing == "low-first" else (K // G, N // 8), {
            "awq": (K, N // 8), "low-first": (N, K // 8)}.get(packing, (K // 8, N))  # fmt: skip
        groups = (N, K // G) if packing == "low-first" else (K // G, N)
        for name, one in (("w", sizes), ("z", whole)):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, one, dtype=torch.int32))
        self.register_buffer("s", torch.rand(groups).to(dtype) / 64)
        self.weight = weight

    def forward(self, x):
        return torch.matmul(x, self.weight(self))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FOUND)
def test_the_operator_computes_what_the_program_does(name, dtype):
    weight, packing, zeros = FOUND[name]
    groups = dequantised.replaced(*dequantised.of_layer(Layer(packing, weight, dtype), torch.randn(4, K).to(dtype)))
    assert (groups.size, groups.packing, groups.zeros) == (G, packing, zeros)


@pytest.mark.parametrize("name", UNLIKE)
def test_a_weight_that_is_another_one(name):
    packing, weight = UNLIKE[name]
    graph = dequantised.traced(*dequantised.of_layer(Layer(packing, weight), torch.randn(4, K).bfloat16()))
    assert dequantised.weights(graph) == []


def test_zero_points_with_a_fraction_are_not_cut_off():
    """A cast to an integer after the zero points were subtracted computes another weight."""

    def program(x, w, zeros, scale, cut):
        numbers = torch.stack((w & 15, w >> 4), dim=-1).view(N, K // G, G).to(x.dtype) - zeros[..., None]
        numbers = numbers.to(torch.int8).to(x.dtype) if cut else numbers
        return x @ (numbers * scale[..., None]).view(N, K).t()

    inputs = (torch.randn(4, K).bfloat16(), torch.randint(0, 256, (N, K // 2), dtype=torch.uint8),
              torch.rand(N, K // G).bfloat16(), torch.rand(N, K // G).bfloat16())  # fmt: skip
    found = []
    for cut in (False, True):
        graph = dequantised.traced(functools.partial(program, cut=cut), inputs)
        found.append([one.groups.zeros for one in dequantised.weights(graph)])
    assert found == [["bf16"], []]


def test_an_argument_by_its_name_is_no_other_argument():
    """A pass may write `dim` of a cat as a keyword. Read as the default, all low numbers would alternate with all high
    ones."""

    def program(x, w, scale):
        numbers = torch.cat(((w & 15).view(1, -1), (w >> 4).view(1, -1)), 1).t().reshape(N, K // G, G)
        return x @ ((numbers.to(x.dtype) - 8) * scale[..., None]).view(N, K).t()

    inputs = (torch.randn(4, K).bfloat16(), torch.randint(0, 256, (N, K // 2), dtype=torch.uint8),
              torch.rand(N, K // G).bfloat16())  # fmt: skip
    graph = dequantised.traced(program, inputs)
    (joined,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.cat.default]
    joined.args, joined.kwargs = joined.args[:1], {"dim": joined.args[1]}
    assert dequantised.weights(graph) == []


def test_a_long_way_is_not_followed():
    """Without an exception, and without a search of the whole graph."""

    def program(x, w, scale):
        numbers = (w & 15).repeat_interleave(2, 1)
        for _ in range(300):
            numbers = numbers + 1 & 15
        return x @ (numbers.to(x.dtype) * scale)

    inputs = (torch.randn(4, K).bfloat16(), torch.randint(0, 99, (K, N // 2), dtype=torch.int32),
              torch.rand(K, N).bfloat16())  # fmt: skip
    assert dequantised.weights(dequantised.traced(program, inputs)) == []


@pytest.mark.slow
def test_programs_compile_to_these_problems():
    compiling = [FOUND[name] for name in FOUND if name != "bytes in words, with zero points" or COPIES_BYTES]
    layers = [Layer(packing, weight) for weight, packing, _ in compiling]
    ends = [("int4", f" group={G} zeros={zeros} packing={packing}") for _, packing, zeros in compiling]
    dequantised.check_problems(layers, (N, K), ends)


def test_weights_are_dequantised_where_no_kernel_multiplies_them():
    layers = [Layer(packing, weight) for weight, packing, _ in FOUND.values()]
    calls = [
        (layer.w, layer.s, None if zeros == "none" else layer.z, G, packing)
        for layer, (_, packing, zeros) in zip(layers, FOUND.values(), strict=True)
    ]
    dequantised.lowered_to_aten(layers, [torch.randn(4, K).bfloat16() for _ in layers], calls)
