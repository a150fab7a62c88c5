"""Data-dependent sizes: looked up by the range of their bounds, right at every size, and no guard on them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kit.data_dependent import PACK, ROWS, WIDE, Frozen, counts, linear, mask, product
from kit.sessions import FakeSession
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.hit import Hit
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Policy, Settings
from gemmdb.table.writer import Store

pytestmark = pytest.mark.usefixtures("captured")
DIVIDED_ATEN = FakeSession(lambda query: Hit("exact", ATEN, 1.0, 1.0, "", {}, ((16, ATEN), (None, ATEN))))
"""ATen up to 16 rows, and ATen beyond."""


def runs(kit: ModuleType, run: Any, model: Any, calls: Any) -> None:
    """Compare a compiled model with eager's for the arguments of each call."""
    for arguments in calls:
        kit.close(run(*arguments), model(*arguments))


def chosen(low: int | None = None, high: int | None = None) -> Any:
    """A model of the rows that a mask chooses, with what `torch._check` is told of their number."""

    def model(x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        x = x[which]
        if low is not None:
            torch._check(x.shape[0] >= low)
        if high is not None:
            torch._check(x.shape[0] <= high)
        return linear(x)

    return model


def counted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """As many rows as numbers in memory come to, and nothing says how many that may be."""
    rows = counts.sum().item()
    torch._check(rows >= 0)
    return linear(x[:1].repeat(rows, 1))


@pytest.fixture
def few(tmp_path: Path, kit: ModuleType) -> Session:
    """Answers from a table in which the weight-only kernel wins up to 16 rows, and is slower than ATen beyond."""
    problem = Problem.gemm("mixed_mm", m=1, n=96, k=64)
    with Store.open(tmp_path / "table.db") as store:
        for m in (1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256):
            store.add(kit.rows(replace(problem, m=m), {PACK: 50.0 if m <= 16 else 150.0}))
        store.refresh()
    return TableSession(Policy(near=False), [tmp_path / "table.db"])


DIVIDED = [(PACK.text, 16), (ATEN.text, None)]
BOUNDS = [
    # low and high that the program states, the range, the hint, the parts (None: one kernel), sizes to run
    (None, None, [0, 200], 16, DIVIDED, (50, 0, 1, 16, 17, 200)),
    (1, 100, [1, 100], 8, DIVIDED, (50, 1, 16, 17, 100)),
    (1, 16, [1, 16], 4, PACK, (9, 1, 16)),
    (None, 16, [0, 16], 4, PACK, (9, 0, 1, 16)),
    (32, None, [32, 200], 64, ATEN, (50, 32, 200)),
]


@pytest.mark.parametrize(("low", "high", "range_", "hint", "wanted", "sizes"), BOUNDS, ids=str)
def test_bounds_say_which_kernels_serve_a_masked_batch(kit, few, low, high, range_, hint, wanted, sizes):
    """`x[mask]` has at most as many rows as `x`, which torch knows; what the program checks narrows that."""
    model = chosen(low, high)
    with active.use(few):
        run = torch.compile(model, fullgraph=True)
        _, (code,) = run_and_get_code(run, ROWS, mask(sizes[0]))
        runs(kit, run, model, [(ROWS, mask(rows)) for rows in sizes])
    found = product()
    assert (found["ranges"], found["rung"], found["note"]) == ({"m": range_}, "exact", "")
    assert f" m={hint} " in found["problem"]
    divided = [part["config"] for part in found["evidence"].get("kernels", [])]
    if isinstance(wanted, list):
        assert divided == [config for config, _ in wanted]
        # From torch 2.15 on, the condition is a number that selects a branch.
        assert re.search(r"(if |= int\()u0 <= 16\b", code)
    else:
        assert (found["config"], divided) == (wanted.text, [])
    packed = code.count("extern_kernels._weight_int8pack_mm(")
    assert (packed, code.count("extern_kernels.mm(")) == {PACK: (1, 0), ATEN: (0, 1)}.get(
        wanted if isinstance(wanted, Config) else None, (1, 1)
    )


def test_without_a_bound_sizes_that_no_row_is_about_are_atens(kit, few):
    """The range ends where the ladder's does, and is asked about at 256 rows."""
    with active.use(few):
        run = torch.compile(counted, fullgraph=True)
        runs(kit, run, counted, [(ROWS, counts(rows)) for rows in (50, 0, 1, 16, 17, 300)])
    found = product()
    assert (found["ranges"], found["note"]) == ({"m": [0, None]}, "")
    assert " m=256 " in found["problem"]
    assert [(part["config"], part["m"][-1]) for part in found["evidence"]["kernels"]] == [
        (PACK.text, 16),
        (ATEN.text, 65536),
    ]


def test_nothing_answers_without_a_row_at_the_guess(kit, few):
    def model(x, which):
        x = x[which]
        torch._check(x.shape[0] >= 300)
        return linear(x)

    x = torch.randn(2000, 64).bfloat16()
    which = torch.arange(2000) < 700
    with active.use(few):
        runs(kit, torch.compile(model), model, [(x, which)])
    found = product()
    assert (found["rung"], found["ranges"]) == ("aten", {"m": [300, 2000]})
    assert " m=1024 " in found["problem"]
    assert "the hint has no answer" in found["note"]


def test_a_size_may_be_made_of_one_from_data_and_another(kit):
    def model(x, counts):
        times = counts.sum().item()
        torch._check(times >= 1)
        torch._check(times <= 50)
        return x.repeat(times, 1) @ WIDE

    with active.use(DIVIDED_ATEN):
        run = torch.compile(model)
        for rows, times in ((5, 3), (30, 1), (2, 50)):
            x = torch.randn(rows, 64)
            torch._dynamo.mark_dynamic(x, 0)
            kit.close(run(x, counts(times)), model(x, counts(times)))
    compiled = product()
    assert (compiled["ranges"], compiled["note"]) == ({"m": [2, None]}, "")
    assert " m=40 " in compiled["problem"]  # 5 of the input, 8 between 1 and 50


def test_the_program_may_say_what_a_size_mostly_is(kit):
    x = torch.randn(9, 64)
    torch._dynamo.decorators.mark_unbacked(x, 0, hint_override=48)
    with gemmdb.inductor.force(ATEN):
        calls = [(x,), *((torch.cat([x] * 8)[:rows],) for rows in (1, 70))]
        runs(kit, torch.compile(lambda x: x @ WIDE), lambda x: x @ WIDE, calls)
    assert " m=48 " in gemmdb.inductor.stats()["products"][0]["problem"]


def test_the_cpp_template_wants_a_row(kit):
    """It divides by their number: with none of them, the process would end."""
    model = Frozen()
    # Before torch 2.13 it wants a hint.
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
    served = {"", "the C++ template refused: TypeError"} if old else {""}
    for low, notes in ((1, served), (None, {"the C++ template divides by a size that may be zero"})):

        def forward(x, which, low=low):
            x = x[which]
            if low is not None:
                torch._check(x.shape[0] >= low)
            return torch.nn.functional.linear(x, model.w.to(x.dtype))

        model.forward = forward
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with torch.no_grad(), inductor_config.patch(freezing=True), gemmdb.inductor.force(kit.CPP):
            rows = (50, 1, 200, *([] if low else [0]))
            runs(kit, torch.compile(model), forward, [(ROWS, mask(count)) for count in rows])
        note = product()["note"]
        assert note in notes
        assert kit.lowered() == [ATEN if note else kit.CPP]


def test_columns_of_a_weight_may_come_out_of_data(kit):
    weight = torch.randint(-128, 128, (200, 64), dtype=torch.int8)

    def model(x, which):
        return torch.nn.functional.linear(x, weight[which].to(x.dtype))

    with torch.no_grad(), gemmdb.inductor.force(PACK):
        runs(kit, torch.compile(model), model, [(ROWS[:8], mask(columns)) for columns in (50, 0, 1, 200)])
    assert (product()["ranges"], kit.lowered()) == ({"n": [0, 200]}, [PACK])


@pytest.mark.slow
def test_a_package_of_aotinductor_chooses_by_what_comes_out_of_data(kit, few, tmp_path):
    net = Frozen().eval()
    with torch.no_grad(), active.use(few):
        exported = torch.export.export(net, (ROWS, mask(50)))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "net.pt2"))
    (found,) = gemmdb.inductor.stats()["products"]
    assert found["ranges"] == {"m": [0, 200]}
    inputs = [(ROWS, mask(rows)) for rows in (0, 1, 16, 17, 200)]
    for arguments, y in zip(inputs, kit.unpacked(package, *inputs), strict=True):
        kit.close(y, net(*arguments))


