"""Enabling gemmdb, the backend, and what a user may pass to them."""

import inspect
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

import gemmdb.inductor
from gemmdb import InputError, Problem
from gemmdb.inductor.entry import backend
from gemmdb.workload import entries


@pytest.fixture
def linear():
    return nn.Linear(64, 32).eval(), torch.randn(8, 64)


def key(constant=1):
    return replace(Problem.gemm("addmm", m=8, n=32, k=64, dtype="fp32"), constant=bool(constant)).text


def test_enable_serves_an_exact_hit_from_a_table_and_benchmarks_nothing(kit, table, linear):
    model, x = linear
    gemmdb.inductor.enable(tables=[table({key(): kit.CPP})], on_miss="error")
    stats = kit.checked(model, x, freezing=True, max_autotune=True)
    product = kit.only(stats)
    assert (product["rung"], product["kernel"], product["note"]) == ("exact", "packed_gemm", "")
    assert product["expected_us"] == pytest.approx(50)
    assert product["speedup_vs_aten"] == pytest.approx(2)
    assert (stats["hits"], stats["misses"], stats["benchmarked"]) == (1, 0, 0)


def test_disable_gives_inductor_back(kit, table, linear):
    model, x = linear
    gemmdb.inductor.enable(tables=[table({key(): kit.CPP})])
    gemmdb.inductor.enable(tables=[table({key(): kit.CPP})])
    gemmdb.inductor.disable()
    assert kit.checked(model, x, freezing=True)["products"] == []


def test_the_backend_looks_each_gemm_up_once_where_gemmdb_is_enabled_too(kit, table, linear, monkeypatch):
    model, x = linear
    monkeypatch.setenv("GEMMDB_TABLES", str(table({key(): kit.CPP})))
    gemmdb.inductor.enable()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        kit.close(kit.compiled(model, x, backend="gemmdb"), model(x))
    assert kit.lowered() == [kit.CPP]
    assert len(kit.problems()) == 1


def test_the_backend_needs_no_enable_and_serves_its_hits_while_it_is_recorded(
    kit, table, linear, tmp_path, monkeypatch
):
    model, x = linear
    monkeypatch.setenv("GEMMDB_TABLES", str(table({key(): kit.CPP})))
    with gemmdb.inductor.record(tmp_path / "w.jsonl"), torch.no_grad(), inductor_config.patch(freezing=True):
        kit.close(kit.compiled(model, x, backend="gemmdb"), model(x))
    assert kit.lowered() == [kit.CPP]
    assert [entry.problem.text for entry in entries.read(tmp_path / "w.jsonl").entries] == [key()]


