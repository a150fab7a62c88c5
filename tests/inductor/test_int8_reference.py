"""Where ATen is the best for an int8 weight on a CPU, a compile runs what it stands for in the tables."""

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb.key.problem import Problem

M, N, K = 24, 48, 64
X = torch.randn(M, K).bfloat16()
W, S, B = torch.randint(-9, 9, (N, K), dtype=torch.int8), torch.rand(N).bfloat16(), torch.rand(N).bfloat16()
PACK = "extern_kernels._weight_int8pack_mm("


def taken(x, w, s):
    """A spelling that Inductor's own pattern takes."""
    return torch.mm(x, w.t().to(x.dtype)) * s


def missed(x, w, s):
    return nn.functional.linear(x, w.to(x.dtype)) * s


def early(x, w, s):
    return nn.functional.linear(x, w.to(x.dtype) * s[:, None])


@pytest.fixture
def aten_wins(kit, table):
    problem = Problem.gemm("mixed_mm", m=M, n=N, k=K, fusion="scale")
    with torch.no_grad():
        gemmdb.inductor.enable(tables=[table({problem.text: kit.ATEN})])
        yield problem


@pytest.mark.parametrize("model", [taken, missed, early])
def test_each_spelling_gets_the_weight_only_kernel(kit, aten_wins, model):
    found, (code,) = run_and_get_code(torch.compile(model), X, W, S)
    kit.close(found, model(X, W, S))
    assert (code.count(PACK), code.count("extern_kernels.mm(")) == (1, 0)
    entry = kit.only()
    assert (entry["problem"], entry["config"], entry["rung"]) == (aten_wins.text, kit.ATEN.text, "exact")


def test_a_symbolic_depth_keeps_the_programs_own_kernel(kit, table):
    """The weight-only kernel reads K in vectors of 16. With K = 8 it gave garbage or ended the process."""
    problem, sizes = Problem.gemm("mixed_mm", m=M, n=N, k=K, fusion="scale"), (2, 4, 8, 16, 32, K, 100)
    gemmdb.inductor.enable(tables=[table({problem.resized(M, N, k).text: kit.ATEN for k in sizes})])
    run = torch.compile(missed)
    with torch.no_grad():
        for k in (K, 8, 100):
            x, w = torch.randn(M, k).bfloat16(), torch.randint(-9, 9, (N, k), dtype=torch.int8)
            for one in (x, w):
                torch._dynamo.mark_dynamic(one, 1, min=2, max=100)
            found, codes = (run(x, w, S), ()) if k != K else run_and_get_code(run, x, w, S)
            kit.close(found, missed(x, w, S))
            assert not any(PACK in code for code in codes)
    entry = kit.only()
    assert (entry["config"], entry["outcome"]) == (kit.ATEN.text, "ATen (measured best)")


def test_a_forced_aten_is_the_programs_own(kit):
    with torch.no_grad(), gemmdb.inductor.force(kit.ATEN):
        _, (code,) = run_and_get_code(torch.compile(missed), X, W, S)
    assert (code.count(PACK), code.count("extern_kernels.mm(")) == (0, 1)


def test_the_bias_after_inductors_own_kernel_is_in_the_key(kit):
    """Both passes look up one problem, also where the pattern has replaced the GEMM in between."""
    with torch.no_grad(), gemmdb.inductor.force(kit.left_alone):
        torch.compile(lambda x: taken(x, W, S) + B)(X)
    assert "bias=1d" in kit.only()["problem"]
