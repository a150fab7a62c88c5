"""Int4 weights on a GPU: which kernels are tried where, and what is rendered of them."""

import ast

import pytest
from kit.devices import A100, H200
from kit.gpu import make

from gemmdb import Problem
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.artifacts import required, required_promptly
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.cuda.space import CudaSpace, everything, from_menu
from gemmdb.kernels.config import ATEN


def int4(m=16, n=4096, k=4096, **rest):
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **rest)


@pytest.mark.parametrize("flags", [{}, {"group": 32}, {"packing": "tinygemm2", "group": 64}, {"packing": "low-first"},
                                   {"packing": "high-first", "zeros": "uint8", "group": 64}], ids=str)  # fmt: skip
def test_which_kernels_are_tried_at_which_sizes(flags):
    for m in (1, 8, 16, 33, 64, 65, 512, 4096):
        for n, k in ((28672, 8192), (4096, 14336), (1032, 4352)):
            problem = int4(m, n, k, **flags)
            for device in (H200, A100):
                found = [one.config for one in CudaSpace().candidates(problem, device, named("standard", "cuda"))]
                assert found[0] == ATEN
                names = {config.name for config in found[1:]}
                others = {"triton:int4_skinny"} if m <= 16 else set()
                others |= {"aten:dequantised"} if "-" not in str(flags) else set()
                assert names == {"triton:int4", *others}
                assert len(found) >= 5
    heights = {config.values["block_m"] for config in from_menu(int4(24, **flags), H200)}
    assert heights == {32}


def test_the_whole_space_has_the_menu():
    for m in (1, 16):
        assert set(from_menu(int4(m), H200)) <= set(everything(int4(m), H200))


def test_sizes_without_whole_groups_are_one_illegal_row():
    (candidate,) = CudaSpace().candidates(int4(k=4160), H200, named("full", "cuda"))
    assert candidate.config == ATEN
    assert "wants K in steps of 128" in str(candidate.rejected)


@pytest.mark.parametrize(("flags", "tensors"), [
    ({}, [("B", "*i32"), ("scale", "*bf16")]),
    ({"packing": "low-first"}, [("B", "*u8"), ("scale", "*bf16")]),
    ({"packing": "low-first", "zeros": "uint8", "dtype": "fp16"}, [("B", "*u8"), ("scale", "*fp16"), ("zeros", "*u8")]),
])  # fmt: skip
def test_what_a_kernel_takes(flags, tensors):
    for config in (make("int4"), make("int4", scaled="sums", split_k=2)):
        made = plan(int4(**flags), config)
        (launch,) = made.launches
        assert list(launch.unit.args)[1 : 1 + len(tensors)] == tensors
        assert launch.grid == (64, config.values["split_k"], 1)
        assert (made.partials > 0, made.counters) == (config.values["split_k"] > 1, 64 * (config.values["split_k"] > 1))
        function = ast.parse(launch.unit.source).body[-1]
        assert [argument.arg for argument in function.args.args] == [name for name, _ in launch.unit.args]


def test_programs_for_a_few_rows_take_all_of_k():
    made = plan(int4(m=3, n=1032), make("int4_skinny", block_n=32))
    assert [launch.grid for launch in made.launches] == [(33, 1, 1)]
    assert (made.partials, made.counters) == (0, 0)


def test_what_aten_runs_around_its_product():
    """The operator of a tiled weight dequantises by itself and adds nothing."""
    assert elementwise.around(int4()) == (None, None)
    first, last = elementwise.around(int4(bias="1d"))
    assert first is None
    assert "bias" in dict(last.unit.args)
    first, last = elementwise.around(int4(packing="low-first", zeros="bf16"))
    assert [name for name, _ in first.unit.args] == ["B", "scale", "zeros", "cast", "elements"]
    assert last is None
    assert len(required_promptly(int4(packing="low-first"), ATEN)) == 2
    assert len(required(int4(), ATEN)) == 1
