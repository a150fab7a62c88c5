"""Weights in groups that a build multiplies by our operator, since no compile finds them in its graphs."""

import pytest
import torch
from kit import inductor as helpers

from gemmdb import Problem
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.inductor import force
from gemmdb.kernels.config import ATEN


@pytest.mark.parametrize(("packing", "dtype"), [("plain", "int4"), ("mxfp4", "fp4_e2m1")])
def test_the_operator_computes_what_the_program_does(packing, dtype):
    problem = Problem.gemm("mixed_mm", m=5, n=64, k=256, packing=packing, weight_dtype=dtype, group=32)
    given = operands(problem, torch.device("cpu"), 1)
    replaced = Product(problem, given, replaced=True)
    with torch.no_grad(), force(ATEN):
        found = helpers.compiled(replaced, *replaced.inputs)
    helpers.close(found, Product(problem, given)(*replaced.inputs))
    assert helpers.problems() == [problem.text]
