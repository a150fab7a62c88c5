"""What the host calls for each number of rows of a program whose GEMMs have several kernels, beside default mode."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.for_a_gpu import NARROW
from kit.inductor import WITHOUT_GPU, found_without_gpu
from kit.wrapper_calls import calls

from gemmdb.kernels.config import ATEN

ALGORITHM, FIXUP = gpu.algorithm(), gpu.make("tile", split_k=3, reduce="fixup")
CALLED = (16, ATEN), (32, ALGORITHM), (None, ATEN)
COUNTING = (16, NARROW), (32, FIXUP), (64, ALGORITHM), (None, ATEN)
bf16 = torch.bfloat16
X, W, FIXED = ("m", 512, bf16), (512, 512, bf16), (64, 512, bf16)
ZEROING = "empty_strided_cuda().__getitem__().zero_"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on a GPU")


def layers(x: Any, w: Any) -> Any:
    """Three GEMMs, one of which adds a residual."""
    y = torch.relu(x @ w.t()) * 2
    return torch.addmm(y, y @ w, w)


def fixed_last(x: Any, w: Any, f: Any) -> Any:
    return f @ w.t() @ (x @ w.t()).t()


def fixed_first(x: Any, w: Any, f: Any) -> Any:
    return x @ (f @ w.t()).t()


def found() -> dict[str, Any]:
    """The code of each program. Called in a process that pretends to have a GPU."""
    from kit import no_gpu

    from gemmdb.inductor.lower.adapter import cublaslt

    cublaslt.workspace = lambda *asked: 64
    programs: dict[str, Any] = {"default": (layers, None, X, W), "called": (layers, CALLED, X, W)}
    if torch.version.cuda is not None and find_spec("triton") is not None:
        programs["counting"] = layers, COUNTING, X, W
        programs |= {one.__name__: (one, COUNTING, X, W, FIXED) for one in (fixed_last, fixed_first)}
    return {name: no_gpu.output_code_of_rows(*program)[0] for name, program in programs.items()}


@pytest.fixture(scope="module")
def answers() -> Any:
    return found_without_gpu(__file__)


def called(answers: Any, name: str, rows: int) -> list[str]:
    sizes = [(rows, 512), (512, 512)] + [(64, 512)] * name.startswith("fixed")
    return calls(answers[name], *(torch.empty(one, dtype=bf16, device="meta") for one in sizes))


@pytest.mark.parametrize("rows", [2, 16, 33, 4096])
def test_the_rows_of_aten_have_the_calls_of_default_mode(answers: Any, rows: int) -> None:
    assert called(answers, "called", rows) == called(answers, "default", rows)


def test_an_algorithm_has_one_call_and_its_workspace(answers: Any) -> None:
    ours, default = called(answers, "called", 32), called(answers, "default", 32)
    assert default.count("extern_kernels.mm") + default.count("extern_kernels.addmm") == 3
    launched = sum("gemmdb_cublaslt" in one for one in ours)
    assert launched == 3
    assert ours.count("empty_strided_cuda") == default.count("empty_strided_cuda") + launched


@WITHOUT_GPU
def test_only_the_kernels_that_count_have_a_workspace(answers: Any) -> None:
    """One launch zeroes the counters of all kernels that run."""
    more = Counter(called(answers, "counting", 65)) - Counter(called(answers, "default", 65))
    assert more == {"empty_strided_cuda": 1}, "the output of the first GEMM, which the templates do not store"
    for rows, zeroed in ((16, 1), (17, 1), (33, 0)):
        ours = called(answers, "counting", rows)
        assert ours.count(ZEROING) == zeroed
        assert sum("triton_tem" in one for one in ours) == 3 * zeroed


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["fixed_last", "fixed_first"])
def test_a_kernel_for_fixed_rows_finds_the_workspace_for_any_rows(answers: Any, name: str) -> None:
    for rows in (8, 100):
        ours = called(answers, name, rows)
        assert ours.count(ZEROING) == 1
        assert ours.index(ZEROING) < next(i for i, one in enumerate(ours) if "triton_tem" in one)
