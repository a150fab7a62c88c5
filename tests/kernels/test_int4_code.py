"""How the weight of `int4_skinny` reaches the matrix unit of sm90, by Triton's compiler."""

import importlib.util
import re

import pytest
from kit.gpu import make

from gemmdb import Problem
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.cuda.units import compile_unit

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
KINDS = [
    ({}, "v4.b32"), ({"packing": "tinygemm4"}, "v4.b32"), ({"packing": "tinygemm2"}, "v4.b32"),
    ({"group": 32}, "v4.b32"), ({"packing": "low-first"}, "v4.b32"),
    ({"packing": "high-first", "zeros": "uint8", "group": 64}, "v2.b32"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "width"), KINDS, ids=str)
def test_a_weight_goes_from_memory_to_the_matrix_unit(flags, width, tmp_path, monkeypatch):
    """Shared memory holds the sums of all warps and nothing else, and no load of the weight is narrower than it can be.
    With a layout that moves numbers between lanes, four times as much is needed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem = Problem.gemm("mixed_mm", m=8, n=4096, k=4096, weight_dtype="int4", **flags)
    (launch,) = plan(problem, make("int4_skinny")).launches
    kernel = compile_unit(launch.unit, 90).kernel
    assert kernel.metadata.shared == 4 * 16 * 8 * 4
    code = kernel.asm["ptx"]
    assert "mma.sync.aligned.m16n8k16" in code
    assert set(re.findall(r"ld\.global\S*evict_first\S*?\.((?:v\d\.)?b32)", code)) == {width}
