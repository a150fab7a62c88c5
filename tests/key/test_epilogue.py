"""Epilogue: classes of fused elementwise work, one spelling each, and the old texts as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import strategies

from gemmdb.errors import InputError
from gemmdb.key import epilogue
from gemmdb.key.epilogue import Epilogue
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem


@given(strategies.epilogues)
def test_every_class_reads_back_from_its_text(one):
    assert epilogue.parse(one.text) == one


@given(st.data())
def test_a_problem_holds_exactly_what_is_canonical(data):
    one = data.draw(strategies.epilogues)
    words = one.text.split(":")
    shuffled = ":".join([words[0], *data.draw(st.permutations(words[1:]))])
    made = Problem.gemm("mm", m=8, n=8, k=8, dtype="fp16", fusion=one.text) if one.stored != "bf16" else None
    if made is None:
        with pytest.raises(InputError, match="of the size of fp16"):
            Problem.gemm("mm", m=8, n=8, k=8, dtype="fp16", fusion=one.text)
        return
    assert made.epilogue == one
    assert Problem.parse(made.text) == made
    if shuffled != one.text:
        with pytest.raises(InputError, match="no such fusion"):
            Problem.gemm("mm", m=8, n=8, k=8, dtype="fp16", fusion=shuffled)


def test_old_words_mean_what_they_meant():
    texts = {
        word: "mm m=8 n=8 k=8 a=bf16:row:8 b=bf16:col:8 out=bf16 bias=none scalars=unit"
        f" fusion={word} fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0"
        for word in ("none", "scale", "pointwise")
    }
    for word, text in texts.items():
        assert Problem.gemm("mm", m=8, n=8, k=8, fusion=word).text == text
        assert Problem.parse(text).fusion == word
    found = {word: Problem.parse(text).epilogue for word, text in texts.items()}
    assert found == {"none": None, "scale": None, "pointwise": Epilogue()}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pointwise:math", Epilogue("math")),
        ("pointwise:math:reads1", Epilogue("math", 1)),
        ("pointwise:random:reads2:kept:transposed:fp32", Epilogue("random", 2, True, "transposed", "fp32")),
        ("pointwise:kept", Epilogue(kept=True)),
    ],
)
def test_spellings(text, wanted):
    assert epilogue.parse(text) == wanted
    assert wanted.text == text


BAD = [
    "relu", "", "pointwise:", "pointwise:light", "pointwise:own", "pointwise:reads0", "pointwise:reads3", "none:math",
    "scale:math", "pointwise:fp16", "pointwise:math:math", "pointwise:reads1:math", "POINTWISE", "pointwise math",
    "pointwise:math\n",
]  # fmt: skip


@pytest.mark.parametrize("text", [*BAD, 3, None, ["pointwise"]])
def test_nothing_else_is_a_fusion(text):
    with pytest.raises(InputError, match="no such fusion"):
        Problem.gemm("mm", m=8, n=8, k=8, fusion=text)


@pytest.mark.parametrize(
    "fields", [{"arithmetic": "exp"}, {"reads": 3}, {"reads": True}, {"kept": 1}, {"order": ""}, {"stored": "fp16"}]
)
def test_fields_are_checked(fields):
    with pytest.raises(InputError, match="no such epilogue"):
        Epilogue(**fields)


def test_the_stored_dtype_is_named_by_its_size_if_that_differs():
    found = {out: [epilogue.stored_as(size, out) for size in (1, 2, 4, 8, 16)] for out in ("bf16", "fp32", "int8")}
    assert found == {
        "bf16": ["int8", "", "fp32", "fp64", "fp64"],
        "fp32": ["int8", "bf16", "", "fp64", "fp64"],
        "int8": ["", "bf16", "fp32", "fp64", "fp64"],
    }
    assert set(epilogue.STORED.values()) <= set(ITEM_SIZES)


def test_bytes_of_an_epilogue_count():
    def outputs(fusion):
        return Problem.gemm("mm", m=2, n=3, k=5, fusion=fusion).bytes - 2 * (2 * 5 + 5 * 3)

    assert outputs("pointwise") == outputs("none") == outputs("pointwise:math:permuted") == 2 * 6
    assert outputs("pointwise:reads1") == outputs("pointwise:kept") == 2 * 2 * 6
    assert outputs("pointwise:reads2:kept:fp32") == (4 + 3 * 2) * 6
