"""The shipped table of the H200: the fastest kernel that the caller can use, and sizes at which a kernel that is slower
than ATen was served once."""

from pathlib import Path

import pytest
from kit.devices import H200

from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import answer, best_kernel
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.catalog import Catalog

POLICY = Policy(on_miss="aten", confirm=True)
M = {4096: 1024, 6144: 128}


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return Catalog.load(Settings((), Path("/nonexistent/user.db"), "aten"))


def asked(
    catalog: Catalog, n: int, policy: Policy = POLICY, kernels: tuple[str, ...] = ("tile", "narrow")
) -> Hit | None:
    def excluded(config: Config, rows: object) -> Rejected | None:
        return None if config.kernel in kernels else Rejected("another kernel")

    return best_kernel(gate_and_up(n), catalog, policy, None, excluded)


def gate_and_up(n: int) -> Query:
    return Query(Problem.gemm("mm", m=M[n], n=n, k=4096), H200)


@pytest.mark.parametrize("n", [4096, 6144], ids=["measured", "nearby"])
def test_the_fastest_kernel_is_named_also_where_aten_is_faster(shipped, n):
    served = answer(gate_and_up(n), shipped, POLICY)
    assert served is not None
    assert served.config == ATEN
    hit = asked(shipped, n)
    assert hit is not None
    assert hit.kernel in ("tile", "narrow")
    assert hit.speedup < 1
    assert hit.expected_us == pytest.approx(served.expected_us / hit.speedup, rel=0.05)
    assert hit.rung == ("exact" if n == 4096 else "near")


def test_the_policy_holds_for_the_fastest_kernel(shipped):
    hit = asked(shipped, 4096, Policy(on_miss="aten", confirm=True, deny="triton:tile"))
    assert hit is None or hit.kernel == "narrow"


def test_the_cost_model_answers_only_where_it_may(shipped):
    query = Query(Problem.gemm("mm", m=3, n=48, k=1_000_000), H200)
    assert best_kernel(query, shipped, POLICY) is not None
    assert best_kernel(query, shipped, Policy(on_miss="aten", confirm=True, model=False)) is None


def test_none_where_the_caller_can_use_none(shipped):
    assert asked(shipped, 4096, kernels=()) is None


def near(catalog: Catalog, op: str, m: int, n: int, k: int, confirm: bool) -> Hit | None:
    return answer(Query(Problem.gemm(op, m=m, n=n, k=k), H200), catalog, Policy(on_miss="aten", confirm=confirm))


@pytest.mark.parametrize("confirm", [False, True])
@pytest.mark.parametrize(("op", "n", "k"), [("addmm", 640, 2560), ("mm", 576, 7168)])
def test_a_vector_kernel_of_two_rows_is_not_served_for_five(shipped, op, n, k, confirm):
    """It spilled its registers: 77 us and 25 us, ATen 7.7."""
    hit = near(shipped, op, 5, n, k, confirm)
    assert hit is None or hit.kernel != "gemv"
    assert near(shipped, op, 2, n, k, True) is not None


@pytest.mark.parametrize("confirm", [False, True])
def test_between_the_librarys_tiles_no_kernel_is_served_that_cannot_beat_it(shipped, confirm):
    """ATen took 134 us where 201 were expected, and the CUTLASS tile that was served 193."""
    hit = near(shipped, "mm", 333, 12288, 12288, confirm)
    assert hit is None or hit.config == ATEN


@pytest.mark.parametrize(
    ("m", "n", "k", "weight"),
    [(1, 4096, 14336, {}), (1, 15104, 15232, {"packing": "low-first"}), (4, 3712, 6272, {"packing": "low-first"})],
)
def test_a_few_rows_times_an_int4_weight_get_a_kernel(shipped, m, n, k, weight):
    """ATen was served for the first two: 18.7 us instead of 15.6, and 273 us where a rival took 37."""
    problem = Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", **weight)
    hit = answer(Query(problem, H200), shipped, POLICY)
    assert hit is not None
    assert hit.kernel in ("int4_skinny", "int4_stream")
