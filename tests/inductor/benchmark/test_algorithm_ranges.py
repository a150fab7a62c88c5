"""Which sizes of a symbolic M are timed with cuBLASLt's algorithms, and what serves the range then. There is no GPU
here: times are invented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from kit.algorithms import FIRST, POLICY, TILE
from kit.horizontal import decided
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import algorithm_ranges, limits
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.settings import Settings

pytestmark = pytest.mark.usefixtures("alone")


def linear(x: Any, w: Any) -> Any:
    return torch.relu(x @ w.t())


def doubled(x: Any, w: Any) -> Any:
    return torch.cat((x, x)) @ w.t()


def graph_of(function: Callable[..., Any] = linear, n: int = 8192, k: int = 4096) -> torch.fx.GraphModule:
    """The graph of function(x [m, k], w [n, k]) for 2 to 4,096 rows, compiled with 512."""
    env = ShapeEnv()
    symbol = env.create_symbol(512, source=ConstantSource("rows"))
    env.constrain_symbol_range(symbol, 2, 4096)
    rows = env.create_symintnode(symbol, hint=512)
    with FakeTensorMode(shape_env=env):
        x, w = torch.empty(rows, k, dtype=torch.bfloat16), torch.empty(n, k, dtype=torch.bfloat16)
        return make_fx(function)(x, w)


def session() -> TableSession:
    return TableSession(replace(POLICY, model=False).resolved(Settings.read()), settings=Settings.read())


def of(function: Callable[..., Any] = linear, hit: Hit | None = None, **sizes: int) -> tuple[Any, Decision]:
    """The GEMM of a graph, with its decision: by the user's table, or by a `hit`."""
    ((node, found),) = decided(graph_of(function, **sizes))
    decision = deciding.decide(session(), found.query)
    if hit is not None:
        decision = replace(decision, config=hit.config, branches=hit.branches, event=decision.event.answered(hit))
    return node, decision


def after(pair: tuple[Any, Decision]) -> Decision:
    ((_, found),) = algorithm_ranges.divided([pair])
    assert JOURNAL.errors == []
    return found


def at(decision: Decision) -> dict[int, Config]:
    """What serves each size that was timed."""
    return {m: config for part in decision.event.evidence["kernels"]
            for m in part["m"] for config in (Config.parse(part["config"]),)}  # fmt: skip


def rows(clock: Any) -> list[int]:
    return [one.problem.m for one in clock.seen]


def test_long_gemms_of_large_sizes_are_timed_and_served(clock: Any) -> None:
    node, decision = of()
    assert decision.config == ATEN
    found = after((node, decision))
    assert rows(clock) == [512, 4096, 3072, 2048, 1536, 1024, 768]
    assert {config for m, config in at(found).items() if m >= 512} == {FIRST}
    assert (found.config, found.entry, found.query) == (FIRST, decision.entry, decision.query)
    assert all(fake.shape[-1] in (4096, 8192) for one in clock.seen for fake in one.fakes)


def test_a_size_that_was_not_timed_gets_an_algorithm_only_if_that_is_confirmed(clock: Any) -> None:
    found = after(of())
    guessed = {one["m"] for one in found.event.evidence["unmeasured"]}
    assert {m for m, config in at(found).items() if config != ATEN} == {*rows(clock), *guessed}
    assert not guessed & {*rows(clock)}


def test_a_short_gemm_is_timed_at_the_hint_alone(clock: Any) -> None:
    after(of(n=2048, k=2048))
    assert rows(clock) == [512]


def test_the_next_process_times_nothing(clock: Any) -> None:
    first = after(of())
    clock.seen.clear()
    second = after(of())
    assert (rows(clock), second.branches) == ([], first.branches)


def test_where_aten_is_fastest_it_stays_and_is_not_timed_again(clock: Any) -> None:
    clock.us = {ATEN: 100.0, FIRST: 101.0}
    assert after(of()).config == ATEN
    clock.seen.clear()
    assert after(of()).config == ATEN
    assert rows(clock) == []


@pytest.mark.parametrize(("speedup", "stored"), [(1.05, True), (2.0, False)])
def test_a_guess_stays_where_it_may_save_more(clock: Any, speedup: float, stored: bool) -> None:
    guess = {"m": 512, "config": TILE.text, "us": 100.0 / speedup, "speedup": speedup}
    size = {"m": 512, "rung": "near", "expected_us": 100.0 / speedup, "speedup": speedup}
    kernels = [{"m": [512], "config": TILE.text}]
    hit = Hit("near", TILE, 50.0, 2.0, "", {"unmeasured": [guess], "sizes": [size], "kernels": kernels})
    found = after(of(hit=hit))
    assert rows(clock) == [512]
    assert at(found)[512] == (FIRST if stored else TILE)


def test_rows_that_are_no_size_of_an_input_are_left_alone(clock: Any) -> None:
    node, decision = of(doubled)
    assert after((node, decision)) is decision
    assert rows(clock) == []


def test_a_failure_leaves_the_decision(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm_ranges, "_run", lambda *_: 1 / 0)
    pair = of()
    assert list(algorithm_ranges.divided([pair])) == [pair]
    assert "division by zero" in str(JOURNAL.errors)


def test_equal_gemms_are_timed_once_and_count_together(clock: Any) -> None:
    (node, first), (_, second) = of(n=2048, k=4096), of(n=2048, k=4096)
    both = [one for _, one in algorithm_ranges.divided([(node, first), (node, second)])]
    alone = len(rows(clock))
    assert len(set(rows(clock))) == alone > 1
    assert both[0].branches == both[1].branches
    assert [one.entry for one in both] == [first.entry, second.entry]


def test_a_forced_config_is_not_searched(clock: Any) -> None:
    node, decision = of()
    forced = replace(decision, event=replace(decision.event, rung="forced"))
    assert after((node, forced)) is forced
    assert rows(clock) == []


def test_without_a_table_to_store_them_nothing_is_timed(clock: Any) -> None:
    node, decision = of()
    apart = replace(decision, session=decision.session.variant(user_table=None))
    assert after((node, apart)) is apart
    assert rows(clock) == []


def test_what_could_not_be_stored_is_not_timed_again_in_this_process(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm_ranges, "store", lambda *_: None)
    for _ in range(3):
        after(of())
    assert len(rows(clock)) == len(set(rows(clock)))


def test_the_budget_of_one_confirmation_is_left(clock: Any) -> None:
    BUDGET.spend(limits.allowed_s(POLICY) - POLICY.confirm_s + 0.5)
    after(of())
    assert rows(clock) == []
