"""How times of weights with groups and of fp8 with block scales grow with the sizes."""

import math
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from kit.devices import A100, H200, L4
from kit.gpu import make
from kit.lab import CPU

from gemmdb import Config, Problem
from gemmdb.cost import sizes
from gemmdb.cost.roofline import roofline_us
from gemmdb.cost.transfer import Scale, member_of
from gemmdb.kernels.config import ATEN
from gemmdb.table.reader import Table

SHIPPED = "tables/sm90-nvidia-h200.db"
DEQUANTISED = Config.of("aten", "dequantised")


def int4(m=16, n=4096, k=4096, **rest):
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, **{"weight_dtype": "int4", "packing": "low-first", **rest})


def us(config, problem):
    return Scale.of(problem, H200).us(member_of(config))


def test_rows_beyond_a_tile_take_another_one():
    low, high = (make("int4", block_m=rows, stages=4) for rows in (16, 32))
    assert us(low, int4(m=16)) < us(high, int4(m=16))
    assert us(low, int4(m=24, n=28672)) > us(high, int4(m=24, n=28672))


def test_a_split_of_k_pays_where_there_are_few_columns():
    whole, split = (make("int4", block_m=64, stages=3, split_k=split) for split in (1, 8))
    assert us(split, int4(m=64, n=1024, k=16384)) < us(whole, int4(m=64, n=1024, k=16384))
    assert us(split, int4(m=64, n=57344, k=1024)) > us(whole, int4(m=64, n=57344, k=1024))


def test_programs_of_half_the_columns_of_words_read_them_again():
    half, whole = (make("int4_skinny", lean=1, block_n=columns) for columns in (32, 64))
    for packing, slower in (("awq", True), ("low-first", False)):
        problem = int4(m=8, n=28672, k=8192, packing=packing)
        assert (us(half, problem) > 1.2 * us(whole, problem)) == slower


def test_aten_unpacks_a_weight_first():
    assert us(ATEN, int4(m=1)) == us(ATEN, int4(m=64)) < us(ATEN, int4(m=512))
    assert us(ATEN, int4(packing="gptq")) > 1.5 * us(ATEN, int4())


def test_aten_multiplies_a_tiled_weight_row_by_row_unless_it_unpacks_it_first():
    few, many = (int4(m=m, n=6912, k=5120, packing="tinygemm8") for m in (1, 128))
    assert us(ATEN, many) > 20 * us(ATEN, few)
    assert us(DEQUANTISED, few) > 3 * us(ATEN, few)
    assert us(DEQUANTISED, many) < us(ATEN, many) / 3


@pytest.mark.parametrize("device", [A100, L4, CPU, replace(H200, mig=True)], ids=lambda device: device.sku)
def test_elsewhere_times_grow_as_the_roofline_does(device):
    for problem in (int4(m=12, n=2048), int4(m=12, n=8192)):
        scale = Scale.of(problem, device)
        for config in (ATEN, make("int4", stages=4)):
            assert scale.us(member_of(config)) == roofline_us(problem, device)


@pytest.mark.parametrize("kernel", ["int4", "int4_skinny", "groupwise", "scaled_blocks"])
def test_shipped_times_grow_as_computed(kernel):
    """Times relative to ATen's, of configs at neighbouring problems of a family. They are not the same everywhere, as
    they would be if all times grew as the roofline does."""
    seen = {}
    with closing(Table.open(SHIPPED, immutable=True)) as table:
        (device,) = table.devices()
        problems = sorted(
            (one for one, _ in table.pairs() if sizes.covers(one, device)), key=lambda one: (one.family, one.n)
        )
        for problem in problems[::2]:
            pooled = table.pooled(problem, device)
            aten = next((one for one in pooled if one.config == ATEN), None)
            for one in pooled:
                if aten is not None and one.config.kernel == kernel and one.ratio < 1.3 * pooled[0].ratio:
                    seen.setdefault((problem.family, one.config), []).append((problem, one.ratio))
    computed, constant = [], []
    for (_, config), places in seen.items():
        for (one, ratio), (other, further) in pairwise(places):
            grown = math.log(further / ratio)
            expected = math.log(us(config, other) / us(ATEN, other)) - math.log(us(config, one) / us(ATEN, one))
            computed.append(abs(grown - expected))
            constant.append(abs(grown))
    assert len(computed) > 20
    assert median(computed) < min(0.2, 0.95 * median(constant))
