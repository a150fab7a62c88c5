"""What the kernel for weights of bytes with groups computes, in Triton's interpreter: every form of it."""

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import make
from kit.inductor import INTERPRETED, ROOT, run

from gemmdb import Problem
from gemmdb.generators.measure.tolerance import tolerance

pytestmark = INTERPRETED
KINDS = [
    ("int8", "none"), ("uint8", "none"), ("int8", "int8"), ("uint8", "uint8"), ("uint8", "uint8x4"), ("int8", "fp16"),
    ("int8", "int8", "byte-fp32"), ("uint8", "none", "byte-fp32"),
]  # fmt: skip
"""In fp16: the interpreter computes no bf16."""
FORMS = [
    make("groupwise"), make("groupwise", block_k=32, warps=2, split_k=2), make("groupwise", block_m=8, block_k=256),
    make("groupwise", block_n=128, block_k=64, split_k=2), make("groupwise", block_n=32, warps=1, block_k=512),
]  # fmt: skip


def pairs():
    """Each form with each kind of weight and two of the group sizes, those with a part of a step among them."""
    found = []
    for turn, (weight, zeros, *packing) in enumerate(KINDS):
        for place, config in enumerate(FORMS):
            for shift in (0, 2):
                group = (32, 64, 128, 256)[(turn + place + shift) % 4]
                problem = Problem.gemm("mixed_mm", m=5, n=136, k=5 * max(group, 64), dtype="fp16", weight_dtype=weight,
                                       group=group, zeros=zeros, packing=packing[0] if packing else "byte")  # fmt: skip
                if config.rejection(problem, H200) is None:
                    found.append((problem, config))
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
    assert len(tried) >= 80
    program = "from test_groupwise_numerics import found; print(json.dumps(found()))"
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'kernels'}"
    errors = run(program, {"PYTHONPATH": path, "TRITON_INTERPRET": "1"})
    wrong = [(problem.text, config.text, error) for (problem, config), error in zip(tried, errors, strict=True)
             if not error <= tolerance(problem)]  # fmt: skip
    assert wrong == []
