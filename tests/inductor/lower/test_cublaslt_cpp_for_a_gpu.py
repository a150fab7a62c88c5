"""The output code in C++ of GEMMs that take an algorithm of cuBLASLt, generated where there is no GPU."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from kit import cublaslt_code
from kit.cublaslt_code import K, M, N, code, lines
from kit.inductor import IN_CPP

from gemmdb.kernels.config import ATEN

pytestmark = [IN_CPP, pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on a GPU")]


def found():
    """Called in a process that pretends to have a GPU."""
    return cublaslt_code.generated("cpp")


def test_the_code_in_cpp_has_the_scales(answers):
    (fields,) = lines(code(answers, "rows", "split"), f"{{{M}, {N}, {K}, 1, false, ")
    assert (
        f", 68, 0, 14, 3, 3, true, false, {{{{2, 8, 1, {{{N}}}, {{1}}}}, {{4, 0, 2, {{{M}, 1}}, {{1, 1}}}}, " in fields
    )
    assert "bias ? &bias : nullptr, nullptr, nullptr, 1);" in code(answers, "rows", "split")


def test_the_code_in_cpp_has_the_matrix_that_is_added(answers):
    """With the epilogue of a GEMM without a bias."""
    text = code(answers, "full", "split")
    (fields,) = lines(text, f"{{{M}, {N}, {K}, 1, false, ")
    matrix = f"{{{{2, 0, 2, {{{M}, {N}}}, {{{N}, 1}}}}, {{}}, {{}}}}"
    assert f", 68, 0, -1, -1, -1, false, true, {matrix}, 1, " in fields
    assert "aoti_torch_cuda_addmm_out(out, bias, a, b, 1.0, 1.0)" in text


@pytest.mark.parametrize("name", ["mm", "addmm", "full", "bmm", "int_mm", "scaled_mm", "view"])
def test_the_code_in_cpp_calls_the_library_itself(answers, name):
    text = code(answers, name, "split")
    assert "gemmdb.cublaslt" not in text.partition("cpp_wrapper_src")[2].replace("gemmdb/cublaslt", "")
    assert text.count("struct Library {") == 1
    (defined,) = re.findall(r"static void (gemmdb_cublaslt_\w+)\(", text)
    (extras,) = re.findall(rf"\b{defined}\(\w+, \w+, buf\d, buf\d, (\w+, \w+, \w+)\);", text)
    biased = dict.fromkeys(("addmm", "full"), "arg0_1, nullptr, nullptr")
    wanted = {**biased, "scaled_mm": "nullptr, arg2_1, arg3_1"}
    assert extras == wanted.get(name, "nullptr, nullptr, nullptr")
    shim = {"int_mm": "_int_mm", "scaled_mm": "_scaled_mm", "view": "mm", "full": "addmm"}.get(name, name)
    assert f"return aoti_torch_cuda_{shim}_out(out, " in text


def test_the_code_in_cpp_has_the_attributes(answers):
    text = code(answers, "mm")
    assert "{1, 601, 4}" in text
    assert "{6, 35, 4}" in text
    assert "{8, 2, 2}" in text
    (fields,) = lines(text, f"{{{M}, {N}, {K}, 1, false, ")
    assert fields.endswith(", 66, 0, 0}, attributes,")  # No library and no driver are here.


@pytest.mark.parametrize(("activation", "epilogue", "by_torch"), [
    ("relu", 6, "(bias, a, b, 1.0, 1.0, 0, &made)"), ("gelu_tanh", 32, "(out, a, b, 0.0, 1.0, 1, &made)"),
])  # fmt: skip
def test_an_activation_in_cpp(answers, activation, epilogue, by_torch):
    taken, _, text = answers[activation]
    assert taken
    assert f"aoti_torch_cuda__addmm_activation{by_torch}" in text
    assert f", {epilogue}, 0, 66, 0, 0}}, attributes," in text


def test_what_the_library_does_not_support_is_aten(answers):
    (taken, note), text = answers["mm unsupported"]
    assert taken == ATEN.text
    assert "not supported" in note
    assert "gemmdb_cublaslt" not in text
