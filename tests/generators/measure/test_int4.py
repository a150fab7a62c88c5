"""Problems with int4 weights as torch programs: how they are packed, their exact product, and the preset."""

import pytest
import torch

from gemmdb import Problem
from gemmdb.errors import InputError
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.operands import Operands, blank, operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.inductor.match.ops import dequantised, numbers

CPU = torch.device("cpu")


def int4(**rest):
    return Problem.gemm("mixed_mm", **{"m": 5, "n": 64, "k": 256, "weight_dtype": "int4", "group": 64, **rest})


def packed_by_lanes(found, inner):
    """[n, k] numbers as a matrix unit's lanes take them: lane t of a tile of 8 columns and 32 of K has column t / 4,
    and of K 2 (t % 4) and its neighbour, four times 8 apart. The even ones are the low halves of a word."""
    n, k = found.shape
    words = torch.zeros(n // 8, k // (16 * inner), 32, inner // 2, dtype=torch.int64)
    for tile, step, lane, word in torch.cartesian_prod(*map(torch.arange, words.shape)).tolist():
        column, first = 8 * tile + lane // 4, 16 * inner * step + 32 * word + 2 * (lane % 4)
        for eight in range(4):
            for half in range(2):
                number = int(found[column, first + 8 * eight + half])
                words[tile, step, lane, word] |= number << (4 * eight + 16 * half)
    return words.to(torch.int32)


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_a_tiled_weight_is_read_as_the_matrix_unit_takes_it(inner):
    found = torch.randint(0, 16, (16, 256))
    own = int4(packing=f"tinygemm{inner}").int4
    assert torch.equal(numbers(packed_by_lanes(found, inner), own), found.to(torch.uint8))


def test_two_numbers_are_in_a_byte():
    packed = torch.tensor([[0x21, 0x43]], dtype=torch.uint8)
    assert numbers(packed, int4(packing="low-first").int4).tolist() == [[1, 2, 3, 4]]
    assert numbers(packed, int4(packing="high-first").int4).tolist() == [[2, 1, 4, 3]]


def test_eight_numbers_are_in_a_word():
    """Hexadecimal digits, the first of a word last: along K, and for AWQ along N, even columns before odd ones."""
    word = torch.tensor([[0x76543210, 0x0EDCBA98]], dtype=torch.int32)
    rows = numbers(word, int4(packing="gptq", group=32).int4)
    assert rows.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 0]]
    columns = numbers(word, int4(packing="awq", group=32).int4)
    assert columns.flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 0]


@pytest.mark.parametrize(("packing", "wanted"), [("gptq", [-4.0, -8.0, 7.0, 6.0]), ("gptq2", [-2.0, -6.0, -8.0, 7.0])])
def test_the_first_format_of_gptq_counts_from_one_more(packing, wanted):
    """Sevens that count from 8, 10, 15 and 0, or from 9, 11, 0 and 1."""
    own = int4(packing=packing, group=32, n=8, k=32).int4
    packed, scale = torch.full((4, 8), 0x77777777, dtype=torch.int32), torch.tensor([[2.0, 2.0, 1.0, 1, 1, 1, 1, 1]])
    weight = dequantised(packed, scale, torch.tensor([[0x0FA8]], dtype=torch.int32), own, torch.float64)
    assert weight[:4, 0].tolist() == wanted


def test_what_bytes_stand_for():
    own = int4(weight_dtype="uint8", group=32).int4
    packed, scale = torch.tensor([[0, 128, 255] + [129] * 29], dtype=torch.uint8), torch.tensor([[2.0]])
    for stored in (packed, packed.view(torch.int32)):
        assert dequantised(stored, scale, None, own, torch.float64)[0, :4].tolist() == [-256.0, 0.0, 254.0, 2.0]
    signed = int4(weight_dtype="int8", group=32, zeros="int8").int4
    zeros = torch.tensor([[-3]], dtype=torch.int8)
    weight = dequantised(packed.view(torch.int8), scale, zeros, signed, torch.float64)
    assert weight[0, :4].tolist() == [6.0, -250.0, 4.0, -248.0]


def test_four_zero_points_of_columns_are_in_a_word():
    own = int4(weight_dtype="uint8", group=32, zeros="uint8x4").int4
    words, scale = torch.tensor([[0x04030201, 0]], dtype=torch.int32), torch.ones(4, 2)
    weight = dequantised(torch.full((4, 64), 10, dtype=torch.uint8), scale, words, own, torch.float64)
    assert weight[:, 0].tolist() == [9.0, 8.0, 7.0, 6.0]
    assert weight[:, 63].tolist() == [10.0] * 4


