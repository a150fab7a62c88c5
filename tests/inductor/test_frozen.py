"""Frozen compiles: nothing is timed or written, and the code depends on the tables alone."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import InputError, Policy, Problem
from gemmdb.inductor.benchmark import algorithms, client, confirm, horizontal, inductor_search, limits, payoff, tune
from gemmdb.inductor.decide import uncompiled
from gemmdb.inductor.lower import padding
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import Config
from gemmdb.settings import Settings, data_home
from gemmdb.table.writer import Store

TIMING = (
    (algorithms.Search, "run"), (algorithms.Search, "settle"), (confirm.Confirmation, "begin"), (confirm, "store"),
    (horizontal.Fusion, "begin"), (tune, "_tuned"), (client, "tune"), (client, "start"), (payoff, "load_rejection"),
    (inductor_search, "search"), (limits.Budget, "spend"), (limits.TrialLimit, "__init__"),
)  # fmt: skip
"""What times, writes, or decides by a clock or the machine's load."""


def key(n: int = 32, constant: int = 1) -> str:
    return replace(Problem.gemm("addmm", m=8, n=n, k=64, dtype="fp32"), constant=bool(constant)).text


@pytest.fixture
def nothing_times(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a frozen compile times nothing")

    for owner, name in TIMING:
        monkeypatch.setattr(owner, name, fail)


@pytest.fixture
def two():
    """One GEMM that the table answers, and one that it does not."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).eval(), torch.randn(8, 64)


@pytest.mark.parametrize("on_miss", ["live", "aten"])
def test_nothing_is_timed_or_written_even_if_the_program_asks_for_it(
    kit, table, two, nothing_times, on_miss, monkeypatch
):
    """A search of Inductor's own would decide by times, too."""
    monkeypatch.setenv("GEMMDB_FROZEN", "1")
    policy = Policy(confirm=True, live_s=300.0, confirm_s=60.0)
    gemmdb.inductor.enable(on_miss=on_miss, tables=[table({key(): kit.CPP})], policy=policy)
    stats = kit.checked(*two, freezing=True, max_autotune=True, autotune_local_cache=False)
    assert {entry["config"] for entry in stats["products"]} == {kit.CPP.text, kit.ATEN.text}
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    assert not data_home().exists()


def test_a_search_that_the_program_asks_for_does_time_without_the_switch(kit, two):
    gemmdb.inductor.enable(on_miss="aten")
    options = {"freezing": True, "max_autotune": True, "autotune_local_cache": False}
    assert kit.checked(*two, **options)["benchmarked"] > 0


@pytest.mark.parametrize("way", ["argument", "policy", "option"])
def test_each_way_to_freeze_says_that_it_is_in_force(kit, table, two, way, nothing_times):
    path = table({key(): kit.CPP})
    options = {}
    if way == "option":
        options = {"backend": "gemmdb", "options": {"gemmdb.frozen": True, "gemmdb.tables": [str(path)]}}
    elif way == "policy":
        gemmdb.inductor.enable(tables=[path], policy=Policy(frozen=True))
    else:
        gemmdb.inductor.enable(tables=[path], frozen=True)
    model, x = two
    with torch.no_grad():
        kit.close(kit.compiled(model, x, **options), model(x))
    frozen = gemmdb.inductor.stats()["frozen"]
    assert (frozen["pins"], frozen["tables"][0]["path"]) == (None, str(path))
    assert len(frozen["identity"]) == 16


def test_without_the_switch_nothing_says_so(kit, table, two):
    gemmdb.inductor.enable(on_miss="aten", tables=[table({key(): kit.CPP})])
    assert kit.checked(*two)["frozen"] is None
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(frozen=True)
    assert kit.checked(*two)["frozen"] is not None
    gemmdb.inductor.reset_stats()
    assert gemmdb.inductor.stats()["frozen"] is None


def test_the_users_table_is_not_read(kit, table, two):
    user = Settings.read().user_table
    user.parent.mkdir(parents=True)
    table({key(): kit.CPP}).rename(user)
    gemmdb.inductor.enable(frozen=True)
    assert {entry["config"] for entry in kit.checked(*two, freezing=True)["products"]} == {kit.ATEN.text}
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(frozen=True, tables=[user])
    assert kit.CPP.text in {entry["config"] for entry in kit.checked(*two, freezing=True)["products"]}


@pytest.fixture
def pins(kit, table, tmp_path):
    path = table({key(): kit.CPP}, "frozen.db")
    listed = tmp_path / "frozen.sha256"
    listed.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return listed


def test_a_pinned_table_is_served(kit, pins, two, nothing_times):
    gemmdb.inductor.enable(frozen=pins)
    stats = kit.checked(*two, freezing=True)
    assert kit.CPP.text in {entry["config"] for entry in stats["products"]}
    assert stats["frozen"]["pins"] == str(pins)
    assert [Path(one["path"]).name for one in stats["frozen"]["tables"]] == ["frozen.db"]


def test_a_changed_table_gives_one_warning_and_aten(kit, pins, two, nothing_times, caplog):
    path = pins.with_name("frozen.db")
    path.write_bytes(path.read_bytes() + bytes(4096))
    gemmdb.inductor.enable(frozen=pins)
    for _ in range(2):
        stats = kit.checked(*two, freezing=True)
    assert {entry["config"] for entry in stats["products"]} == {kit.ATEN.text}
    assert stats["frozen"]["tables"] == []
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert f"{path} is not the table that {pins} lists" in said[0]
    assert "run `gemmdb freeze` again" in said[0]


@pytest.mark.parametrize(("given", "said"), [
    ("", "frozen: True, False or the file"), (3, "frozen: True, False or the file"),
    ("/nowhere/frozen.sha256", "GEMMDB_FROZEN=/nowhere/frozen.sha256: it cannot be read"),
])  # fmt: skip
def test_a_wrong_argument_is_an_error(given, said):
    with pytest.raises(InputError, match=said):
        gemmdb.inductor.enable(frozen=given)


def test_padding_is_not_timed(monkeypatch):
    """Inductor's padding pass decides by a benchmark where gemmdb has no answer."""
    session = gemmdb.inductor.decide.session.Session(Policy(frozen=True))
    assert padding.answered(session, None)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_kernel_that_fails_in_one_graph_is_not_remembered_for_the_next(kit, frozen):
    """What a graph gets must not depend on those before it."""

    def broken():
        JOURNAL.enter(Event(key(), "exact", kit.CPP.text))
        raise RuntimeError("the compiler is unhappy")

    try:
        assert uncompiled.attempt(broken, lambda: "ATen", lambda: frozen) == "ATen"
        assert (uncompiled.rejection(kit.CPP, Problem.parse(key())) is None) is frozen
    finally:
        uncompiled.clear()
        JOURNAL.drop()


def test_a_frozen_compile_takes_what_another_graph_failed_to_compile(kit, table, two):
    """It would otherwise depend on the compiles before it, frozen or not."""
    gemmdb.inductor.enable(on_miss="aten", tables=[path := table({key(): kit.CPP})])
    (failed,) = (
        one["problem"] for one in kit.checked(*two, freezing=True)["products"] if one["config"] == kit.CPP.text
    )
    gemmdb.inductor.reset_stats()
    try:
        uncompiled.remember(failed, kit.CPP.text, "no memory")
        assert {one["config"] for one in kit.checked(*two, freezing=True)["products"]} == {kit.ATEN.text}
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(frozen=True, tables=[path])
        assert kit.CPP.text in {one["config"] for one in kit.checked(*two, freezing=True)["products"]}
        assert not JOURNAL.provisional, "the graph is the same in every process, so it is cached"
    finally:
        uncompiled.clear()


def test_a_kernel_wins_a_part_of_a_symbolic_range(kit, tmp_path, nothing_times):
    """Without a confirmation or a search: the rows alone divide the range."""
    pack, problem = Config.of("aten", "int8pack_mm"), Problem.gemm("mixed_mm", m=32, n=96, k=64, fusion="scale")
    path = tmp_path / "table.db"
    with Store.open(path) as store:
        for m in (2, 4, 8, 16, 32, 64, 128, 256):
            store.add(kit.rows(replace(problem, m=m), {pack: 50.0 if m <= 64 else 150.0}))
        store.refresh()
    weight, scale = torch.randint(-9, 9, (96, 64), dtype=torch.int8), torch.rand(96).bfloat16()

    def model(x, weight, scale):
        return nn.functional.linear(x, weight.to(x.dtype)) * scale

    def inputs(rows):
        x = torch.randn(rows, 64).bfloat16()
        torch._dynamo.mark_dynamic(x, 0)
        return x, weight, scale

    gemmdb.inductor.enable(tables=[path], policy=Policy(near=False, frozen=True))
    run, codes = torch.compile(model), []
    for rows in (32, 64, 65, 300):
        x, *rest = inputs(rows)
        kit.close(run(x, *rest), model(x, *rest))
    for _ in range(2):
        torch._dynamo.reset()
        codes.append(run_and_get_code(torch.compile(model), *inputs(32))[1])
    assert len({re.sub("# AOT ID.*", "", one[0]) for one in codes}) == 1
    (product,) = gemmdb.inductor.stats()["products"]
    kernels = [(one["config"], one["m"][-1]) for one in product["evidence"]["kernels"]]
    assert (kernels[0], kernels[1][0]) == ((pack.text, 64), kit.ATEN.text)
    assert "<= 64" in codes[0][0]


PROGRAM = """
    import hashlib, re
    import torch
    from torch import nn
    from torch._inductor.utils import run_and_get_code
    import gemmdb.inductor
    from gemmdb.settings import data_home

    def programs():
        yield "two", nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16)), (8, 64), False
        yield "symbolic", nn.Sequential(nn.Linear(64, 32), nn.ReLU()), (8, 64), True
        yield "one", nn.Linear(32, 48), (4, 32), False

    torch.manual_seed(0)
    torch.set_num_threads(2)
    made = list(programs())
    codes = {}
    with torch.no_grad(), torch._inductor.config.patch(freezing=True, fx_graph_cache=False):
        for name, model, shape, dynamic in made[::int(sys.argv[1])]:
            torch._dynamo.reset()
            x = torch.randn(*shape)
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
            _, code = run_and_get_code(torch.compile(model.eval()), x)
            # Inductor's comments and messages count the graphs of the process, and contain addresses.
            text = re.sub(r"^# AOT ID.*$|  # device.*$| at 0x[0-9a-f]+", "", "".join(code), flags=re.MULTILINE)
            codes[name] = hashlib.sha256(text.encode()).hexdigest()
    stats = gemmdb.inductor.stats()
    print(json.dumps({
        "codes": codes, "errors": stats["errors"], "benchmarked": stats["benchmarked"], "frozen": stats["frozen"],
        "configs": sorted({one["config"] for one in stats["products"]}), "home": data_home().exists(),
    }))
"""


@pytest.mark.slow
def test_fresh_processes_and_another_order_give_the_same_code(kit, table, tmp_path):
    path = table({key(): kit.CPP, **{key(n=32, constant=1).replace("m=8", f"m={m}"): kit.CPP for m in (2, 4, 16)}})
    enable = f"    import gemmdb.inductor; gemmdb.inductor.enable(frozen=True, tables={str(path)!r})\n"
    runs = (("1", "1"), ("2", "-1"))  # The seed of sets and dicts, and the order.
    replies = [
        kit.run(f"\n{enable}{PROGRAM}", {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "2"}, [order])
        for seed, order in runs
    ]
    assert replies[0]["codes"] == replies[1]["codes"]
    assert len(set(replies[0]["codes"].values())) == 3
    for reply in replies:
        assert (reply["errors"], reply["benchmarked"], reply["home"]) == ([], 0, False)
        assert reply["frozen"] == replies[0]["frozen"]
        assert kit.CPP.text in reply["configs"]
