"""docs/contributing/op.md: its op has a key, a spelling in torch that is right, and candidates."""

from __future__ import annotations

import pytest
from kit.devices import H200
from kit.pages import run

from gemmdb.errors import InputError
from gemmdb.generators.effort import named
from gemmdb.generators.measure import program
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem

GUIDE = "contributing/op.md"


@pytest.fixture
def half_mm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op of the guide, registered."""
    monkeypatch.setitem(OPS, "half_mm", run(GUIDE, "record")["HALF_MM"])
    monkeypatch.setitem(program.SPELLINGS, "half_mm", run(GUIDE, "spelling")["half_mm"])


@pytest.mark.usefixtures("half_mm")
def test_what_the_guide_says_holds() -> None:
    run(GUIDE, "check")


@pytest.mark.usefixtures("half_mm")
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"dtype": "bf16"}, "cannot multiply bf16 by bf16"),
        ({"bias": "1d"}, "addmm takes a bias"),
        ({"batch": 2}, "only bmm takes a batch"),
        ({"scales": "row"}, "only scaled_mm and grouped_mm of fp8 have scales"),
    ],
)
def test_what_its_record_does_not_take_is_refused(rest: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Problem.gemm("half_mm", **{"m": 5, "n": 16, "k": 64, **rest})


@pytest.mark.usefixtures("half_mm")
def test_before_a_kernel_lists_it_aten_is_the_only_candidate() -> None:
    candidates = CudaSpace().candidates(Problem.gemm("half_mm", m=5, n=16, k=64), H200, named("standard", "cuda"))
    assert [candidate.config for candidate in candidates] == [ATEN]
