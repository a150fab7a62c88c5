"""One row or one column, as Inductor multiplies and sums it in one kernel."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.for_a_gpu import asked, ints, linear, rand
from kit.program_batch import ProgramBatch
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


@pytest.mark.parametrize(
    ("dtype", "names"), [(torch.bfloat16, tuple(SUMMED)), (torch.float16, ("row", "int8, scale and bias"))], ids=str
)
def test_multiply_and_sum_is_one_kernel_that_is_right(dtype: Any, names: tuple[str, ...], reached: list[str]) -> None:
    """Inductor generates it here for the CPU."""
    inputs = [
        (rand(4, 512).to(dtype), rand(96, 512).to(dtype), ints(96, 512), rand(96).to(dtype)) for _ in names
    ]  # fmt: skip
    programs = ProgramBatch([SUMMED[name] for name in names])
    with torch.no_grad(), gemmdb.inductor.force(SUM):
        found, codes = utils.run_and_get_code(torch.compile(programs, dynamic=False), *inputs)
    for name, one, given in zip(names, found, inputs, strict=True):
        wanted = SUMMED[name](*(tensor.double() for tensor in given))
        assert (one.double() - wanted).abs().max() <= 0.01 * wanted.abs().max(), name
    stats = gemmdb.inductor.stats()
    assert {(entry["config"], entry["note"]) for entry in stats["products"]} == {(SUM.text, "")}
    assert stats["errors"] == []
    assert codes[0].count("async_compile.cpp_pybinding(") == len(names)
    assert "extern_kernels." not in codes[0]


def test_multiply_and_sum_takes_no_symbolic_sizes(reached: list[str]) -> None:
    x, w = rand(1, 512), rand(96, 512)
    torch._dynamo.mark_dynamic(w, 0)
    assert "fixed sizes" in asked(SUMMED["row"], x, w, w, w, config=SUM)["note"]
