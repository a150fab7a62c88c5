"""Int4 weights in the key: what names them, what is refused, and that the texts of other problems stay as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from kit import strategies

from gemmdb import Problem
from gemmdb.errors import InputError
from gemmdb.key.int4 import BYTE, MXFP4, PACKINGS, SIZES, WEIGHT, Int4Format, default
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand


def int4(**rest):
    return Problem.gemm("mixed_mm", **{"m": 16, "n": 4096, "k": 4096, "weight_dtype": "int4", **rest})


def test_the_text_says_how_a_weight_is_scaled_and_packed():
    rest = " out=bf16 bias=none scalars=unit fusion=none fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0"
    assert int4().text.endswith(f" b=int4:col:16{rest} group=128 zeros=bf16 packing=tinygemm8")
    assert int4(dtype="fp16", group=32, zeros="uint8").text.endswith("group=32 zeros=uint8 packing=low-first")


@given(problem=strategies.int4_problems)
def test_the_text_is_read_back(problem):
    assert Problem.parse(problem.text) == problem
    assert problem.family.endswith(problem.int4.text)
    assert problem.resized(2, 2, 3).family_key == problem.family_key


@given(problem=strategies.problems.filter(lambda one: one.int4 is None))
def test_no_other_problem_names_groups(problem):
    assert "group=" not in problem.text
    with pytest.raises(InputError):
        replace(problem, int4=Int4Format(128, "none", "low-first"))


def test_problems_with_other_groups_are_of_other_families():
    kinds = [{"weight_dtype": "uint8"} if one.startswith(BYTE) else {} for one in PACKINGS if one != MXFP4]
    kinds = [kind | {"packing": one} for one, kind in zip(PACKINGS, kinds, strict=False)]
    families = {int4(group=size, **kind).family for size in SIZES for kind in kinds}
    assert len(families) == len(SIZES) * len(kinds)
    assert int4().family_key != Problem.gemm("mixed_mm", m=16, n=4096, k=4096).family_key


def test_the_weight_has_one_layout():
    for b in (
        Operand("int4", Layout("row", 16)),
        Operand("int4", Layout("col", 8)),
        Operand("int8", Layout("col", 16)),
    ):
        with pytest.raises(InputError):
            replace(int4(), b=b)
    assert int4().b == WEIGHT


@pytest.mark.parametrize("text", ["group=0128 zeros=none packing=low-first", "group=128 zeros=none packing=low first",
                                  "group=128 packing=low-first zeros=none", "group=128"])  # fmt: skip
def test_another_spelling_of_the_text_is_refused(text):
    head = int4(packing="low-first").text.partition(" group=")[0]
    with pytest.raises(InputError):
        Problem.parse(f"{head} {text}")


def test_words_of_eight_have_int4_zero_points():
    assert int4(packing="awq").text.endswith("group=128 zeros=int4 packing=awq")
    assert int4(packing="low-first", zeros="int4").text.endswith("group=128 zeros=int4 packing=low-first")
    for zeros, packing in (("none", "gptq"), ("bf16", "awq"), ("int4", "high-first"), ("int4", "tinygemm8")):
        with pytest.raises(InputError, match="gptq, gptq2, awq have int4 zero points, low-first may, and no other"):
            Int4Format(128, zeros, packing)


def test_a_weight_of_bytes_has_groups_if_a_flag_says_so():
    plain = int4(weight_dtype="int8")
    assert plain.int4 is None
    with_groups = int4(weight_dtype="int8", group=64)
    assert with_groups.text == f"{plain.text} group=64 zeros=none packing=byte"
    assert int4(weight_dtype="uint8", zeros="uint8x4").text.endswith("group=128 zeros=uint8x4 packing=byte")


def test_mxfp4_has_one_group_size_and_bytes_as_scales():
    found = int4(weight_dtype="fp4_e2m1")
    assert " b=fp4_e2m1:col:16 " in found.text
    assert found.text.endswith("group=32 zeros=none packing=mxfp4")
    assert found.weight_bytes == 4096 * 4096 // 2 + 4096 * 128
    for rest in ({"group": 64}, {"zeros": "uint8"}, {"dtype": "fp16"}, {"packing": "low-first"}):
        with pytest.raises(InputError):
            int4(weight_dtype="fp4_e2m1", **rest)
    with pytest.raises(InputError, match="packing=mxfp4 has numbers of fp4_e2m1, got int4"):
        int4(packing="mxfp4", group=32)


def test_a_weight_counts_with_its_scales():
    assert int4(weight_dtype="uint8", zeros="uint8x4").weight_bytes == 4096 * 4096 + 4096 * 32 * (2 + 1)
    assert int4(weight_dtype="int8", packing="byte-fp32").weight_bytes == 4096 * 4096 + 4096 * 32 * 4
    assert int4(weight_dtype="int8", zeros="bf16").weight_bytes == 4096 * 4096 + 4096 * 32 * (2 + 2)
    assert int4(packing="gptq").weight_bytes == 4096 * 4096 // 2 + 4096 * 32 * 2 + 4096 * 32 // 2
    assert int4().weight_bytes == 4096 * 4096 // 2 + 4096 * 32 * 4
    assert int4(packing="low-first", zeros="int4").weight_bytes == 4096 * 4096 // 2 + 4096 * 32 * 2 + 4096 * 32 // 2
    assert int4(packing="low-first").weight_bytes == 4096 * 4096 // 2 + 4096 * 32 * 2
    assert int4(packing="low-first", zeros="uint8", group=64).weight_bytes == 4096 * 4096 // 2 + 4096 * 64 * 3
    assert int4().bytes == int4().weight_bytes + 2 * 16 * (4096 + 4096)


@pytest.mark.parametrize(("packing", "fit", "unfit"), [
    ("tinygemm8", (8, 128), [(12, 128), (8, 192)]), ("tinygemm2", (8, 64), [(8, 32), (4, 64)]),
    ("low-first", (3, 64), [(3, 96)]), ("gptq", (8, 64), [(4, 64), (8, 96)]), ("awq", (16, 128), [(12, 128)]),
])  # fmt: skip
def test_sizes_that_a_packing_cannot_have(packing, fit, unfit):
    own = default("bf16", 64, None, packing)
    assert own.rejection(*fit) is None
    assert all(own.rejection(*sizes) for sizes in unfit)


def test_sizes_that_zero_points_in_words_cannot_have():
    for own, step in ((Int4Format(64, "uint8x4", BYTE), 4), (Int4Format(64, "int4", "low-first"), 8)):
        assert own.rejection(step, 64) is None
        assert f"N in steps of {step}" in str(own.rejection(step + 2, 64))
    assert Int4Format(64, "uint8", BYTE).rejection(3, 64) is None


def test_torchaos_default_has_zero_points_of_the_activation():
    own = int4(packing="plain").int4
    assert own.text == "group=128 zeros=bf16 packing=plain"
    assert int4(packing="plain").weight_bytes == 4096 * 4096 // 2 + 2 * 4096 * 32 * 2
    with pytest.raises(InputError, match="plain has zero points of the activation's dtype"):
        Int4Format(128, "none", "plain")
    with pytest.raises(InputError):
        int4(packing="plain", dtype="fp16", zeros="bf16")
