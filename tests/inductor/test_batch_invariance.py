"""Batch invariance in compiles on a CPU that stand in for those on an H200: what would be generated, what is said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import make
from kit.sessions import FakeSession
from torch import nn
from torch._inductor import graph, utils
from torch._inductor.kernel import mm

import gemmdb.inductor
from gemmdb import InputError, Policy
from gemmdb.errors import MissError
from gemmdb.hit import Hit
from gemmdb.inductor.decide import deciding, legality, uncompiled
from gemmdb.inductor.entry import active
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import state, templates
from gemmdb.inductor.match import extract
from gemmdb.inductor.observe import invariance
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton.sum_order import sum_order
from gemmdb.key.problem import Problem, Query

OPTIONS = {"gemmdb.batch_invariant": True}


@pytest.fixture(autouse=True)
def unwarned() -> None:
    invariance._warn.cache_clear()


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Problem]]:
    """The configs that would be generated for an H200, with their problems; ATen is generated instead."""
    found: list[tuple[Config, Problem]] = []

    def stop(config: Config, problem: Problem, *rest: object) -> object:
        found.append((config, problem))
        raise triton.Refused("that far")

    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(templates, "multiprocessors", lambda node: 132)
    monkeypatch.setattr(triton, "lower", stop)
    monkeypatch.setattr(triton, "choice", stop)
    return found


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512, bias=False), nn.GELU(), nn.Linear(512, 256)).bfloat16().eval()


def ran(program: Callable[..., Any], x: Any, **options: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with torch.no_grad():
        torch.compile(program, backend="gemmdb", options={**OPTIONS, **options})(x)
    found: dict[str, Any] = gemmdb.inductor.stats()
    assert found["errors"] == []
    return found


@pytest.mark.slow
def test_all_numbers_of_rows_get_kernels_of_one_order(lowered: list[tuple[Config, Problem]]) -> None:
    by_weight: dict[tuple[int, int], set[Any]] = {}
    for rows in (1, 3, 16, 17, 200):
        lowered.clear()
        ran(model(), torch.randn(rows, 256).bfloat16())
        assert {(problem.n, problem.k) for _, problem in lowered} == {(512, 256), (256, 512)}
        for config, problem in lowered:
            assert problem.m == rows
            by_weight.setdefault((problem.n, problem.k), set()).add(sum_order(config, problem, H200))
    assert all(len(orders) == 1 and None not in orders for orders in by_weight.values())


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("high", [4096, None])
def test_a_symbolic_number_of_rows_gets_kernels_of_that_order(
    lowered: list[tuple[Config, Problem]], monkeypatch: pytest.MonkeyPatch, high: int | None, strict: bool
) -> None:
    """If one of the kernels of a range cannot be generated, ATen does not take its place: one kernel serves all."""
    linear = nn.Linear(256, 512, bias=False).bfloat16()
    ran(linear, torch.randn(16, 256).bfloat16())
    ((fixed, problem),) = lowered
    lowered.clear()

    def generate(config: Config, problem: Problem, operands: Any, *rest: object) -> object:
        lowered.append((config, problem))
        with state.only_aten():
            return mm.tuned_mm(operands.a, operands.b)

    monkeypatch.setattr(triton, "lower", generate)
    x = torch.randn(16, 256).bfloat16()
    torch._dynamo.mark_dynamic(x, 0, **({} if high is None else {"min": 2, "max": high}))
    found = ran(linear, x, **{"gemmdb.on_miss": "error" if strict else "aten"})
    first, alone = lowered
    assert {sum_order(config, problem, H200) for config, _ in (first, alone)} == {sum_order(fixed, problem, H200)}
    (product,) = found["products"]
    assert product["config"] == alone[0].text
    assert "that far" in product["note"]
    assert "kernels" not in product["evidence"]
    assert found["batch_invariant"] == {"covered": 1, "not_covered": {}}


@pytest.mark.parametrize("high", [4096, None])
def test_one_kernel_is_decided_late_for_a_symbolic_number_of_rows(
    lowered: list[tuple[Config, Problem]], high: int | None
) -> None:
    """Its K is cut, by several programs for few rows and by one program for a range without an end."""
    query = Query(Problem.gemm("mm", m=16, n=4096, k=14336), H200, {"m": (2, high)})
    gemmdb.inductor.enable("error", batch_invariant=True)
    session = active.current()
    assert session is not None
    several, alone = deciding.decide(session, query), deciding.decide_late(session, query)
    assert alone.config in [config for _, config in several.branches]
    assert legality.rejection(alone.config, query) is None
    assert (alone.branches, alone.event.config) == ((), alone.config.text)
    assert "kernels" not in alone.event.evidence


def test_gemms_that_are_not_covered_are_counted_and_named_once(
    lowered: list[tuple[Config, Problem]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gemmdb"):
        found = ran(model(), torch.randn(3, 256).bfloat16())
        ran(model(), torch.randn(4, 256).bfloat16())
    counted = found["batch_invariant"]
    assert (counted["covered"], sum(counted["not_covered"].values())) == (0, 2)
    said = [one.getMessage() for one in caplog.records if "depend on the number of rows" in one.getMessage()]
    assert len(said) == len({one["problem"].split()[0] for one in found["products"]})
    assert all("that far" in one for one in said)
    assert ran(model(), torch.randn(3, 256).bfloat16(), **{"gemmdb.batch_invariant": False})["batch_invariant"] is None


def test_only_compiles_with_the_policy_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was compiled before or after them."""

    def compiled(batch_invariant: bool) -> Any:
        torch._dynamo.reset()
        with torch.no_grad():
            options = {"gemmdb.batch_invariant": batch_invariant}
            torch.compile(model(), backend="gemmdb", options=options)(torch.randn(3, 256).bfloat16())
        return gemmdb.inductor.stats()["batch_invariant"]

    gemmdb.inductor.reset_stats()
    with caplog.at_level(logging.WARNING, "gemmdb"):
        assert compiled(False) is None
    assert "number of rows" not in caplog.text
    counted = compiled(True)
    assert (counted["covered"], sum(counted["not_covered"].values())) == (0, 2)
    assert compiled(False) == counted


