"""Which kernels take int4 weights, and which configs of our own kernel are legal."""

from dataclasses import replace

import pytest
from kit.devices import H200
from kit.gpu import make

from gemmdb import Config, Problem
from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.groupwise import GROUPWISE
from gemmdb.kernels.menus.int4 import INT4, INT4_SKINNY
from gemmdb.kernels.triton.int4 import grouped, shared_bytes
from gemmdb.key.int4 import PACKED, PACKINGS
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand


def int4(**rest):
    return Problem.gemm("mixed_mm", **{"m": 16, "n": 4096, "k": 4096, "weight_dtype": "int4", **rest})


def config(**changes):
    return make("int4", **{"stages": 4, **changes})


def skinny(**changes):
    return make("int4_skinny", **changes)


SKINNY = skinny()
OTHERS = [
    make("narrow", block_k=128, stagger=0),
    make("gemv"),
    make("tile", block_k=128),
    Config.of("triton", "inductor_sum"),
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: one.name)
def test_kernels_of_8_bit_weights_take_no_int4_weight(other):
    assert str(other.rejection(int4(), H200)) == f"{other.name} takes no weight with groups"
    assert other.rejection(Problem.gemm("mixed_mm", m=1, n=4096, k=4096), H200) is None


@pytest.mark.parametrize("one", [config(), SKINNY, Config.of("aten", "dequantised")], ids=lambda one: one.name)
def test_kernels_of_int4_weights_take_no_other(one):
    assert one.rejection(int4(m=8), H200) is None
    assert "takes no weight without groups" in str(one.rejection(Problem.gemm("mixed_mm", m=8, n=4096, k=4096), H200))


def test_aten_takes_every_weight_that_there_is():
    assert ATEN.rejection(int4(), H200) is None
    assert "wants K in steps of 128" in str(ATEN.rejection(int4(k=4160), H200))


def test_a_program_that_dequantises_needs_no_dequantised_gemm():
    assert "itself" in str(Config.of("aten", "dequantised").rejection(int4(packing="low-first"), H200))


INT4_CASES = [
    ({"block_k": 64}, {}, "a lane of tinygemm8 has words for 128 of K"),
    ({"block_k": 64}, {"packing": "tinygemm4"}, None),
    ({"scaled": "sums", "block_k": 256}, {}, "a sum over 256 of K has several scales"),
    ({"scaled": "sums"}, {"group": 64}, "a sum over 128 of K has several scales"),
    ({"scaled": "sums", "warps": 8}, {}, "8 warps multiply 128 columns at once"),
    ({"scaled": "sums"}, {}, None),
    ({"block_m": 256, "block_n": 128}, {}, "do not fit into 200 registers"),
    ({"stages": 8, "block_m": 64, "block_n": 128, "block_k": 256, "warps": 8}, {}, "do not fit into shared memory"),
    ({"split_k": 64}, {}, "fewer than 64 steps"),
    ({"order": "memory"}, {"packing": "low-first"}, None),
    ({"order": "memory"}, {}, "have the order of the matrix unit's lanes"),
    ({"order": "memory", "scaled": "sums", "block_n": 256}, {"packing": "awq"}, "order of the matrix unit's lanes"),
]
SKINNY_CASES = [
    ({}, {"m": 17}, "at most 16"),
    ({}, {"m": 9}, "take the lean form"),
    ({"activations": "ahead"}, {}, "take the lean form"),
    ({"lean": 1}, {"m": 16}, None),
    ({"lean": 1, "activations": "ahead", "stages": 2, "block_n": 64}, {"m": 16}, "do not fit into 200 registers"),
    ({}, {"k": 4160, "group": 32, "packing": "low-first"}, "128 of K at once"),
    ({"block_n": 128}, {}, "do not fit into 200 registers"),
    ({"block_n": 64}, {"group": 32}, "do not fit into 200 registers"),
    ({"block_n": 64, "lean": 1}, {"group": 64}, None),
    ({"block_n": 32, "stages": 2, "warps": 16}, {}, "do not fit into 96 registers"),
    ({"block_n": 64, "stages": 2}, {}, None),
    ({}, {"packing": "gptq"}, "takes the lean form"),
    ({"lean": 1, "adjacent": 1, "stages": 2}, {"packing": "gptq"}, "without neighbouring steps"),
    ({"lean": 1}, {"packing": "awq"}, "words of 64 columns at once"),
    ({"lean": 1, "block_n": 32}, {"packing": "awq", "n": 4128}, "two programs share words of 64 columns"),
    ({"lean": 1, "block_n": 32}, {"packing": "awq"}, None),
    ({"lean": 1, "block_n": 64}, {"packing": "awq"}, None),
    ({"lean": 1, "block_n": 64, "stages": 2}, {"packing": "gptq"}, "do not fit into 200 registers"),
    ({"lean": 1}, {"packing": "low-first", "zeros": "int4"}, None),
]


