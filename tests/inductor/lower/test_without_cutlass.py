"""A CUTLASS kernel that cannot be had for its operands: the next best answer takes its place, without nvcc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.for_a_gpu import CUTLASS, TILE, ints
from kit.sessions import FakeSession

import gemmdb.inductor
from gemmdb import Config, Policy, Problem
from gemmdb.hit import Hit
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.lower import cutlass
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store


def served(config: Config | None) -> Any:
    """Answers every query with `config`."""
    return lambda query: config and Hit("exact", config, 10.0, 1.2, "table.db", {})


@pytest.mark.parametrize(
    ("next_best", "template", "rung"), [(TILE, ["tile"], "exact"), (ATEN, [], "exact"), (None, [], "aten")]
)
def test_the_next_best_answer_is_lowered(
    monkeypatch: pytest.MonkeyPatch, reached: list[str], next_best: Config | None, template: list[str], rung: str
) -> None:
    monkeypatch.setattr(cutlass, "_compile_rejection", lambda *_: Rejected("no compiled kernel"))
    of = FakeSession(served(CUTLASS), Policy(), None, without_cutlass=served(next_best))
    x, w = ints(64, 512), ints(256, 512).t()
    gemmdb.inductor.reset_stats()
    enable.install()
    with active.use(of):
        found = torch.compile(lambda x, w: torch._int_mm(x, w), dynamic=False)(x, w)
    assert torch.equal(found, torch._int_mm(x, w))
    assert reached == template, gemmdb.inductor.stats()["products"][0]["note"]
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["rung"], product["config"]) == (rung, ATEN.text), "a GPU would have to run the kernel"
    assert ("no compiled kernel" in product["note"]) is (next_best is None)


def test_the_next_best_answer_of_a_table_is_no_cutlass_kernel(tmp_path: Path) -> None:
    problem, protocol = Problem.gemm("mm", m=256, n=512, k=512), Protocol("graph", "cold", 10, 25)
    running = Toolchain(torch="2.11.0", triton="3.6.0", cuda="13.0")
    us = {ATEN: 100.0, CUTLASS: 50.0, TILE: 70.0}
    with Store.open(tmp_path / "table.db") as store:
        store.add(
            Measurement(problem, config, H200, protocol, running, "run", Status.OK, Times(one, one, one, 25, 100.0))
            for config, one in us.items()
        )
        store.refresh()
    of = TableSession(Policy(compile_cost=10), [tmp_path / "table.db"])
    query = Query(problem, H200, {})
    answers = [of.find(query), of.find(query, Mode.WITHOUT_CUTLASS)]
    assert [hit and hit.config for hit in answers] == [CUTLASS, TILE]
    denied = TableSession(replace(of.policy, deny="triton"), [tmp_path / "table.db"])
    hit = denied.find(query, Mode.WITHOUT_CUTLASS)
    assert hit is not None
    assert hit.config == ATEN
