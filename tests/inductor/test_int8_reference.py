"""Where ATen is the best for an int8 weight on a CPU, a compile runs what it stands for in the tables."""

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import gemmdb
import gemmdb.inductor
from gemmdb.inductor.entry.compare import compare
from gemmdb.key.problem import Problem
from gemmdb.outcome import RESPELLED

M, N, K = 24, 48, 64
X = torch.randn(M, K).bfloat16()
W, S, B = torch.randint(-9, 9, (N, K), dtype=torch.int8), torch.rand(N).bfloat16(), torch.rand(N).bfloat16()
PACK = "extern_kernels._weight_int8pack_mm("


def taken(x, w, s):
    """A spelling that Inductor's own pattern takes."""
    return torch.mm(x, w.t().to(x.dtype)) * s


def missed(x, w, s):
    return nn.functional.linear(x, w.to(x.dtype)) * s


class Missed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", W)
        self.register_buffer("s", S)

    def forward(self, x):
        return missed(x, self.w, self.s)


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
    assert (entry["problem"], entry["rung"]) == (aten_wins.text, "exact")
    assert (entry["outcome"], entry["why"]) == ("ATen (measured best)", "nothing measured is faster")
    told = (entry["config"], entry["speedup_vs_aten"], entry["note"])
    # The table's gain is over this very kernel, which default mode runs only for the first spelling.
    assert told == ((kit.ATEN.text, 1.0, "") if model is taken else (kit.INT8PACK.text, None, RESPELLED))
    told = "1 GEMM runs ATen's weight-only kernel; the program's own spelling would run a cast and a GEMM"
    for text in (str(gemmdb.inductor.summary()), str(gemmdb.inductor.report())):
        assert (told in text) == (model is not taken)


@pytest.mark.parametrize("model", [taken, missed, early])
def test_compare_takes_only_kernels_of_default_mode_for_the_same(kit, aten_wins, model):
    found = compare(lambda x: model(x, W, S), X, calls=1, wait_s=0.0)
    assert (found.verdict == "same kernels") == (model is taken)


def test_a_refused_kernel_leaves_the_weight_only_one(kit, table):
    """Told with the reason of the refusal."""
    problem = Problem.gemm("mixed_mm", m=M, n=N, k=K, fusion="scale", constant_weight=True)
    gemmdb.inductor.enable(tables=[table({problem.text: kit.CPP})], policy=gemmdb.Policy(deny="cpp"))
    with torch.no_grad(), inductor_config.patch(freezing=True):
        _, (code,) = run_and_get_code(torch.compile(Missed().eval()), X)
    assert code.count(PACK) == 1
    entry = kit.only()
    assert (entry["config"], entry["speedup_vs_aten"]) == (kit.INT8PACK.text, None)
    assert entry["note"] == f"cpp:packed_gemm: denied by the policy: cpp; {RESPELLED}"
    assert (entry["outcome"], entry["why"]) == ("ATen (refused)", "cpp:packed_gemm: denied by the policy: cpp")


def test_a_range_of_rows_tells_the_weight_only_kernel_too(kit, table):
    sizes = (2, 4, 8, 16, M, 32, 64, 100)
    problem = Problem.gemm("mixed_mm", m=M, n=N, k=K, fusion="scale")
    gemmdb.inductor.enable(tables=[table({problem.resized(m, N, K).text: kit.ATEN for m in sizes})])
    x = torch.randn(M, K).bfloat16()
    torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
    with torch.no_grad():
        found, (code,) = run_and_get_code(torch.compile(missed), x, W, S)
    kit.close(found, missed(x, W, S))
    entry = kit.only()
    assert code.count(PACK) == (1 if entry["config"] == kit.INT8PACK.text else 0)
    assert (RESPELLED in entry["note"]) == (PACK in code)


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
