"""One row or one column, as Inductor multiplies and sums it in one kernel."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.for_a_gpu import asked, ints, linear, rand
from torch._inductor import utils

import gemmdb.inductor
from gemmdb import Config

SUM = Config.of("triton", "inductor_sum")
SUMMED = {
    "row": lambda x, w, q, s: x[:1] @ w.t(),
    "column": lambda x, w, q, s: w @ x[:1].t(),
    "relu": lambda x, w, q, s: torch.relu(x[:1] @ w.t()),
    "bias": lambda x, w, q, s: torch.addmm(s, x[:1], w.t()),
    "bias of a column": lambda x, w, q, s: torch.addmm(s[:, None], w, x[:1].t()),
    "int8": lambda x, w, q, s: linear(x[:1], q.to(x.dtype)),
    "int8, scale and bias": lambda x, w, q, s: linear(x[:1], q.to(x.dtype)) * s + s,
}


IN_FP16 = ("row", "int8, scale and bias")
"""The first and the last of them."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in SUMMED), *((name, torch.float16) for name in IN_FP16)],
)
def test_multiply_and_sum_is_one_kernel_that_is_right(name: str, dtype: Any, reached: list[str]) -> None:
    """Inductor generates it here for the CPU."""
    given = (*(tensor.to(dtype) for tensor in (rand(4, 512), rand(96, 512))), ints(96, 512), rand(96).to(dtype))
    with torch.no_grad(), gemmdb.inductor.force(SUM):
        found, codes = utils.run_and_get_code(torch.compile(SUMMED[name], dynamic=False), *given)
    wanted = SUMMED[name](*(tensor.double() for tensor in given))
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (SUM.text, "")
    assert gemmdb.inductor.stats()["errors"] == []
    assert codes[0].count("async_compile.cpp_pybinding(") == 1
    assert "extern_kernels." not in codes[0]


def test_multiply_and_sum_takes_no_symbolic_sizes(reached: list[str]) -> None:
    x, w = rand(1, 512), rand(96, 512)
    torch._dynamo.mark_dynamic(w, 0)
    assert "fixed sizes" in asked(SUMMED["row"], x, w, w, w, config=SUM)["note"]
