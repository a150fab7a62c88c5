"""cuBLASLt's algorithms with a residual as their C, which none of them was explored with."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import close, rand

from gemmdb import Problem
from gemmdb.kernels.menus import cublaslt as menu

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("clean", "cublaslt")]


@pytest.mark.parametrize("m", [17, 64, 256, 2048])
def test_a_residual_is_added_by_any_algorithm(m: int) -> None:
    """None of those that are asked for without one ends the process or computes another sum."""
    from gemmdb.generators.measure.cuda import cublaslt

    problem = Problem.gemm("addmm", m=m, n=1024, k=2048, bias="full")
    a, b, c = rand(m, 2048), rand(1024, 2048), rand(m, 1024) * 8
    out, wanted = torch.empty_like(c), torch.addmm(c.double(), a.double(), b.double().t())
    ways = [
        menu.config_of(one.tile, menu.Way(one.option, one.cluster, 2 if one.split else 1))
        for one in menu.Ranking.read().proven
    ]
    tried = 0
    for config in dict.fromkeys((*ways, *cublaslt.proposed(problem, 64))):
        out.fill_(float("nan"))
        try:
            call = cublaslt.bound(problem, config, [{"A": a, "B": b.t(), "out": out, "bias": c}], "out")
            call(0)
        except RuntimeError:  # The library does not support it here.
            continue
        close(out, wanted)
        tried += 1
    assert tried > 0.5 * len(ways)
