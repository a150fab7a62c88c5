"""What `cutlass:gemm` is compiled with: words from fixed lists and integers, whatever a table says."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass.rules import scheduled
from gemmdb.key.problem import Problem

BASE: dict[str, str | int] = {
    "tile_m": 32, "tile_n": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 2, "schedule": "cooperative", "split_k": 4,
    "swizzle": 2, "raster": "m", "swap": 1,
}  # fmt: skip
CONFIG = Config.of("cutlass", "gemm", **BASE)
PROBLEMS = [
    Problem.gemm("mixed_mm", m=32, n=512, k=512, dtype="fp16", weight_dtype="uint8", fusion="scale"),
    Problem.gemm("int_mm", m=32, n=512, k=512),
    Problem.gemm("int_mm", m=32, n=512, k=512, fusion="scale", out_dtype="fp32"),
    Problem.gemm("addmm", m=32, n=512, k=512, layout="tn", bias="column", fusion="pointwise"),
]


def test_the_weight_on_the_left():
    names = cutlass.macros(CONFIG, PROBLEMS[0])
    assert names == {
        "LEFT": "uint8_t", "RIGHT": "cutlass::half_t", "OUT": "cutlass::half_t", "ACCUMULATOR": "float",
        "COMPUTE": "float", "TILE_ROWS": 128, "TILE_COLUMNS": 32, "TILE_DEPTH": 64, "CLUSTER_ROWS": 2,
        "CLUSTER_COLUMNS": 1, "LEFT_ALONG_DEPTH": 1, "RIGHT_ALONG_DEPTH": 1, "SWAP": 1, "COOPERATIVE": 1,
        "STREAM_K": 1, "SCALE": 1, "SCALE_TYPE": "cutlass::half_t", "ROW_SCALE": 0,
        "ROW_SCALE_TYPE": "cutlass::half_t", "BIAS": 0, "BIAS_TYPE": "cutlass::half_t",
    }  # fmt: skip


def test_the_activation_on_the_left():
    config = Config.of("cutlass", "gemm", **{**BASE, "swap": 0, "tile_m": 128, "split_k": 1})
    names = cutlass.macros(config, PROBLEMS[3])
    assert (names["LEFT_ALONG_DEPTH"], names["RIGHT_ALONG_DEPTH"]) == (0, 0)
    assert (names["TILE_ROWS"], names["TILE_COLUMNS"], names["CLUSTER_COLUMNS"]) == (128, 128, 2)
    assert (names["BIAS"], names["STREAM_K"], names["SCALE"]) == (2, 0, 0)


def test_only_a_bare_integer_gemm_stays_integer():
    computed = [cutlass.macros(CONFIG, problem)["COMPUTE"] for problem in PROBLEMS[1:3]]
    assert computed == ["int32_t", "float"]


@pytest.mark.parametrize("columns", ["", "fp32"])
@pytest.mark.parametrize("rows", ["", "bf16"])
def test_columns_and_rows_are_scaled_in_dtypes_of_their_own(rows, columns):
    names = cutlass.macros(CONFIG, PROBLEMS[2], cutlass.Vectors(columns, rows))
    assert (names["SCALE"], names["ROW_SCALE"], names["COMPUTE"]) == (int(columns != ""), int(rows != ""), "float")
    assert names["SCALE_TYPE"] == "float"
    assert names["ROW_SCALE_TYPE"] == ("cutlass::bfloat16_t" if rows else "float")
    assert cutlass.macros(CONFIG, PROBLEMS[1], cutlass.Vectors(columns, rows))["ROW_SCALE"] == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text[:40])
def test_every_macro_is_a_number_or_a_type_and_every_one_that_is_read_is_there(problem):
    text = cutlass.render(CONFIG, problem)
    written = re.findall(r"^#define GEMMDB_([A-Z_]+) (.*)$", text, re.MULTILINE)
    assert all(re.fullmatch(r"\d+|[a-z0-9_:]+", value) for _, value in written)
    assert {name for name, _ in written} == set(re.findall(r"GEMMDB_([A-Z_]+)", cutlass.source())) - {""}


@pytest.mark.parametrize("name", sorted(BASE))
@pytest.mark.parametrize("value", ["1; system(0)", '1\n#include "x"', -1, 300, 2**40, True, "auto "])
def test_a_hostile_config_cannot_be_built(name, value):
    with pytest.raises(InputError):
        Config.of("cutlass", "gemm", **{**BASE, name: value})


def test_how_k_is_split_and_the_order_of_tiles_are_arguments():
    other = Config.of("cutlass", "gemm", **{**BASE, "split_k": 0, "swizzle": 8, "raster": "n"})
    assert cutlass.render(CONFIG, PROBLEMS[0]) == cutlass.render(other, PROBLEMS[0])
    assert cutlass.order(CONFIG) == (4, 2, 1)
    assert cutlass.order(other) == (0, 8, 2)


def test_inside_and_outside_of_the_kernel():
    relu, mixed = PROBLEMS[3], Problem.gemm("mixed_mm", m=32, n=512, k=512, fusion="scale", bias="1d")
    rest = cutlass.outside(relu)
    assert cutlass.inside(relu).fusion == "none"
    assert cutlass.inside(relu).bias == relu.bias
    assert rest is not None
    assert (rest.op, rest.fusion, rest.bias) == ("mm", "pointwise", None)
    rest = cutlass.outside(mixed)
    assert (cutlass.inside(mixed).fusion, cutlass.inside(mixed).bias) == ("scale", None)
    assert rest is not None
    assert (rest.fusion, rest.bias) == ("none", mixed.bias)
    assert cutlass.outside(PROBLEMS[0]) is None


def test_rows_hold_while_the_source_stays_the_same():
    """Or only got row scales."""
    digest = CONFIG.digest()
    assert len(digest) == 16
    assert CONFIG.is_current(digest)
    assert CONFIG.is_current("482ad56a9acc89e2")
    assert not CONFIG.is_current("0" * 16)


@pytest.mark.parametrize(
    ("tiles", "cluster", "swizzle", "handed_out"),
    [
        ((7, 13), (1, 1), 1, (7, 13)),
        ((3, 13), (2, 1), 1, (4, 13)),
        ((8, 64), (2, 1), 8, (16, 64)),
        ((5, 64), (1, 1), 8, (8, 64)),
        ((2, 64), (1, 1), 8, (2, 64)),
        ((1, 64), (1, 1), 8, (1, 64)),
        ((64, 9), (2, 1), 8, (64, 16)),
    ],
)
def test_whole_clusters_and_bands_are_handed_out(tiles, cluster, swizzle, handed_out):
    assert scheduled(tiles, cluster, swizzle) == handed_out


sides = st.integers(1, 4096)


@given(st.tuples(sides, sides), st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]), st.sampled_from([1, 2, 4, 8]))
def test_all_tiles_are_handed_out_and_less_than_a_band_more(tiles, cluster, swizzle):
    for count, found, along in zip(tiles, scheduled(tiles, cluster, swizzle), cluster, strict=True):
        assert found % along == 0
        assert count <= found < count + swizzle * along


def test_no_scratch_without_a_split():
    assert cutlass.workspace_bound(Config.of("cutlass", "gemm", **{**BASE, "split_k": 1}), PROBLEMS[0]) == 0
    # One row of four tiles, in bands of two by clusters of two.
    expected = 2 * 4 * (32 * 128 * 4 + 8) + 256
    assert cutlass.workspace_bound(CONFIG, PROBLEMS[0]) == expected
