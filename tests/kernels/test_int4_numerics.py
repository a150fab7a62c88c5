"""What our kernel for int4 weights computes, in Triton's interpreter: every packing, group size and form of it."""

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make
from kit.inductor import INTERPRETED, ROOT, run

from gemmdb import Problem
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.key.device import Device

pytestmark = INTERPRETED
H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
KINDS = [
    ("tinygemm8", "bf16", "bf16"), ("tinygemm4", "bf16", "bf16"), ("tinygemm2", "bf16", "bf16"),
    ("low-first", "fp16", "none"), ("high-first", "bf16", "none"), ("low-first", "bf16", "uint8"),
    ("high-first", "fp16", "fp16"), ("low-first", "fp16", "int8"), ("low-first", "bf16", "int4"),
    ("low-first", "fp16", "int4"), ("gptq", "fp16", "int4"), ("gptq2", "bf16", "int4"),
    ("awq", "bf16", "int4"), ("awq", "fp16", "int4"), ("plain", "bf16", "bf16"),
    ("plain", "fp16", "fp16"),
]  # fmt: skip
FORMS = [
    make("int4"), make("int4", block_m=8, warps=2, split_k=2), make("int4", block_n=32, warps=1, block_k=256),
    make("int4", scaled="sums", split_k=2), make("int4", scaled="sums", block_n=128, block_m=8, warps=2),
    make("int4", scaled="sums", block_k=32, warps=2), make("int4", scaled="sums", block_n=64, warps=1, block_m=32),
    make("int4", scaled="sums", block_n=256, split_k=2), make("int4", scaled="sums", block_n=128, warps=2, block_k=32),
    make("int4", order="memory"), make("int4", order="memory", block_m=8, warps=2, split_k=2),
    make("int4", order="memory", block_n=32, warps=1, block_k=256, split_k=3),
    make("int4", order="memory", scaled="sums", block_k=32, warps=2),
    make("int4", order="memory", block_n=128), make("int4", order="memory", block_n=64, block_k=32, warps=1),
    make("int4_skinny"), make("int4_skinny", block_n=32, warps=2, stages=2, activations="shared"),
    make("int4_skinny", block_n=64, warps=1, stages=2, next="before"),
    make("int4_skinny", activations="shared", warps=2, next="before"),
    make("int4_skinny", lean=1, block_n=64), make("int4_skinny", lean=1, block_n=64, next="before", warps=2),
    make("int4_skinny", lean=1), make("int4_skinny", lean=1, activations="ahead", block_n=32, warps=1, stages=3),
    make("int4_skinny", lean=1, activations="ahead", warps=2, stages=2, next="before", adjacent=1),
    make("int4_skinny", lean=1, activations="shared", block_n=32, warps=2, stages=2, adjacent=1),
    make("int4_skinny", adjacent=1, warps=2, stages=2),
    make("int4_skinny", adjacent=1, warps=1, stages=4, next="before"),
    make("int4_skinny", adjacent=1, warps=1, stages=4, block_n=32, activations="shared"),
]  # fmt: skip


def pairs():
    """Each form with each kind of weight, at one of the group sizes in turn, those with a part of a tile among them."""
    found = []
    for turn, (packing, dtype, zeros) in enumerate(KINDS):
        for place, config in enumerate(FORMS):
            for shift in range(4):
                group = (32, 64, 128, 256)[(turn + place + shift) % 4]
                k = 5 * max(group, 128) if group < 256 else 512
                m = (5, 13)["lean" in config.values and config.values["block_n"] < 64 and (turn + place) % 2]
                n = 192 if packing == "awq" and config.values["block_n"] == 32 else 136
                problem = Problem.gemm("mixed_mm", m=m, n=n, k=k, dtype=dtype, weight_dtype="int4", group=group,
                                       zeros=zeros, packing=packing)  # fmt: skip
                if config.rejection(problem, H200) is None:
                    found.append((problem, config))
                    break
    return found


def found():
    """The error of each pair. Called in a process whose Triton interprets."""
    import tempfile
    from pathlib import Path

    from kit import ptx

    with tempfile.TemporaryDirectory() as folder:
        return [ptx.error(problem, config, Path(folder)) for problem, config in pairs()]


def test_it_is_right_in_all_forms():
    tried = pairs()
    assert len(tried) > 100
    program = "from test_int4_numerics import found; print(json.dumps(found()))"
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'kernels'}"
    errors = run(program, {"PYTHONPATH": path, "TRITON_INTERPRET": "1"})
    wrong = [(problem.text, config.text, error) for (problem, config), error in zip(tried, errors, strict=True)
             if not error <= tolerance(problem)]  # fmt: skip
    assert wrong == []
