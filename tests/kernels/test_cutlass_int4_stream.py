"""What our CUDA kernel for few rows and an int4 weight is compiled with, and which configs are legal."""

import itertools
import re

import pytest
from kit.devices import H200, known

from gemmdb.cost import transfer
from gemmdb.cost.host import host_us
from gemmdb.cost.transfer import group_of
from gemmdb.errors import InputError
from gemmdb.generators.cutlass_archive import INT4
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import int4_stream, prebuilt
from gemmdb.kernels.menus import cutlass as menu
from gemmdb.key.problem import Problem

BASE = {"tile_m": 8, "tile_n": 32, "rows": 32, "warps": 4, "split_k": 1}


def config(**changes):
    return Config.of("cutlass", "int4_stream", **{**BASE, **changes})


def problem(m=4, n=4096, k=4096, **rest):
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **{"packing": "low-first", **rest})


def test_every_macro_is_a_number_and_every_one_that_is_read_is_there():
    own = {"TYPES"}
    text = cutlass.render(config(), problem())
    written = dict(re.findall(r"^#define GEMMDB_([A-Z0-9_]+) (.*)$", text, re.MULTILINE))
    assert all(re.fullmatch(r"\d+", value) for name, value in written.items() if name not in own)
    read = set(re.findall(r"GEMMDB_([A-Z0-9_]+)", cutlass.source("int4_stream"))) - {""}
    assert read <= set(written) | own


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ({}, (128, 0, 0)),
        ({"group": 32}, (32, 0, 0)),
        ({"zeros": "bf16"}, (128, 1, 0)),
        ({"zeros": "uint8"}, (128, 2, 0)),
        ({"zeros": "fp16", "dtype": "fp16"}, (128, 1, 1)),
    ],
)
def test_a_kernel_is_compiled_for_a_format_and_a_dtype(rest, wanted):
    found = cutlass.macros(config(), problem(**{"zeros": "none", **rest}))
    assert tuple(found[name] for name in ("GROUP", "ZEROS", "FP16")) == wanted


@pytest.mark.parametrize("name", sorted(BASE))
@pytest.mark.parametrize("value", ["1; system(0)", '1\n#include "x"', -1, 3000, 2**40, True])
def test_a_hostile_config_cannot_be_built(name, value):
    with pytest.raises(InputError):
        config(**{name: value})


def test_one_compiled_kernel_serves_all_sizes_and_zero_points_are_an_operand():
    names = {prebuilt.name(config(), problem(m, n, k)) for m, n, k in ((1, 512, 128), (30, 7168, 16384))}
    assert len(names) == 1
    unit = prebuilt.unit(cutlass.macros(config(), problem(zeros="uint8")))
    assert "void const* scale, void const* zeros, void* out" in unit.signature
    assert cutlass.workspace_bound(config(split_k=2), problem()) == 0


def test_every_legal_config_fits_into_shared_memory_and_shares_out_its_tile():
    """By the sums and assertions of the CUDA source, repeated here."""
    found = []
    for m, n, rows, warps in itertools.product((8, 16), (16, 32, 64, 128), (16, 32, 64), (4, 8)):
        if config(tile_m=m, tile_n=n, rows=rows, warps=warps).rejection(problem(), H200) is not None:
            continue
        across = n // rows
        assert across * rows == n
        assert warps % across == 0
        ring = warps * 3 * (rows * 64 + m * 256)
        sums = warps // across * m * (n + 4) * 4
        assert sums <= ring <= 227 * 1024
        found.append((m, n, rows, warps))
    assert len(found) > 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tile_n": 16}, "share out K equally"),
        ({"tile_n": 128, "rows": 16}, "share out K equally"),
        ({"split_k": 7}, ""),
    ],
)
def test_which_configs_are_illegal(changes, reason):
    found = config(**changes).rejection(problem(), H200)
    assert (reason in str(found)) if reason else found is None


@pytest.mark.parametrize(
    ("where", "device", "symbolic", "reason"),
    [
        (problem(), known("NVIDIA A100-SXM4-80GB"), (), "Hopper"),
        (problem(packing="high-first"), H200, (), "low-first"),
        (problem(zeros="int4"), H200, (), "zero points"),
        (problem(zeros="int8"), H200, (), "zero points"),
        (problem(packing="tinygemm8", zeros="bf16"), H200, (), "low-first"),
        (Problem.gemm("mixed_mm", m=8, n=512, k=512), H200, (), "group"),
        (problem(n=4100), H200, (), "multiples of 16 bytes"),
        (problem(k=4160), H200, (), "wants K in steps of 128"),
        (problem(), H200, ("n",), "depends on N and K"),
        (problem(m=0), H200, (), "nothing to compute"),
        (problem(m=9), H200, (), "tiles of 8 rows are for up to 8"),
    ],
)
def test_which_problems_are_rejected(where, device, symbolic, reason):
    assert reason in str(config().rejection(where, device, symbolic))


@pytest.mark.parametrize("where", [problem(k=4160, group=64), problem(k=96, group=32), problem(zeros="uint8", m=8)])
def test_which_problems_are_legal(where):
    assert config().rejection(where, H200, ("m",)) is None


def test_a_split_has_a_step_of_k_for_each_part():
    assert "fewer than 4 steps" in str(config(split_k=4).rejection(problem(k=384), H200))
    assert config(split_k=4).rejection(problem(k=512), H200) is None


@pytest.mark.parametrize("m", [1, 2, 8, 9, 16, 20, 32])
def test_the_menu_is_legal(m):
    for n, k in ((512, 8192), (4096, 7168), (32768, 512)):
        found = [one for one in menu.configs(problem(m, n, k), H200) if one.kernel == "int4_stream"]
        assert 4 <= len(found) <= 16
        assert all(one.rejection(problem(m, n, k), H200) is None for one in found)
    assert not any(one.kernel == "int4_stream" for one in menu.configs(problem(33), H200))


def test_a_split_costs_the_host_nothing_and_does_not_follow_the_size():
    plain, split = (config(split_k=one) for one in (1, 3))
    assert host_us(plain, problem()) == host_us(split, problem())
    assert group_of(split, problem(4, 1024, 10240), H200).resident == 0
    assert transfer.tile(split) == transfer.tile(plain)._replace(split=3, reduce="fixup")


def test_the_cost_model_counts_the_blocks_that_registers_are_for():
    for tokens, rows, warps, wanted in ((8, 32, 8, 2), (8, 16, 4, 4), (16, 32, 4, 3), (16, 64, 8, 1)):
        assert int4_stream.resident_warps(tokens, rows) // warps == wanted
    text = cutlass.source("int4_stream")
    assert "kRows == 64 ? 8 : kTokens == 8 ? 16 : 12" in text
    assert f"kDepth = {int4_stream.STEP};" in text
    assert f"kStages = {int4_stream.STAGES};" in text


@pytest.mark.parametrize("weight", INT4, ids=lambda weight: weight.int4.text)
def test_all_that_the_menu_tries_ships_compiled(weight):
    archive = prebuilt.archive()
    assert archive is not None
    tried = menu.every_int4_stream()
    assert len(tried) > 15
    assert {prebuilt.name(one, weight) for one in tried} <= set(archive.kernels)