@pytest.mark.parametrize(
    ("make_config", "m", "changes", "flags", "reason"),
    [*((config, 16, *case) for case in INT4_CASES), *((skinny, 8, *case) for case in SKINNY_CASES)],
)
def test_which_configs_are_legal(make_config, m, changes, flags, reason):
    found = make_config(**changes).rejection(int4(**{"m": m, **flags}), H200)
    assert found is None if reason is None else reason in str(found)


def test_activations_lie_by_rows():
    turned = replace(int4(m=8), a=Operand("bf16", Layout("col", 8)))
    for one in (config(), SKINNY):
        assert "K has to run along memory" in str(one.rejection(turned, H200))
    odd = replace(int4(m=8), a=Operand("bf16", Layout("row", 1)))
    assert SKINNY.rejection(odd, H200) is None
    assert "has to be aligned" in str(make("int4_skinny", activations="ahead", lean=1).rejection(odd, H200))


def test_a_few_rows_are_fixed():
    assert "the number of rows is fixed" in str(SKINNY.rejection(int4(m=8), H200, ("m",)))
    assert SKINNY.rejection(int4(m=8), H200, ("n",)) is None


def test_the_template_reads_the_problems_groups():
    names = triton.names(config(scaled="sums"), int4(packing="tinygemm4", group=128))
    assert (names["GROUP"], names["LANE"], names["ADDED"], names["GIVEN"]) == (128, 2, True, False)
    assert (names["LATE"], names["ROWS"], names["EVEN_K"], names["GROUPED"]) == (True, 64, True, True)
    names = triton.names(config(warps=2), int4(packing="high-first", zeros="int8", group=32, k=4128))
    assert (names["LANE"], names["ADDED"], names["GIVEN"], names["HIGH_FIRST"]) == (0, False, True, True)
    assert (names["EVEN_K"], names["GROUPED"]) == (False, False)


def test_shared_memory_of_compiled_kernels():
    """What Triton 3.6 reports for sm90."""
    for block, way, stages, problem, bytes_ in (
        ((16, 64, 128), (4, "weights"), 4, int4(), 29440),
        ((64, 64, 64), (4, "weights"), 4, int4(packing="tinygemm2", k=4224), 39680),
        ((8, 64, 128), (2, "weights"), 5, int4(), 25600),
        ((16, 128, 256), (4, "weights"), 5, int4(), 110592),
    ):
        assert shared_bytes(block, way, stages, problem, H200) == bytes_


def test_small_tiles_do_without_warp_groups():
    assert [grouped((m, n, 128), warps) for m, n, warps in ((16, 64, 4), (8, 64, 4), (16, 32, 4), (16, 64, 2))] == [
        True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("m", [1, 16, 64, 1024])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_build_has_kernels_for_every_packing(packing, m):
    dtype = {"": "int8"}.get(PACKED[packing].dtype, PACKED[packing].dtype) if packing in PACKED else "int4"
    problem = int4(m=m, packing=packing, weight_dtype=dtype)
    menus = INT4, INT4_SKINNY, GROUPWISE
    found = [one for menu in menus for one in menu.usual(problem, H200) if one.rejection(problem, H200) is None]
    assert {one.kernel for one in found} <= {"int4", "int4_skinny", "groupwise"}
    assert len(found) >= 3
