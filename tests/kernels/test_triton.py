"""The parameters of the templates: what each kernel and problem gives, and that they can be written into a kernel."""

import ast

import pytest
from kit.gpu import make

from gemmdb.kernels import triton
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Problem

TILE = make("tile", block_k=128, split_k=4, reduce="fixup", swap=1, load="tma", dequant="bits")
PERSISTENT = make("persistent", dequant="bits", resident=2)
NARROW = make("narrow", block_k=128, dequant="bits")
GEMV = make("gemv", unroll=2, stages=5)
MIXED = Problem.gemm("mixed_mm", m=5, n=1000, k=768, dtype="fp16", weight_dtype="uint8")


def test_a_tile():
    names = triton.names(TILE, MIXED)
    assert names == {
        "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8, "SPLIT_K": 4, "SWAP": True, "TMA": True,
        "FIXUP": True, "MIXED": True, "INTEGER": False, "BITS": True, "A_DTYPE": "tl.float16", "B_SIGNED": False,
        "A_ROW": True, "B_ROW": False, "EVEN_K": True, "M_EVEN": False, "N_EVEN": False, "TF32": False,
    }  # fmt: skip


@pytest.mark.parametrize(("m", "rows"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_gemv_has_room_for_its_rows(m, rows):
    names = triton.names(GEMV, MIXED.resized(m, 1000, 770))
    assert (names["ROWS"], names["EVEN_K"], names["STAGES"], names["UNROLL"]) == (rows, False, 5, 2)


def test_a_narrow_kernel_scales_the_weight_itself():
    names = triton.names(NARROW, MIXED)
    assert names == {
        "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "SPLIT_K": 1, "SWAP": False, "STAGGER": True, "MIXED": True,
        "INTEGER": False, "BITS": True, "A_DTYPE": "tl.float16", "B_SIGNED": False, "A_ROW": True, "B_ROW": False,
        "EVEN_K": True, "M_EVEN": False, "N_EVEN": False, "TF32": False, "SCALED": False, "MASK": True,
    }  # fmt: skip
    scaled = {op: Problem.gemm(op, m=32, n=512, k=512, fusion="scale") for op in ("mixed_mm", "int_mm")}
    assert [triton.names(NARROW, problem)["SCALED"] for problem in scaled.values()] == [True, False]


def test_a_persistent_kernel_does_not_ask_how_many_programs_there_are():
    names = triton.names(PERSISTENT, MIXED)
    assert names == {
        "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "SWAP": False, "RESIDENT": 2, "MIXED": True,
        "INTEGER": False, "BITS": True, "A_DTYPE": "tl.float16", "B_SIGNED": False, "A_ROW": True, "B_ROW": False,
        "EVEN_K": True, "TF32": False,
    }  # fmt: skip


@pytest.mark.parametrize("config", [TILE, GEMV, PERSISTENT, NARROW], ids=lambda config: config.kernel)
def test_every_value_is_an_expression(config):
    for name, value in triton.names(config, MIXED).items():
        expression = ast.parse(f"{name}: tl.constexpr = {value}").body[0].value
        free = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        assert free <= {"tl"}, (name, value)


def test_digests_tell_sources_apart():
    digests = [triton.digest(kernel.name) for kernel in KERNELS.values() if kernel.template]
    assert len(digests) >= 4
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 16 for digest in digests)
