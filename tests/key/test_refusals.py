"""What no Problem describes is refused in one line that says why."""

import pytest

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem

CASES = {
    "mm": [
        ({"op": "baddbmm"}, "unknown op 'baddbmm'; known: mm, addmm, int_mm, mixed_mm, bmm"),
        ({"batch": 2}, "mm: only bmm takes a batch, got 2"),
        ({"interleaved": "a"}, "mm: a, b or ab of a bmm may be interleaved, got 'a'"),
        ({"m": -1}, "m must be an integer"),
        ({"m": 2**31}, "m must be an integer"),
        ({"m": 1.0}, "m must be an integer"),
        ({"m": True}, "m must be an integer"),
        ({"dtype": "complex64"}, "unknown dtype"),
        ({"dtype": "int8"}, "cannot multiply int8 by int8"),
        ({"op": "int_mm", "dtype": "bf16"}, "cannot multiply bf16"),
        ({"op": "mixed_mm", "dtype": "fp32"}, "cannot multiply fp32"),
        ({"op": "mixed_mm", "weight_dtype": "bf16"}, "cannot multiply bf16 by bf16"),
        ({"layout": "xx"}, "unknown layout"),
        ({"fusion": "relu"}, "fusion"),
        ({"bias": "1d"}, "addmm takes a bias"),
        ({"op": "addmm", "bias": "none"}, "addmm takes a bias"),
        ({"op": "addmm", "bias": "diagonal"}, "unknown bias"),
        ({"tf32": True}, "TF32 applies to fp32"),
        ({"out_dtype": "fp99"}, "unknown dtype"),
        ({"groups": 4}, "only grouped_mm has groups"),
        ({"ragged": "m"}, "only grouped_mm has groups"),
    ],
    "bmm": [
        ({"batch": -1}, "batch must be an integer"),
        ({"batch": 2**31}, "batch must be an integer"),
        ({"batch": True}, "batch must be an integer"),
        ({"batch": 2, "fusion": "scale"}, "bmm: no scale"),
        ({"batch": 2, "bias": "1d"}, "addmm takes a bias"),
        ({"batch": 2, "interleaved": "ba"}, "a, b or ab of a bmm may be interleaved, got 'ba'"),
        ({"batch": 2, "dtype": "int8"}, "cannot multiply int8 by int8"),
    ],
    "scaled_mm": [
        ({"scales": "column"}, "one of the kinds tensor, row, block, got 'column'"),
        ({"dtype": "bf16"}, "cannot multiply bf16 by bf16"),
        ({"weight_dtype": "int8"}, "cannot multiply fp8_e4m3 by int8"),
        ({"weight_dtype": "fp8"}, "unknown dtype 'fp8'; .*did you mean 'fp8_e4m3'"),
        ({"out_dtype": "fp8_e4m3"}, "the output is one of bf16, fp16, fp32"),
        ({"out_dtype": "int32"}, "the output is one of"),
        ({"layout": "nn"}, "B lies by columns in memory, not row"),
        ({"layout": "tt"}, "A lies by rows in memory, not col"),
        ({"bias": "full"}, "a bias is 1d"),
        ({"fusion": "scale"}, "no scale can be fused"),
        ({"tf32": True}, "TF32 applies to fp32 inputs"),
        ({"batch": 2}, "only bmm takes a batch"),
    ],
    "grouped_mm": [
        ({"ragged": "n"}, "divide one of the sizes m, k, got 'n'"),
        ({"groups": -1}, "groups must be an integer of at least 0"),
        ({"dtype": "fp32"}, "cannot multiply fp32 by fp32"),
        ({"out_dtype": "fp32"}, "the output has the dtype of A, bf16, not fp32"),
        ({"bias": "1d"}, "takes none"),
        ({"fusion": "scale"}, "no scale can be fused"),
        ({"batch": 2}, "only bmm takes a batch"),
        ({"scales": "row"}, "only scaled_mm and grouped_mm of fp8 have scales"),
        ({"fast_accum": True}, "only scaled_mm and grouped_mm of fp8 have scales"),
        ({"dtype": "fp8_e5m2"}, "cannot multiply fp8_e5m2 by fp8_e5m2"),
        ({"dtype": "fp8_e4m3", "scales": "tensor"}, "have row and column scales, got 'tensor'"),
        ({"dtype": "fp8_e4m3", "ragged": "k"}, "groups of fp8 divide M"),
        ({"dtype": "fp8_e4m3", "out_dtype": "fp16"}, "the output of groups of fp8 is bf16, not fp16"),
        ({"dtype": "fp8_e4m3", "layout": "nn"}, "B lies by columns in memory, not row"),
        ({"dtype": "fp8_e4m3", "layout": "tt"}, "A lies by rows in memory, not col"),
    ],
    "mixed_mm": [
        ({"weight_dtype": "int4", "group": 48}, "groups have 32, 64, 128, 256"),
        ({"weight_dtype": "int4", "packing": "marlin"}, "no such packing: 'marlin'"),
        ({"weight_dtype": "int4", "zeros": "int32"}, "no such zero points: 'int32'"),
        ({"weight_dtype": "int4", "zeros": "uint8"}, "tinygemm8 has bf16 activations and zero points"),
        ({"weight_dtype": "int4", "dtype": "fp16", "packing": "tinygemm8"}, "tinygemm8 has bf16 activations"),
        (
            {"weight_dtype": "int4", "dtype": "fp16", "packing": "low-first", "zeros": "bf16"},
            "zero points of bf16 do not belong",
        ),
        ({"weight_dtype": "int4", "fusion": "scale"}, "the scales of a weight with groups are those of its groups"),
        ({"weight_dtype": "int4", "layout": "nn"}, "a weight with groups is \\[N, K\\]"),
        ({"weight_dtype": "int4", "packing": "byte"}, "packing=byte has numbers of int8 or uint8, got int4"),
        ({"weight_dtype": "int8", "packing": "gptq"}, "packing=gptq has numbers of int4, got int8"),
        ({"weight_dtype": "int8", "zeros": "uint8"}, "zero points of uint8 do not belong to a weight of int8"),
        ({"weight_dtype": "uint8", "zeros": "int8"}, "zero points of int8 do not belong to a weight of uint8"),
        ({"weight_dtype": "int8", "group": 64, "layout": "nn"}, "a weight with groups is \\[N, K\\]"),
        ({"weight_dtype": "int4", "packing": "low-first", "zeros": "uint8x4"}, "only bytes have zero points of"),
    ],
}
"""By op, flags (another op among them), and what the message says."""


@pytest.mark.parametrize(("op", "flags", "message"), [(op, *case) for op, cases in CASES.items() for case in cases])
def test_bad_input_is_one_clear_line(op, flags, message):
    with pytest.raises(InputError, match=message) as caught:
        Problem.gemm(**{"op": op, "m": 16, "n": 64, "k": 32} | flags)
    assert "\n" not in str(caught.value)