def test_rows_whose_length_comes_out_of_data_are_left_alone(kit):
    """How they are aligned would be a guess."""

    def model(x, which):
        return x[:, which] @ torch.ones(200, 8)[which]

    with gemmdb.inductor.force(ATEN):
        runs(kit, torch.compile(model), model, [(ROWS.t().float(), mask(columns)) for columns in (50, 0, 7)])
    reason = "aten.mm.default: rows of data-dependent length may not be 16-byte aligned"
    assert gemmdb.inductor.stats()["uncovered"] == {reason: 1}


def test_an_operand_that_begins_where_data_say_is_shared_by_several_kernels(kit):
    def model(x, counts):
        first = counts.sum().item()
        torch._check(first >= 0)
        torch._check(first <= x.shape[0])
        return x[first:] @ WIDE

    with active.use(DIVIDED_ATEN):
        runs(kit, torch.compile(model), model, [(ROWS.float(), counts(first)) for first in (0, 1, 199, 200)])
    assert (product()["note"], product()["ranges"]) == ("", {"m": [0, 200]})


def test_a_guess_is_not_timed(kit):
    """Inductor would time it at a guess of its own, and the rows would be kept under ours."""
    gemmdb.inductor.enable(policy=Policy(on_miss="live", live_s=120.0))
    model = Frozen()
    with torch.no_grad(), inductor_config.patch(freezing=True, autotune_local_cache=False):
        kit.close(torch.compile(model)(ROWS, mask(200)), linear(ROWS))
    found = product()
    assert (found["rung"], found["config"]) == ("aten", ATEN.text)
    assert found["note"].startswith("not tuned: its sizes are data-dependent; ")
    assert not Settings.read().user_table.exists()


def test_nothing_is_fused_into_an_output_whose_size_comes_out_of_data(kit):
    """Inductor does not, so the unfused GEMM is the evidence; a sum over such a size is fused as any other."""
    for model, wanted in (
        (lambda x, which: torch.relu(x[which] @ WIDE), "none"),
        (lambda x, which: torch.relu(x[which].t() @ x[which]), "pointwise"),
    ):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with gemmdb.inductor.force(ATEN):
            runs(kit, torch.compile(model), model, [(ROWS.float(), mask(50))])
        assert f" fusion={wanted} " in product()["problem"]