def test_what_the_numbers_and_scales_of_mxfp4_stand_for():
    own = int4(weight_dtype="fp4_e2m1", group=32).int4
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 4], dtype=torch.uint8)
    for scale, factor in ((127, 1.0), (128, 2.0), (125, 0.25), (0, 2.0**-127)):
        weight = dequantised(packed, torch.full((1, 2), scale, dtype=torch.uint8), None, own, torch.float64)
        positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        assert weight[0, :16].tolist() == [one * factor for one in (*positive, *(-one for one in positive))]


def test_eight_zero_points_of_columns_are_in_a_word():
    own = int4(packing="low-first", group=32, zeros="int4").int4
    words, scale = torch.tensor([[0x76543210]], dtype=torch.int32), torch.ones(8, 1)
    weight = dequantised(torch.full((8, 16), 0x99, dtype=torch.uint8), scale, words, own, torch.float64)
    assert weight[:, 0].tolist() == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]


def test_what_the_numbers_stand_for():
    packed, scale = torch.full((1, 32), 0x9F, dtype=torch.uint8), torch.tensor([[2.0, 4.0]])
    weight = dequantised(packed, scale, None, int4(packing="low-first", group=32).int4, torch.float64)
    assert weight[0, :2].tolist() == [14.0, 2.0]
    assert weight[0, 32:34].tolist() == [28.0, 4.0]
    zeros = torch.tensor([[15, 9]], dtype=torch.uint8)
    own = int4(packing="low-first", group=32, zeros="uint8").int4
    weight = dequantised(packed, scale, zeros, own, torch.float64)
    assert weight[0, :2].tolist() == [0.0, -12.0]
    assert weight[0, 32:34].tolist() == [24.0, 0.0]
    words = torch.full((1, 1, 32, 1), 0x0F0F0F0F, dtype=torch.int32)
    scales = torch.tensor([[2.0, 0.5]]).expand(1, 8, 2)
    weight = dequantised(words, scales, None, int4(packing="tinygemm2", group=32).int4, torch.float64)
    assert set(weight.flatten().tolist()) == {-15.5, 14.5}
    added = torch.tensor([[0.5], [1.0]])
    weight = dequantised(packed, scale.t(), added, int4(packing="plain", group=32).int4, torch.float64)
    assert [weight[0, at].item() for at in (0, 1, 32)] == [-1.5, -13.5, -3.0]


BYTES = [
    int4(packing="plain", group=64, bias="1d"),
    int4(packing="low-first"), int4(packing="high-first", zeros="uint8", dtype="fp16", bias="1d"),
    int4(packing="low-first", zeros="bf16", group=32), int4(packing="high-first", zeros="int8", fusion="pointwise"),
    int4(packing="low-first", m=1, bias="1d", fusion="pointwise:math"), int4(packing="gptq", group=32, dtype="fp16"),
    int4(weight_dtype="int8", group=32), int4(weight_dtype="uint8", bias="1d", dtype="fp16"),
    int4(weight_dtype="uint8", zeros="uint8x4", fusion="pointwise"), int4(weight_dtype="int8", zeros="int8", m=1),
    int4(weight_dtype="int8", packing="byte-fp32", zeros="int8"), int4(weight_dtype="uint8", packing="byte-fp32", m=2),
    int4(weight_dtype="fp4_e2m1", group=32),
    int4(weight_dtype="fp4_e2m1", group=32, m=1, bias="1d", fusion="pointwise"),
    int4(weight_dtype="uint8", zeros="bf16"), int4(packing="low-first", zeros="int4", m=3),
    int4(packing="gptq2", bias="1d"), int4(packing="awq", m=1), int4(packing="awq", fusion="pointwise", group=128),
]  # fmt: skip


@pytest.mark.parametrize("problem", BYTES, ids=lambda problem: problem.text)
def test_the_program_computes_the_exact_gemm(problem):
    made = operands(problem, CPU, 0)
    assert Operands.of(made.named) == made
    module = Product(problem, made)
    assert reference(problem, made).error(module(*module.inputs)) <= tolerance(problem)
    sizes = [(name, one.shape, one.dtype, one.stride()) for name, one in made.named.items()]
    assert [(name, one.shape, one.dtype, one.stride()) for name, one in blank(problem, CPU).named.items()] == sizes


@pytest.mark.parametrize("problem", [int4(), *BYTES[:3]], ids=lambda problem: problem.text)
def test_the_scale_of_another_group_is_found_out(problem):
    made = operands(problem, CPU, 0)
    expected = reference(problem, made)
    along_k = 0 if problem.int4.inner else 1
    other = dict(made.named, scale=made.scale.roll(1, along_k))
    wrong = reference(problem, Operands.of(other)).exact
    assert expected.error(wrong.to(made.a.dtype)) > 4 * tolerance(problem)


def test_sizes_without_whole_groups_cannot_be_made():
    for make in (lambda problem: blank(problem, CPU), lambda problem: operands(problem, CPU, 0)):
        with pytest.raises(InputError, match="wants K in steps of 128"):
            make(int4(k=320))
