"""Rung `near` with the shipped table of the H200: sizes at which it once served a kernel that was slower than ATen."""

from pathlib import Path

import pytest

from gemmdb import lookup
from gemmdb.devices import registry
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten", False, ""))


def answer(catalog: Catalog, op: str, m: int, n: int, k: int, **policy: bool) -> Hit | None:
    device = registry.find("NVIDIA H200")
    assert device is not None
    query = Query(Problem.gemm(op, m=m, n=n, k=k), device)
    return lookup.answer(query, catalog, Policy(on_miss="aten", **policy))


@pytest.mark.parametrize("confirm", [False, True])
@pytest.mark.parametrize(("op", "n", "k"), [("addmm", 640, 2560), ("mm", 576, 7168)])
def test_a_vector_kernel_of_two_rows_is_not_served_for_five(shipped, op, n, k, confirm):
    """It spilled its registers: 77 us and 25 us, ATen 7.7."""
    hit = answer(shipped, op, 5, n, k, confirm=confirm)
    assert hit is None or hit.kernel != "gemv"
    two = answer(shipped, op, 2, n, k, confirm=True)
    assert two is not None


@pytest.mark.parametrize("confirm", [False, True])
def test_between_the_librarys_tiles_no_kernel_is_served_that_cannot_beat_it(shipped, confirm):
    """ATen took 134 us where 201 were expected, and the CUTLASS tile that was served 193."""
    hit = answer(shipped, "mm", 333, 12288, 12288, confirm=confirm)
    assert hit is None or hit.config == ATEN
