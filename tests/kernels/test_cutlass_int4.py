"""What our CUDA kernel for int4 weights is compiled with, and which configs are legal."""

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
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.menus import cutlass as menu
from gemmdb.key.problem import Problem

BASE = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "groups": 2, "split_k": 1}
AVAILABLE = 227 * 1024
"""Bytes of dynamic shared memory of a block."""


def config(**changes):
    return Config.of("cutlass", "int4", **{**BASE, **changes})


def problem(m=200, n=4096, k=4096, **rest):
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **{"packing": "low-first", **rest})


def legal(one, where=None):
    return one.rejection(where or problem(), H200) is None


def test_every_macro_is_a_number_and_every_one_that_is_read_is_there():
    own = {"JOINED", "MMA"}
    text = cutlass.render(config(), problem())
    written = dict(re.findall(r"^#define GEMMDB_([A-Z0-9_]+) (.*)$", text, re.MULTILINE))
    assert all(re.fullmatch(r"\d+", value) for name, value in written.items() if name not in own)
    read = set(re.findall(r"GEMMDB_([A-Z0-9_]+)", cutlass.source("int4"))) - {""}
    assert read <= set(written) | own


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ({}, (128, 0, 0)),
        ({"group": 64}, (64, 0, 0)),
        ({"zeros": "bf16"}, (128, 1, 0)),
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
    names = {prebuilt.name(config(), problem(m, n, k)) for m, n, k in ((1, 512, 128), (4096, 7168, 16384))}
    assert len(names) == 1
    unit = prebuilt.unit(cutlass.macros(config(), problem(zeros="bf16")))
    assert "void const* scale, void const* zeros, void* out" in unit.signature
    assert "m, n, k, lda, ldb, place(zeros, zeros_offset)}" in unit.source
    assert cutlass.workspace_bound(config(split_k=2), problem()) == 0


def test_every_legal_config_fits_into_registers_and_shared_memory():
    """By the sums and assertions of the CUDA source, repeated here."""
    found = []
    for m, n, k, groups, split in itertools.product(
        range(8, 257, 8), (64, 128, 192, 256), (64, 128), (1, 2, 3, 4), (1, 2, 4, 8)
    ):
        if not legal(config(tile_m=m, tile_n=n, tile_k=k, groups=groups, split_k=split)):
            continue
        waves = n // 64 // groups
        assert 64 * groups * waves == n
        assert (k // 16 * waves) % 4 == 0
        assert 2 + 2 * waves <= k // 16 * waves
        owners = next(many for many in range(split, 0, -1) if m // 8 % many == 0)
        stored = m // owners
        out = n // 64 * stored * 128
        stage = m * k * 2 + n * k // 2
        stages = min((AVAILABLE - 1024 - (0 if split > 1 else out)) // (stage + 16), 24)
        assert stages >= 2
        assert split == 1 or split * stored * n * 4 + out <= stages * stage
        assert waves * m // 2 <= {1: 136, 2: 136, 3: 64, 4: 48}[groups]
        found.append((m, n))
    assert {n for _, n in found} == {64, 128, 192, 256}
    assert max(m for m, _ in found) == 256


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": 3}, "64 rows"),
        ({"tile_n": 256, "groups": 1}, "64 rows"),
        ({"tile_n": 256}, "do not fit into the registers"),
        ({"tile_m": 20}, "multiples of 8"),
        ({"tile_m": 256}, "pipeline stages"),
    ],
)
def test_which_configs_are_illegal(changes, reason):
    assert reason in str(config(**{**{"tile_m": 144}, **changes}).rejection(problem(), H200))


@pytest.mark.parametrize(
    ("where", "device", "symbolic", "reason"),
    [
        (problem(), known("NVIDIA A100-SXM4-80GB"), (), "Hopper"),
        (problem(packing="high-first"), H200, (), "low-first"),
        (problem(zeros="int4"), H200, (), "zero points"),
        (problem(zeros="uint8"), H200, (), "zero points"),
        (problem(zeros="int8"), H200, (), "zero points"),
        (problem(packing="tinygemm8", zeros="bf16"), H200, (), "low-first"),
        (Problem.gemm("mixed_mm", m=64, n=512, k=512), H200, (), "group"),
        (problem(n=4100), H200, (), "multiples of 16 bytes"),
        (problem(k=4160, group=64), H200, (), "whole steps of 128"),
        (problem(), H200, ("n",), "depends on N and K"),
        (problem(m=0), H200, (), "nothing to compute"),
    ],
)
def test_which_problems_are_rejected(where, device, symbolic, reason):
    assert reason in str(config().rejection(where, device, symbolic))


def test_m_may_be_symbolic():
    assert config().rejection(problem(), H200, ("m",)) is None


def test_a_split_has_a_step_of_k_for_each_part():
    quarters = config(tile_m=72, split_k=4)
    assert legal(quarters, problem(k=512))
    assert "fewer than 4 steps" in str(quarters.rejection(problem(k=384), H200))


@pytest.mark.parametrize("m", [17, 24, 40, 72, 152, 400, 1088, 4096, 10_000])
def test_the_menu_is_legal(m):
    for n, k in ((512, 8192), (4096, 7168), (32768, 512)):
        found = [one for one in menu.configs(problem(m, n, k), H200) if one.kernel == "int4"]
        assert 1 <= len(found) <= 12
        assert all(legal(one, problem(m, n, k)) for one in found)
    assert {one.kernel for one in menu.configs(problem(16), H200)} == {"int4_stream"}


def test_a_split_costs_the_host_nothing_and_does_not_follow_the_size():
    """Its blocks add their parts in shared memory. A cluster has 2, 4 or 8 blocks, whatever fills the GPU."""
    plain, split = (config(tile_m=72, split_k=one) for one in (1, 4))
    assert host_us(plain, problem()) == host_us(split, problem())
    assert group_of(split, problem(72, 1024, 10240), H200).resident == 0
    assert transfer.tile(split) == transfer.tile(plain)._replace(split=4, reduce="fixup")


@pytest.mark.parametrize("weight", INT4, ids=lambda weight: weight.int4.text)
def test_all_that_the_menu_tries_ships_compiled(weight):
    archive = prebuilt.archive()
    assert archive is not None
    tried = menu.every_int4()
    assert len(tried) > 15
    assert {prebuilt.name(one, weight) for one in tried} <= set(archive.kernels)
