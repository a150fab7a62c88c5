"""How the weight of `int4_skinny` reaches the matrix unit of sm90, by Triton's compiler."""

import importlib.util
import re
from collections import Counter
from importlib import metadata

import pytest
from kit.gpu import make

from gemmdb import Problem
from gemmdb.generators.measure.cuda.compilers import compile_unit
from gemmdb.generators.measure.cuda.render import plan

TRITON = metadata.version("triton") if importlib.util.find_spec("triton") else ""
pytestmark = pytest.mark.skipif(
    not TRITON.startswith("3.6."), reason="needs Triton 3.6: later ones move the numbers through shared memory"
)
KINDS = [
    ({}, {"v4.b32": 4, "b32": 20}), ({"packing": "tinygemm4"}, {"v4.b32": 4, "v2.b32": 8, "b32": 4}),
    ({"packing": "tinygemm2"}, {"v4.b32": 8, "b32": 4}), ({"group": 32}, {"v4.b32": 4, "b32": 32}),
    ({"packing": "low-first"}, {"v4.b32": 8, "b16": 4}),
    ({"packing": "high-first", "zeros": "uint8", "group": 64}, {"v2.b32": 8, "v4.b32": 4, "b16": 8, "b8": 8}),
]  # fmt: skip
"""With the loads of a first and of a later step, by their width: of 128 weights, activations and scales."""


ALONG_N = [
    ("gptq", {"block_n": 64}, {"v4.b32": 20, "v2.b32": 4, "b32": 4}),
    ("gptq", {"block_n": 32, "activations": "ahead", "warps": 8, "stages": 2}, {"v4.b32": 32, "v2.b32": 4, "b32": 4}),
    ("awq", {"block_n": 64}, {"v4.b32": 6, "b32": 66}),
]
"""The same of weights whose memory runs along N. A word of AWQ has eight columns of one row."""


def compiled(m, flags, **changes):
    problem = Problem.gemm("mixed_mm", m=m, n=4096, k=4096, weight_dtype="int4", **flags)
    (launch,) = plan(problem, make("int4_skinny", **changes)).launches
    return compile_unit(launch.unit, 90).kernel


@pytest.mark.parametrize(
    ("m", "changes"), [(8, {}), (8, {"lean": 1}), (16, {"lean": 1, "activations": "ahead"})], ids=str
)
@pytest.mark.parametrize(("flags", "loads"), KINDS, ids=str)
def test_a_weight_goes_from_memory_to_the_matrix_unit(flags, loads, m, changes, tmp_path, monkeypatch):
    """Shared memory holds the sums of all warps and nothing else. With a layout that moves numbers between lanes, four
    times as much is needed. No load is narrower than it can be."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = compiled(m, flags, **changes)
    code = kernel.asm["ptx"]
    assert kernel.metadata.shared == 4 * 16 * m * 4
    assert "mma.sync.aligned.m16n8k16" in code
    if m == 8:
        found = re.findall(r"ld\.global(\.L1::evict_first)?\S*?\.((?:v\d\.)?b\d+)", code)
        assert Counter(width for _, width in found) == loads
        assert any(hint for hint, _ in found) != ("lean" in changes)


@pytest.mark.parametrize(("packing", "changes", "loads"), ALONG_N, ids=str)
def test_a_weight_along_n_goes_the_same_way(packing, changes, loads, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = compiled(8, {"packing": packing}, lean=1, **changes)
    assert kernel.metadata.shared == changes.get("warps", 4) * changes["block_n"] * 8 * 4
    found = re.findall(r"ld\.global\S*?\.((?:v\d\.)?b\d+)", kernel.asm["ptx"])
    assert Counter(found) == loads
