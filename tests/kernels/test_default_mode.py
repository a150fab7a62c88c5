"""What Inductor's default mode runs for a GEMM: which it may pad, and the config whose code is the same."""

from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Config, Problem
from gemmdb.kernels.default_mode import may_pad, padded_form, returns_view
from gemmdb.kernels.menus import inductor as inductor_menu

gemm = Problem.gemm
VIEW = Config.of("aten", "padded", multiple=8, output="view")


@pytest.mark.parametrize(("problem", "padded"), [
    (gemm("mm", m=3000, n=4097, k=4095), True),
    (gemm("addmm", m=64, n=4097, k=4096), True),
    (gemm("mm", m=64, n=1001, k=4096, dtype="fp32"), True),
    (gemm("mm", m=64, n=1004, k=4096, dtype="fp32"), False),
    (gemm("bmm", batch=8, m=577, n=577, k=64), True),
    (gemm("mm", m=3001, n=4096, k=4096), False),
    (gemm("mm", m=3001, n=4096, k=4096, layout="tn"), True),
    (gemm("mm", m=3000, n=4097, k=4095, dtype="fp64"), False),
    (gemm("int_mm", m=72, n=1000, k=520), False),
    (gemm("mm", m=512, n=512, k=13), False),
    (gemm("mm", m=512, n=512, k=33), True),
    (gemm("mm", m=8, n=8, k=13), True),
    (gemm("mm", m=512, n=512, k=13, dtype="fp32"), True),
], ids=str)  # fmt: skip
def test_only_misaligned_floats_whose_k_is_not_shallow_may_be_padded(problem, padded):
    assert may_pad(problem) is padded


def test_the_form_is_that_of_inductors_own_pass():
    assert padded_form(gemm("mm", m=3000, n=4097, k=4095)) == VIEW
    assert padded_form(gemm("addmm", m=3000, n=4097, k=4095, dtype="fp16")) == VIEW
    assert padded_form(gemm("mm", m=3000, n=4097, k=4095, dtype="fp32")).values["multiple"] == 4
    assert padded_form(gemm("mm", m=3000, n=4096, k=4096)) is None
    assert padded_form(gemm("bmm", batch=8, m=577, n=577, k=64)) is None, "no config pads a batch"


def test_with_an_epilogue_dense_rows_are_the_same_code():
    form = padded_form(gemm("mm", m=3000, n=4097, k=4095, fusion="pointwise"))
    assert form == Config.of("aten", "padded", multiple=8)
    assert not returns_view(form)
    assert returns_view(VIEW)


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("fusion", ["none", "pointwise"])
def test_a_build_tries_it_first(op, dtype, fusion):
    problem = gemm(op, m=3000, n=4097, k=4095, dtype=dtype, fusion=fusion)
    padded = [config for config in inductor_menu.configs(problem, H200) if config.kernel == "padded"]
    assert padded[0] == padded_form(problem)
    assert inductor_menu.configs(replace(problem, constant=True), H200) == []
