"""Without a CUDA graph, no GEMM gets a config whose calls take the host longer than they save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.cublaslt import Library, instead
from kit.for_a_gpu import TILE, rand
from kit.gpu import ALGORITHM, make
from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.match import aten_calls
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy

pytestmark = pytest.mark.usefixtures("gpu")
SUMMED = make("tile", block_m=64, block_n=128, split_k=4, reduce="kernel")
"""A second kernel sums its slices."""
SPLIT = {**ALGORITHM, "split_k": 3, "reduction": 2}
SLOW = "host time: triton:tile takes the host"


def hit(config: Any, us: float = 6.0, aten_us: float = 8.0) -> Hit:
    return Hit("exact", config, us, aten_us / us, "a.db")


@contextmanager
def answering(session: FakeSession) -> Iterator[None]:
    enable.install()
    with active.use(session):
        yield


def product(session: FakeSession, **options: Any) -> dict[str, Any]:
    """The one GEMM of a program that compiles with `session`."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    x, w = rand(64, 256), rand(512, 256)
    with torch.no_grad(), answering(session):
        torch.compile(lambda x, w: x @ w.t(), **options)(x, w)
    assert gemmdb.inductor.stats()["errors"] == []
    (found,) = gemmdb.inductor.stats()["products"]
    return dict(found)


def test_aten_runs_instead_of_slow_calls() -> None:
    found = product(FakeSession(lambda query: hit(SUMMED)))
    assert found["config"] == ATEN.text
    assert found["note"].startswith(SLOW)
    assert (found["expected_us"], found["speedup_vs_aten"]) == (8.0, 1.0)


@pytest.mark.parametrize(
    ("policy", "options"), [(Policy(captured=True), {}), (Policy(), {"mode": "reduce-overhead"})], ids=["own", "mode"]
)
def test_a_captured_program_gets_slow_calls(policy: Policy, options: dict[str, str]) -> None:
    assert product(FakeSession(lambda query: hit(SUMMED), policy), **options)["note"] == "that far"


def test_the_policy_overrides_the_mode() -> None:
    session = FakeSession(lambda query: hit(SUMMED), Policy(captured=False))
    assert product(session, mode="reduce-overhead")["note"].startswith(SLOW)


def test_long_gemms_and_quick_calls_are_served() -> None:
    for found in (hit(SUMMED, 90.0, 100.0), hit(TILE)):
        assert product(FakeSession(lambda query, found=found: found))["note"] == "that far"


@pytest.mark.parametrize("splits", [True, False])
def test_a_split_of_k_is_served_where_aten_splits_too(monkeypatch: pytest.MonkeyPatch, splits: bool) -> None:
    library = Library()
    library.named = (SPLIT, ALGORITHM) if splits else (ALGORITHM, SPLIT)
    instead(monkeypatch, library)
    aten_calls.first_splits.cache_clear()
    found = product(FakeSession(lambda query: hit(Config.of("cublaslt", "matmul", **SPLIT))))
    assert found["note"].startswith("host time: cublaslt:matmul") != splits


def trained(session: FakeSession) -> list[tuple[str, str]]:
    """The config and the note of each GEMM of a step of a linear layer."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    x, w = rand(64, 256), rand(512, 256).requires_grad_()
    with answering(session):
        torch.compile(lambda x, w: (x @ w.t()).float().pow(2).sum())(x, w).backward()
    assert gemmdb.inductor.stats()["errors"] == []
    return [(one["config"], one["note"]) for one in gemmdb.inductor.stats()["products"]]


def test_in_a_training_step_only_quick_calls_are_served() -> None:
    def mapped(query: Any) -> Hit:
        return hit(make("persistent"), 40.0, 50.0)

    found = trained(FakeSession(mapped))
    assert len(found) == 2, "a product in the forward pass and one in the backward pass"
    assert all(config == ATEN.text and "in a training step" in note for config, note in found)
    assert not any("host" in note for _, note in trained(FakeSession(mapped, Policy(training=False))))
    assert "host" not in product(FakeSession(mapped))["note"]
    assert all(note == "that far" for _, note in trained(FakeSession(lambda query: hit(TILE, 40.0, 50.0))))


def test_a_step_whose_gemms_are_mostly_long_hides_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped(query: Any) -> Hit:
        return hit(make("persistent"), 90.0, 100.0)

    monkeypatch.setattr(state, "TRAINING_HIDDEN_FLOPS", 2.0 * 64 * 256 * 512)
    found = trained(FakeSession(mapped))
    assert len(found) == 2
    assert not any("host" in note for _, note in found)


def test_the_length_of_a_step_is_that_of_half_of_its_gemms() -> None:
    def graph(*rows: Any) -> torch.fx.Graph:
        made = torch.fx.Graph()
        for m in rows:
            a, b = made.placeholder("a"), made.placeholder("b")
            a.meta["val"], b.meta["val"] = torch.empty(m, 4096, device="meta"), torch.empty(4096, 4096, device="meta")
            made.call_function(torch.ops.aten.mm.default, (a, b)).meta["val"] = torch.empty(m, 4096, device="meta")
        return made

    assert not state.hides_calls(graph())
    assert not state.hides_calls(graph(64, 64, 100_000))
    assert state.hides_calls(graph(64, 4096, 4096))


def test_gemms_of_a_wider_output_and_nodes_without_a_tensor_have_a_length_too() -> None:
    """A formula that fails here would fail the user's compile."""
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    a.meta["val"] = b.meta["val"] = torch.empty(8, 4096, 4096, dtype=torch.bfloat16, device="meta")
    wider = graph.call_function(torch.ops.aten.bmm.dtype, (a, b, torch.float32))
    assert not state.hides_calls(graph), "nothing is known of its output"
    wider.meta["val"] = torch.empty(8, 4096, 4096, device="meta")
    assert state.hides_calls(graph)


def test_a_forced_config_is_not_charged() -> None:
    session = FakeSession(lambda query: replace(hit(SUMMED), rung="forced"))
    assert product(session)["note"] == "that far"


def test_times_measured_in_the_compile_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table promises 100 us for ATen, and the benchmark in this program finds 10."""
    session = FakeSession(lambda query: hit(SUMMED, 90.0, 100.0))
    from gemmdb.inductor.benchmark import confirm

    def measured(self: Any, pairs: Any) -> list[Any]:
        return [replace(one, event=replace(one.event, expected_us=9.0, speedup=10 / 9)) for _, one in pairs]

    monkeypatch.setattr(confirm.Confirmation, "decide", measured)
    found = product(session)
    assert found["config"] == ATEN.text
    assert found["note"].startswith(SLOW)


def test_deciding_late_charges_too() -> None:
    session = FakeSession(lambda query: hit(SUMMED))
    seen = []
    original = session._find

    def remembered(query: Any, mode: Any) -> Any:
        seen.append(query)
        return original(query, mode)

    session._find = remembered  # type: ignore[method-assign]
    product(session)
    decision = deciding.decide_late(session, seen[0])
    assert decision.config == ATEN
    assert decision.event.note.startswith(SLOW)
    JOURNAL.drop()