def test_options_and_mode_of_the_backend(kit, table, linear):
    model, x = linear
    path = table({key(constant=0): kit.ATEN})
    options = {"gemmdb.tables": [str(path)], "gemmdb.on_miss": "error", "max_autotune": True}
    kit.close(kit.compiled(model, x, backend="gemmdb", options=options), model(x))
    assert gemmdb.inductor.stats()["rungs"] == {"exact": 1}
    assert gemmdb.inductor.stats()["benchmarked"] == 0
    mode = {"backend": "gemmdb", "mode": "max-autotune-no-cudagraphs"}
    kit.close(kit.compiled(model, x, **mode), model(x))
    with pytest.raises(Exception, match=r"gemmdb\.tabels") as caught:
        kit.compiled(model, x, backend="gemmdb", options={"gemmdb.tabels": []})
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), InputError)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"gemmdb.on_mis": "aten"}}, "unknown option 'gemmdb.on_mis'; .*did you mean 'gemmdb.on_miss'"),
        (
            {"options": {"gemmdb.min_gain": 0.05}},
            r"unknown option 'gemmdb.min_gain'; .* \"gemmdb.policy\": gemmdb.Policy\(min_gain=0.05\)$",
        ),
        ({"options": {"gemmdb.deny": "cpp"}}, r"gemmdb.Policy\(deny='cpp'\)$"),
        ({"options": {"gemdb.tables": []}}, "unknown option 'gemdb.tables' of Inductor; did you mean 'gemmdb.tables'"),
        ({"options": {"max_autotone": True}}, "unknown option 'max_autotone' .*; did you mean 'max_autotune'"),
        ({"options": {"triton.cudagraph": True}}, "; did you mean 'triton.cudagraphs'"),
        ({"options": {"max_autotune": "yes"}}, "'max_autotune' of Inductor must be of type bool, got 'yes'"),
        ({"options": {"gemmdb.on_miss": "eror"}}, "on_miss='eror'; .*did you mean 'error'"),
        ({"mode": "max-autotine"}, "unknown mode 'max-autotine'; .*did you mean 'max-autotune'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_option_fails_before_the_compile_by_name_with_the_nearest_right_one(linear, given, said):
    model, x = linear
    with pytest.raises(InputError, match=said):
        backend.gemmdb(model, [x], **given)


def test_options_may_be_spelt_with_hyphens_as_torch_allows(kit, table, linear):
    model, x = linear
    options = {"gemmdb.tables": [str(table({key(constant=0): kit.ATEN}))], "max-autotune": False}
    kit.close(kit.compiled(model, x, backend="gemmdb", options=options), model(x))


def test_a_digest_file_that_is_missing_is_an_error_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMDB_TRUST", str(tmp_path / "trusted"))
    with pytest.raises(InputError, match=r"GEMMDB_TRUST=.*trusted: it cannot be read"):
        gemmdb.inductor.enable()


def test_a_table_written_later_is_seen_by_the_backend(kit, table, linear):
    model, x = linear
    path = table({key(constant=0): kit.ATEN})
    options = {"gemmdb.tables": [str(path)]}
    with torch.no_grad(), inductor_config.patch(freezing=True):
        kit.compiled(model, x, backend="gemmdb", options=options)
        assert gemmdb.inductor.stats()["misses"] == 1
        table({key(): kit.CPP})
        kit.compiled(model, x, backend="gemmdb", options=options)
    assert gemmdb.inductor.stats()["hits"] == 1


def test_the_entry_point_is_known_to_dynamo():
    assert "gemmdb" in torch._dynamo.list_backends(exclude_tags=())


def test_tables_are_read_from_the_thread_that_compiles_the_backward(kit, table):
    backward = Problem.gemm("mm", m=64, n=32, k=8, dtype="fp32", layout="tn").text
    gemmdb.inductor.enable(tables=[table({backward: kit.ATEN})])
    x, w = torch.randn(8, 64), torch.randn(64, 32, requires_grad=True)
    loss = kit.compiled(lambda x, w: (x @ w).square().sum(), x, w)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(loss.backward).result()
    stats = gemmdb.inductor.stats()
    assert stats["errors"] == []
    assert backward in kit.problems(stats)
    assert [entry["rung"] for entry in stats["products"] if entry["problem"] == backward] == ["exact"]
    kit.close(w.grad, torch.autograd.grad((x @ w).square().sum(), w)[0])


def test_a_miss_says_why_and_a_symbolic_size_is_in_the_journal(kit, table):
    gemmdb.inductor.enable(tables=[table({key(): kit.CPP})])
    kit.compiled(torch.matmul, torch.randn(8, 64), torch.randn(64, 32), dynamic=True)
    product = kit.only()
    assert product["rung"] == "aten"
    assert product["note"].startswith(
        "ATen is the only kernel for it: gemmdb's CPU kernels pack a constant weight, and both operands of this GEMM"
    )
    assert "; exact: no verdict for this problem on " in product["note"]
    assert product["ranges"]["m"] == [2, None]


def test_one_table_may_be_named_alone(kit, table, linear, caplog):
    """As a Path and as a string."""
    model, x = linear
    path = table({key(constant=0): kit.ATEN})
    gemmdb.inductor.enable(tables=path)
    with torch.no_grad():
        kit.compiled(model, x)
        gemmdb.inductor.disable()
        kit.compiled(model, x, backend="gemmdb", options={"gemmdb.tables": str(path)})
    assert gemmdb.inductor.stats()["rungs"] == {"exact": 2}
    assert not [record for record in caplog.records if record.name == "gemmdb" and record.levelno >= logging.WARNING]


def test_a_table_that_is_missing_is_said_at_once_and_once(kit, linear, tmp_path, caplog, monkeypatch):
    """Whether an argument or the environment names it."""
    model, x = linear
    monkeypatch.setenv("GEMMDB_TABLES", str(tmp_path / "first.db"))
    gemmdb.inductor.enable(tables=[tmp_path / "second.db"])

    def warnings():
        return [record.getMessage() for record in caplog.records if str(tmp_path) in record.getMessage()]

    texts = warnings()
    assert all(
        sum(f"{tmp_path / name} does not exist" in text for text in texts) == 1 for name in ("first.db", "second.db")
    )
    kit.checked(model, x)
    assert warnings() == texts


def test_the_users_own_table_may_be_missing(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "own.db"))
    gemmdb.inductor.enable(tables=[tmp_path / "own.db"])
    assert "own.db" not in caplog.text


@pytest.mark.parametrize("given", [{"policy": 3}, {"tables": [None]}, {"tables": 3}, {"on_miss": 3}], ids=str)
def test_what_is_no_setting_is_bad_input(linear, given):
    model, x = linear
    ((name, value),) = given.items()
    with pytest.raises(InputError, match=name):
        gemmdb.inductor.enable(**given)
    with pytest.raises(InputError, match=name):
        backend.gemmdb(model, [x], options={f"gemmdb.{name}": value})


def test_the_entry_point_takes_the_names_that_torch_takes(kit, table, linear):
    import torch._inductor.compile_fx as inductor

    gemmdb.inductor.enable(tables=[table({key(constant=0): kit.ATEN})])
    names = [*inspect.signature(inductor.compile_fx).parameters]
    seen = []

    def by_keyword(model, inputs):
        seen.append(True)
        return inductor.compile_fx(**{names[0]: model, names[1]: inputs, "config_patches": {"max_autotune": False}})

    def by_position(model, inputs):
        seen.append(True)
        return inductor.compile_fx(model, inputs, inductor.compile_fx_inner, {"max_autotune": False})

    model, x = linear
    for through in (by_keyword, by_position):
        gemmdb.inductor.reset_stats()
        with torch.no_grad():
            kit.close(kit.compiled(model, x, backend=through), model(x))
        assert gemmdb.inductor.stats()["rungs"] == {"exact": 1}
    assert seen == [True, True]