def test_a_cpu_has_no_batch_invariance_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gemmdb"):
        found = ran(model(), torch.randn(3, 256).bfloat16())
    assert found["batch_invariant"]["covered"] == 0
    assert "needs a CUDA GPU" in caplog.text
    assert "not_batch_invariant" in found["products"][0]["evidence"] or "CUDA GPU" in found["products"][0]["note"]


@pytest.mark.parametrize("way", ["option", "argument", "policy"])
def test_strict_mode_fails_where_it_is_not_covered(way: str) -> None:
    x = torch.randn(3, 256).bfloat16()
    torch._dynamo.reset()
    if way == "option":
        run = torch.compile(model(), backend="gemmdb", options={**OPTIONS, "gemmdb.on_miss": "error"})
    else:
        policy = Policy(batch_invariant=True) if way == "policy" else None
        gemmdb.inductor.enable("error", policy=policy, batch_invariant=True if way == "argument" else None)
        run = torch.compile(model())
    with (
        pytest.raises(Exception, match=r"no batch-invariant kernel for (add)?mm m=3 .* needs a CUDA GPU"),
        torch.no_grad(),
    ):
        run(x)


def test_strict_mode_fails_where_the_lowering_refuses(lowered: list[tuple[Config, Problem]]) -> None:
    torch._dynamo.reset()
    run = torch.compile(model(), backend="gemmdb", options={**OPTIONS, "gemmdb.on_miss": "error"})
    with pytest.raises(Exception, match=r"no batch-invariant kernel for .* that far"), torch.no_grad():
        run(torch.randn(3, 256).bfloat16())


def test_strict_mode_fails_where_a_graph_is_compiled_again_with_aten(
    lowered: list[tuple[Config, Problem]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of the graph could not be compiled."""
    monkeypatch.setattr(uncompiled, "again", lambda: True)
    torch._dynamo.reset()
    run = torch.compile(model(), backend="gemmdb", options={**OPTIONS, "gemmdb.on_miss": "error"})
    with pytest.raises(Exception, match=r"no batch-invariant kernel for .* could not be compiled"), torch.no_grad():
        run(torch.randn(3, 256).bfloat16())
    found = ran(model(), torch.randn(3, 256).bfloat16())
    assert found["batch_invariant"]["covered"] == 0
    assert lowered == []


QUERY = Query(Problem.gemm("mm", m=64, n=512, k=512), H200, {"m": (2, 4096)})
ORDERED = {"sum_order": "unit=warp slices=1"}
LATE = {
    "of another rung": (Hit("near", ATEN, 8.0, 1.0, "", {"not_batch_invariant": "other order"}), "other order"),
    "not found": (None, "nothing is known"),
    "not legal": (Hit("model", make("tile", block_m=256, block_n=256, block_k=256), 8.0, 1.0, "", ORDERED), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
@pytest.mark.parametrize("decide", [deciding.decide_late, deciding.decide_dense], ids=["late", "dense"])
def test_strict_mode_fails_where_a_late_answer_is_not_batch_invariant(name: str, decide: Callable[..., Any]) -> None:
    """The layouts of a GEMM have changed since it was decided."""
    hit, why = LATE[name]
    policy = Policy(batch_invariant=True, on_miss="error")
    session = FakeSession(policy=policy, certain=lambda query: hit, dense=lambda query: hit, why="nothing is known")
    with pytest.raises(MissError, match=f"no batch-invariant kernel for mm .*: .*{why}"):
        decide(session, QUERY)
    assert decide(FakeSession(certain=lambda query: hit, dense=lambda query: hit), QUERY).config == ATEN


def test_it_is_a_part_of_the_cache_key() -> None:
    keys = []
    for value in (True, False):
        gemmdb.inductor.enable(batch_invariant=value)
        session = active.current()
        assert session is not None
        keys.append(session.identity)
    assert keys[0] != keys[1]
    assert "batch_invariant=1" in str(keys[0])


def test_it_is_true_or_false() -> None:
    with pytest.raises(InputError, match="batch_invariant must be True or False"):
        gemmdb.inductor.enable(batch_invariant="yes")  # type: ignore[arg-type]
