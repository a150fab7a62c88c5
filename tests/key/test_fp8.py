"""Products of fp8 operands in the vocabulary: what no hardware takes is refused."""

from dataclasses import replace

import pytest

from gemmdb.errors import InputError
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Bias, Numerics, Operand
from gemmdb.key.problem import Problem


def scaled(m: int = 16, n: int = 64, k: int = 32, **rest) -> Problem:
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, **rest)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"scales": "column"}, "one of the kinds tensor, row, block, got 'column'"),
        ({"dtype": "bf16"}, "cannot multiply bf16 by bf16"),
        ({"weight_dtype": "int8"}, "cannot multiply fp8_e4m3 by int8"),
        ({"weight_dtype": "fp8"}, "unknown dtype 'fp8'"),
        ({"out_dtype": "fp8_e4m3"}, "the output is one of bf16, fp16, fp32"),
        ({"out_dtype": "int32"}, "the output is one of"),
        ({"layout": "nn"}, "B lies by columns in memory, not row"),
        ({"layout": "tt"}, "A lies by rows in memory, not col"),
        ({"bias": "full"}, "a bias is 1d"),
        ({"fusion": "scale"}, "no scale can be fused"),
        ({"tf32": True}, "TF32 applies to fp32 inputs"),
        ({"batch": 2}, "only bmm takes a batch"),
    ],
)
def test_what_no_hardware_takes_is_refused_with_the_reason(rest, reason):
    with pytest.raises(InputError, match=reason):
        scaled(**rest)


def test_scales_of_blocks():
    problem = scaled(n=144, k=400, scales="block")
    assert problem.text.endswith("scales=block fast=0")
    assert Problem.parse(problem.text) == problem
    assert problem.scale_sizes == ((16, 4), (4, 2))
    assert problem.bytes - scaled(n=144, k=400).bytes == 4 * (16 * 4 + 4 * 2 - 2)


def test_padded_rows_are_rows():
    problem = replace(
        scaled(), a=Operand("fp8_e5m2", Layout("row-padded", 16)), b=Operand("fp8_e4m3", Layout("col-padded", 1)),
        bias=Bias("1d", "fp16", 1), numerics=Numerics(fast=True),
    )  # fmt: skip
    assert Problem.parse(problem.text) == problem
