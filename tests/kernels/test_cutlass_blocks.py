"""What our CUDA kernel for block scales is compiled with, and which configs are legal."""

import itertools
import re

import pytest
from kit.devices import H200, known

from gemmdb.cost import transfer
from gemmdb.cost.host import host_us
from gemmdb.cost.transfer import group_of
from gemmdb.errors import InputError
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.menus import cutlass as menu
from gemmdb.key.problem import Problem

BASE = {"tile_m": 64, "tile_n": 128, "cluster_m": 1, "cluster_n": 1, "split_k": 1, "swap": 0}
SIDES = (16, 32, 48, 64, 96, 112, 128, 144, 160, 192, 256)
AVAILABLE = 227 * 1024
"""Bytes of dynamic shared memory of a block."""


def config(**changes):
    return Config.of("cutlass", "scaled_blocks", **{**BASE, **changes})


def problem(m=200, n=4096, k=7168, **rest):
    return Problem.gemm("scaled_mm", m=m, n=n, k=k, scales="block", **rest)


def legal(one, where=None):
    return one.rejection(where or problem(), H200) is None


def test_left_is_a_without_swap_and_the_weight_with_it():
    plain = cutlass.macros(config(tile_m=128, tile_n=96, cluster_m=2), problem())
    assert (plain["TILE_ROWS"], plain["TILE_COLUMNS"], plain["SWAP"], plain["SHARED"]) == (128, 96, 0, 1)
    swapped = cutlass.macros(config(tile_m=16, tile_n=128, cluster_m=2, swap=1), problem())
    assert (swapped["TILE_ROWS"], swapped["TILE_COLUMNS"], swapped["SWAP"], swapped["SHARED"]) == (128, 16, 1, 2)


def test_every_macro_is_a_number_and_every_one_that_is_read_is_there():
    text = cutlass.render(config(), problem())
    written = dict(re.findall(r"^#define GEMMDB_([A-Z_]+) (.*)$", text, re.MULTILINE))
    assert all(re.fullmatch(r"\d+", value) for name, value in written.items() if name not in ("JOINED", "MMA"))
    read = set(re.findall(r"GEMMDB_([A-Z_]+)", cutlass.source("scaled_blocks"))) - {"", "JOINED", "MMA"}
    assert read <= set(written)


@pytest.mark.parametrize("name", sorted(BASE))
@pytest.mark.parametrize("value", ["1; system(0)", '1\n#include "x"', -1, 3, 300, 2**40, True])
def test_a_hostile_config_cannot_be_built(name, value):
    with pytest.raises(InputError):
        config(**{name: value})


def test_one_compiled_kernel_serves_all_sizes():
    names = {prebuilt.name(config(), problem(m, n, k)) for m, n, k in ((1, 512, 128), (4096, 7168, 16384))}
    assert len(names) == 1
    assert names != {prebuilt.name(config(swap=1), problem())}
    assert cutlass.workspace_bound(config(split_k=2), problem()) == 0


def test_every_legal_config_fits_into_registers_and_shared_memory():
    """By the sums of the CUDA source: two stages at least, and at most 255 registers of a thread. A weight's tile is
    within a block of scales, and parts of K are joined for 64 rows of each warp group."""
    found = []
    for m, n, split, swap in itertools.product(SIDES, SIDES, (1, 2, 4, 8), (0, 1)):
        one = config(tile_m=m, tile_n=n, split_k=split, swap=swap)
        rows, columns = (n, m) if swap else (m, n)
        if legal(one):
            tokens = columns if swap else rows
            stage = 128 * (rows + columns) + 4 * (tokens + 4) + 16
            assert (AVAILABLE - 1024 - 2 * rows * columns - 4 * (split - 1) * rows * columns) // stage >= 2
            assert not swap or rows <= 128
            assert split == 1 or rows <= 192
            waves = 2 if rows == 256 else 1
            assert (waves + 1) * columns // 2 < 200
            found.append((rows, columns))
    assert {rows for rows, _ in found} == {64, 128, 192, 256}
    assert max(columns for _, columns in found) == 160


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tile_m": 48}, "64 rows"),
        ({"tile_m": 256, "tile_n": 160}, "fit in registers"),
        ({"cluster_m": 2, "cluster_n": 2}, "shares one operand"),
        ({"cluster_m": 2, "split_k": 2}, "shares one operand"),
        ({"tile_m": 192, "split_k": 4}, "do not fit"),
        ({"tile_m": 256, "tile_n": 16, "split_k": 2}, "only tiles of up to 192 rows"),
        ({"tile_m": 16, "tile_n": 256, "swap": 1}, "one block of scales"),
        ({"tile_m": 32, "tile_n": 192, "swap": 1}, "one block of scales"),
    ],
)
def test_which_configs_are_illegal(changes, reason):
    assert reason in str(config(**changes).rejection(problem(), H200))


@pytest.mark.parametrize(
    ("where", "device", "symbolic", "reason"),
    [
        (problem(), known("NVIDIA A100-SXM4-80GB"), (), "Hopper"),
        (Problem.gemm("scaled_mm", m=64, n=512, k=512), H200, (), "block scales"),
        (problem(dtype="fp8_e5m2", weight_dtype="fp8_e4m3"), H200, (), "e4m3"),
        (problem(out_dtype="fp32"), H200, (), "bf16"),
        (problem(bias="1d"), H200, (), "without a bias"),
        (problem(n=4100), H200, (), "multiples of 16 bytes"),
        (problem(), H200, ("n",), "depends on N and K"),
        (problem(m=0), H200, (), "nothing to compute"),
    ],
)
def test_which_problems_are_rejected(where, device, symbolic, reason):
    assert reason in str(config().rejection(where, device, symbolic))


def test_m_may_be_symbolic():
    assert config().rejection(problem(), H200, ("m",)) is None


def test_a_split_has_a_block_of_k_for_each_part():
    eighths = config(tile_m=16, tile_n=64, swap=1, split_k=8)
    assert legal(eighths, problem(k=1024))
    assert "fewer than 8 blocks" in str(eighths.rejection(problem(k=896), H200))


@pytest.mark.parametrize("m", [1, 16, 17, 40, 100, 208, 485, 4096])
def test_the_menu_is_legal_and_fills_the_gpu(m):
    for n, k in ((512, 8192), (4096, 7168), (32768, 512)):
        found = menu.configs(problem(m, n, k), H200)
        assert 2 <= len(found) <= 20
        assert all(legal(one, problem(m, n, k)) for one in found)
        assert ATEN not in found
    assert max(one.values["split_k"] for one in menu.configs(problem(16, 512, 8192), H200)) == 8
    assert menu.configs(Problem.gemm("scaled_mm", m=m, n=512, k=512, scales="row"), H200) == []


def test_a_split_costs_the_host_nothing_and_does_not_follow_the_size():
    """Its blocks add their parts in shared memory. A cluster has 2, 4 or 8 blocks, whatever fills the GPU."""
    plain, split = (config(tile_m=16, tile_n=64, swap=1, split_k=one) for one in (1, 8))
    assert host_us(plain, problem()) == host_us(split, problem())
    assert group_of(split, problem(16, 1024, 10240), H200).resident == 0
    assert transfer.tile(split) == transfer.tile(plain)._replace(split=8, reduce="fixup")


def test_all_that_the_menu_tries_ships_compiled():
    archive = prebuilt.archive()
    assert archive is not None
    tried = menu.every_scaled_blocks()
    assert len(tried) > 40
    assert {prebuilt.name(one, problem()) for one in tried} <= set(archive.kernels)
