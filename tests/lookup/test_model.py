"""Rung `model`: what epilogues cost that the model does not know."""

from dataclasses import replace

import pytest

from gemmdb.cost.roofline import TRANSPOSED, extra_us
from gemmdb.devices import registry
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.model import model
from gemmdb.settings import Policy

H200 = registry.find("NVIDIA H200")
LIGHT = Problem.gemm("addmm", m=25088, n=512, k=128, fusion="pointwise")
"""A layer of Swin and of ConvNeXt. With a GELU, the kernel that the model would take made both slower."""


def step(lab, problem):
    return model(Ask(lab.query(problem, H200), (), Policy(on_miss="aten"), None))


def test_an_exact_gelu_of_a_large_output_is_no_gain(lab):
    assert step(lab, LIGHT).hit.speedup > 1.3
    assert step(lab, replace(LIGHT, fusion="pointwise:math")).hit is None


def test_what_the_epilogue_costs_is_expected(lab):
    short = replace(LIGHT, m=8, n=1024, k=4096)
    light, math = (step(lab, replace(short, fusion=word)).hit for word in ("pointwise", "pointwise:math"))
    assert light.config == math.config
    assert math.expected_us == pytest.approx(
        light.expected_us + extra_us(replace(short, fusion="pointwise:math"), H200, light.expected_us)
    )


def test_a_light_epilogue_costs_nothing_beyond_itself_and_a_transposed_store_a_share():
    assert extra_us(LIGHT, H200, 10.0) == 0
    assert extra_us(replace(LIGHT, fusion="none"), H200, 10.0) == 0
    assert extra_us(replace(LIGHT, fusion="pointwise:transposed"), H200, 10.0) == pytest.approx(10 * TRANSPOSED)
    assert extra_us(replace(LIGHT, fusion="pointwise:math"), H200, 10.0) == pytest.approx(11.9, abs=0.1)
