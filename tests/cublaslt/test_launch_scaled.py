"""The call of output code with fp8 operands: whose scales the library is handed, and that torch gets them otherwise."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.cublaslt import instead
from kit.gemm_programs import ROWS
from kit.gpu import ALGORITHM

from gemmdb.cublaslt import launch
from gemmdb.cublaslt.shape import Matrix, Shape

M = 6


def prepared(shape: Shape, function: Any, **changes: Any) -> Any:
    return launch.prepare(function, 0, ALGORITHM, astuple(shape), **changes)


DEEP, WIDE = 1024, 160
SCALES = {
    "tensor": ((), ()),
    "row": ((M, 1), (1, WIDE)),
    "block": ((8, M), (2, 8)),  # They lie by columns.
}


def scaled(kind: str, bias: bool = False, fast: bool = False) -> Shape:
    a, b = Matrix("fp8_e4m3", True, DEEP), Matrix("fp8_e4m3", False, DEEP)
    out = Matrix("bf16", True, WIDE)
    return Shape(M, WIDE, DEEP, a, b, out, bias="bf16" if bias else "", scales=kind, fast=fast)


def scaled_tensors(kind: str) -> tuple[Any, ...]:
    x, w = torch.randn(M, DEEP).to(torch.float8_e4m3fn), torch.randn(WIDE, DEEP).to(torch.float8_e4m3fn)
    return x, w, torch.empty(M, WIDE, dtype=torch.bfloat16), *(torch.rand(sizes) for sizes in SCALES[kind])


@pytest.mark.parametrize(
    ("kind", "modes"), [("tensor", {}), ("row", {"a": 3, "b": 3}), ("block", {"a": 5, "b": 4})]
)  # fmt: skip
def test_scales_belong_to_the_transposed_product(standing, kind, modes):
    """The library's A is our B. Libraries before 12.8 have no mode of a scale."""
    x, w, out, scale_a, scale_b = scaled_tensors(kind)
    prepared(scaled(kind, fast=True), torch._scaled_mm)(x, w, out, 0, None, scale_a, scale_b)
    ((_, used, *_),) = standing.calls
    found = standing.described[used.value]
    assert (found["a_scale_pointer"], found["b_scale_pointer"]) == (scale_b.data_ptr(), scale_a.data_ptr())
    assert {name[0]: mode for name, mode in found.items() if name.endswith("_scale_mode")} == modes
    assert (found["fast_accum"], found["transa"], found["transb"]) == (1, 1, 0)


def test_scales_move_and_lie_within_others(standing):
    x, w, out, scale_a, scale_b = scaled_tensors("row")
    bias = torch.randn(WIDE + 8).bfloat16()
    launched = prepared(scaled("row", bias=True), torch._scaled_mm, offsets=(0, 0, 8, 0, 4))
    for first in (scale_a, scale_a.clone(), scale_a):
        launched(x, w, out, 0, None, bias, first, scale_b)
        found = standing.described[standing.calls[-1][1].value]
        assert found["bias_pointer"] == bias.data_ptr() + 16
        assert (found["a_scale_pointer"], found["b_scale_pointer"]) == (scale_b.data_ptr() + 16, first.data_ptr())
        assert found["fast_accum"] == 0
    assert standing.calls[0][1].value == standing.calls[2][1].value != standing.calls[1][1].value
    assert not standing.changed


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["tensor", pytest.param("row", marks=ROWS), "block"])
def test_torch_gets_the_scales(monkeypatch, kind, bias):
    instead(monkeypatch, None)
    x, w, out, scale_a, scale_b = scaled_tensors(kind)
    added = torch.randn(8 + WIDE).bfloat16()
    asked = []

    def multiply(a: Any, b: Any, scale_a: Any, scale_b: Any, **how: Any) -> None:
        asked.append((scale_a, scale_b, how["out_dtype"], how["use_fast_accum"]))
        if kind != "block":  # torch's CPU has no such scales.
            torch._scaled_mm(a, b, scale_a, scale_b, **how)

    offsets = (0, 0, *([8] if bias else []), 0, 0)
    launched = prepared(scaled(kind, bias, fast=True), multiply, offsets=offsets)
    launched(x, w, out, 0, None, *([added] if bias else []), scale_a, scale_b)
    ((first, second, *how),) = asked
    assert how == [torch.bfloat16, True]
    if kind == "block":
        assert torch.equal(first, scale_a.t())
        assert torch.equal(second, scale_b.t())
        return
    wanted = (x.float() * scale_a) @ (w.float().t() * scale_b) + (added[8:].float() if bias else 0)
    assert (out.float() - wanted).abs().max() < 0.01 * wanted.abs().max()
