"""CUTLASS kernels beside others that compute one node by its number of rows: their output code, generated where there
is no GPU."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.for_a_gpu import CUTLASS
from kit.inductor import found_without_gpu

from gemmdb import Config
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on a GPU")
WIDE = Config.of("cutlass", "gemm", **{**CUTLASS.values, "tile_m": 128})
ALGORITHM = gpu.algorithm()
PARTS = (8, ATEN), (32, CUTLASS), (64, WIDE), (None, ATEN)
bf16 = torch.bfloat16
X, W, R = ("m", 512, bf16), (256, 512, bf16), ("m", 256, bf16)
MODELS: dict[str, Any] = {
    "alone": (lambda x, w: x @ w.t(), X, W),
    "relu": (lambda x, w: torch.relu(x @ w.t()), X, W),
    "residual": (lambda x, w, r: torch.addmm(r, x, w.t()), X, W, R),
    "turned": (lambda x, w, r: torch.addmm(r.t().contiguous().t(), x, w.t()), X, W, R),
}


def found() -> dict[str, Any]:
    """By model: the code, and the journal's configs with notes. Called in a process that pretends to have a GPU."""
    from kit import no_gpu
    from torch._inductor import config

    from gemmdb.inductor.decide import legality
    from gemmdb.inductor.lower import cutlass
    from gemmdb.inductor.lower.adapter import cublaslt, prebuilt_kernels

    legality._unloadable = lambda *_: None
    prebuilt_kernels.usable = lambda name: False
    cublaslt.workspace = lambda *_: 64
    answers = {}

    def add(name: str, parts: Any, *model: Any, **options: Any) -> None:
        code, seen = no_gpu.output_code_of_rows(model[0], parts, *model[1:], **options)
        answers[name] = code, [(event.config, event.note) for event in seen]

    cutlass._compile_rejection = lambda *_: None
    for name, model in MODELS.items():
        add(name, PARTS, *model)
    if torch.version.cuda is not None and find_spec("triton") is not None:
        add("template", ((8, gpu.make("tile")), *PARTS[1:]), *MODELS["relu"])
    others = (16, ALGORITHM), (None, ATEN)
    with config.patch({"cpp_wrapper": True, "triton.autotune_at_compile_time": False}):
        add("cpp", PARTS, *MODELS["alone"], without_cutlass=others)
    cutlass._compile_rejection = lambda *_: Rejected("no compiled kernel")
    add("unavailable", PARTS, *MODELS["alone"], without_cutlass=others)
    return answers


@pytest.fixture(scope="module")
def answers() -> Any:
    return found_without_gpu(__file__)


def branches(code: str) -> list[str]:
    """The text of each branch, in the order of the code."""
    lines = code.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r" +(el)?if .*\bs\d+ |^ +else:$", line)]
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[start:end]) for start, end in zip(starts, ends, strict=True)]


def called(branch: str) -> str:
    """What a branch calls first."""
    (first, *_) = re.findall(r"extern_kernels|gemmdb_cutlass_\w+|triton_tem|gemmdb_cublaslt", branch)
    return str(first)


@pytest.mark.parametrize("name", ["alone", "relu", "residual"])
def test_each_has_its_own_branch(answers: Any, name: str) -> None:
    code, seen = answers[name]
    assert [note for _, note in seen] == [""]
    calls = [called(one) for one in branches(code)]
    assert calls[2:] == ["extern_kernels"], "ATen's parts share the last branch"
    assert len(set(calls)) == 3, "two kernels of CUTLASS"
    for one in calls[:2]:
        assert code.count(f"{one} = async_compile.cuda(") == 1
    rows = re.findall(r"c_void_p\(buf\d+\.data_ptr\(\)\), (s\d+), 256, 512, 512, 512, ", code)
    assert len(rows) == 2, "the number of rows is an argument"
    assert code.count("None, None, c_void_p(") == 2, "neither has a workspace"
    if name == "residual":
        assert "arg2_1.data_ptr()" in branches(code)[0]


def test_a_template_fuses_what_follows_the_others(answers: Any) -> None:
    if "template" not in answers:
        pytest.skip("needs torch's build for CUDA, and Triton")
    parts = branches(answers["template"][0])
    assert [called(one) for one in parts][::3] == ["triton_tem", "extern_kernels"]
    assert ["triton_poi_" in one for one in parts] == [False, True, True, True]


def test_no_operand_is_copied_for_the_sake_of_a_few_rows(answers: Any) -> None:
    """CUTLASS reads a bias that is dense by rows; ATen reads any."""
    code, _ = answers["turned"]
    assert "gemmdb_cutlass" not in code


@pytest.mark.parametrize("name", ["unavailable", "cpp"])
def test_others_take_the_place_of_what_is_not_available(answers: Any, name: str) -> None:
    """The next best of all rows: they were chosen beside each other."""
    code, ((config, note),) = answers[name]
    assert "gemmdb_cutlass" not in code
    assert "gemmdb_cublaslt" in code
    assert (config, note) == (ALGORITHM.text, "")
