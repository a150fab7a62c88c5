"""What our kernel computes with MXFP4 weights, in Triton's interpreter: every form of it."""

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import make
from kit.inductor import INTERPRETED, ROOT, run

from gemmdb import Problem
from gemmdb.generators.measure.tolerance import tolerance

pytestmark = INTERPRETED
FORMS = [
    make("int4"), make("int4", block_m=8, warps=2, split_k=2), make("int4", block_n=32, warps=1, block_k=256),
    make("int4", scaled="sums", block_k=32, split_k=2), make("int4", scaled="sums", block_k=32, block_n=128, warps=2),
    make("int4", block_n=128, block_k=64, warps=8, stages=5), make("int4", block_k=32, warps=2),
]  # fmt: skip


def pairs():
    """Each form with a whole number of steps, and with a part of one."""
    problems = [Problem.gemm("mixed_mm", m=5, n=136, k=k, weight_dtype="fp4_e2m1") for k in (512, 416)]
    return [(problem, config) for problem in problems for config in FORMS if config.rejection(problem, H200) is None]


def found():
    """The error of each pair. Called in a process whose Triton interprets."""
    import tempfile
    from pathlib import Path

    from kit import ptx

    with tempfile.TemporaryDirectory() as folder:
        return [ptx.error(problem, config, Path(folder)) for problem, config in pairs()]


def test_it_is_right_in_all_forms():
    tried = pairs()
    assert len(tried) == 2 * len(FORMS)
    program = "from test_mxfp4_numerics import found; print(json.dumps(found()))"
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'kernels'}"
    errors = run(program, {"PYTHONPATH": path, "TRITON_INTERPRET": "1"})
    wrong = [(problem.text, config.text, error) for (problem, config), error in zip(tried, errors, strict=True)
             if not error <= tolerance(problem)]  # fmt: skip
    assert wrong == []
