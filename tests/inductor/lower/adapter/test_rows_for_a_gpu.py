"""The code of a node that several kernels compute by its number of rows, generated where there is no GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.inductor import IN_CPP, WITHOUT_GPU, found_without_gpu

from gemmdb.kernels.config import ATEN

pytestmark = WITHOUT_GPU
TILE, FIXUP, NARROW = gpu.make("tile"), gpu.make("tile", split_k=3, reduce="fixup"), gpu.make("narrow", split_k=2)
ONE, TWO = gpu.algorithm(), gpu.algorithm(tile=601)
PARTS = (8, TILE), (16, FIXUP), (32, ONE), (64, NARROW), (128, ATEN), (None, TWO)
bf16 = torch.bfloat16
X, W, R = ("m", 512, bf16), (256, 512, bf16), ("m", 256, bf16)
MODELS = {
    "alone": (lambda x, w, r: x @ w.t(), (X, W, R)),
    "relu": (lambda x, w, r: torch.relu(x @ w.t()), (X, W, R)),
    "kept": (lambda x, w, r: (lambda y: (y, torch.nn.functional.silu(y) * r))(x @ w.t()), (X, W, R)),
    "bias": (lambda x, w, r: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, r)), (X, W, (256, bf16))),
}


def found() -> dict[str, Any]:
    """By model and wrapper: the code, and the journal's notes. Called in a process that pretends to have a GPU."""
    from kit import no_gpu
    from torch._inductor import config

    from gemmdb.inductor.lower.adapter import cublaslt

    cublaslt.workspace = lambda *asked: 64
    answers = {}
    for name, (model, inputs) in MODELS.items():
        for cpp in (False,) if IN_CPP.args[0] else (False, True):
            with config.patch(cpp_wrapper=cpp):
                code, seen = no_gpu.output_code_of_rows(model, PARTS, *inputs)
            answers[f"{name} {'cpp' if cpp else 'python'}"] = code, [event.note for event in seen]
    return answers


@pytest.fixture(scope="module")
def answers() -> Any:
    return found_without_gpu(__file__)


def bodies(code: str, cpp: bool) -> list[str]:
    """The text of each branch."""
    pattern = r"if \(s\d+[^{]*\{(.*?)\n    \}|else \{(.*?)\n    \}" if cpp else None
    if cpp:
        return ["".join(found) for found in re.findall(pattern, code, re.DOTALL)]
    lines = code.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r" +(el)?if .*\bs\d+ |^ +else:$", line)]
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("wrapper", ["python", pytest.param("cpp", marks=IN_CPP)])
@pytest.mark.parametrize("name", MODELS)
def test_each_part_has_its_own_branch(answers: Any, name: str, wrapper: str) -> None:
    code, notes = answers[f"{name} {wrapper}"]
    cpp = wrapper == "cpp"
    assert notes == [""]
    branches = bodies(code.rpartition("inductor_entry_impl(")[2] if cpp else code, cpp)
    assert len(branches) == len(PARTS)
    called = [
        "template" if "triton_tem_" in one else "cublaslt" if "gemmdb_cublaslt_" in one else "aten" for one in branches
    ]
    assert called == ["template"] * 3 + ["cublaslt", "cublaslt", "aten"]  # ATen's branch needs no test.
    # Nothing follows a template; a call is followed by the epilogue, if there is one.
    assert ["triton_poi_" in one for one in branches] == [False] * 3 + [name != "alone"] * 3
    # A buffer that only the calls write is allocated in their branches, and one that all write is not.
    own = [re.sub(r"\w*workspace\w* = empty_strided|empty_strided\w*\(1,", "", one) for one in branches]
    assert ["empty_strided" in one for one in own] == [False] * 3 + [name in ("relu", "bias")] * 3
    # What a kernel needs besides is allocated where it runs.
    assert ["workspace" in one for one in branches] == [False, True, True, True, True, False]
