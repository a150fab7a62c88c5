"""What must never fail a compile, and what must."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.sessions import FakeSession
from torch import nn

import gemmdb.inductor
from gemmdb import MissError, Policy, Problem, Query, TableError
from gemmdb.devices import detect
from gemmdb.files import append_lines
from gemmdb.inductor import force
from gemmdb.inductor.decide.deciding import decide
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import active, enable

X, W = torch.randn(8, 64), torch.randn(64, 32)


def using(find, on_miss="aten"):
    enable.install()
    return active.use(FakeSession(find, Policy(on_miss=on_miss), None))


def raising(error):
    def find(query):
        raise error

    return find


def test_a_crash_in_the_lookup_never_fails_the_compile(kit):
    with using(raising(RuntimeError("boom"))):
        stats = kit.checked(torch.matmul, X, W)
    assert "boom" in stats["errors"][0]
    assert stats["rungs"] == {"aten": 1}


def test_a_crash_in_the_extraction_never_fails_the_compile(kit, monkeypatch):
    from gemmdb.inductor.match import extract

    def broken(*_):
        raise ZeroDivisionError("extraction")

    monkeypatch.setattr(extract, "tensor", broken)
    assert "extraction" in kit.forced(kit.CPP, torch.matmul, X, W)["errors"][0]


def test_strict_mode_names_the_problem(kit):
    """The weight is a constant, for which a CPU has more kernels than ATen's."""
    model = nn.Linear(64, 32, bias=False).eval()
    with using(lambda query: None, "error"), pytest.raises(Exception, match=r"mm m=8 n=32 k=64") as caught:
        kit.checked(model, X, freezing=True)
    assert root(caught.value, MissError)


@pytest.mark.parametrize("on_miss", ["error", "live"])
def test_what_only_aten_can_serve_needs_no_row(kit, on_miss):
    """No build measures it, unless it is told to measure all."""
    with using(lambda query: None, on_miss):
        entry = kit.only(kit.checked(nn.Linear(64, 32, bias=False), X))
    assert (entry["rung"], entry["config"]) == ("aten", "aten:default")
    assert entry["note"].startswith("ATen is the only kernel for it: gemmdb's CPU kernels need constant weights")
    summary = gemmdb.inductor.summary()
    assert summary.line == "graph with 1 GEMM: 1 ATen (refused)"
    assert "to build" not in str(summary)
    (alone,) = summary.alone
    assert alone.why.endswith("in inference, set torch._inductor.config.freezing = True")
    assert f"ATen (refused: {alone.why})\n  1 x mm m=8 n=32 k=64 fp32" in str(summary)
    assert (entry["outcome"], entry["why"]) == ("ATen (refused)", alone.why)
    assert "  ATen (refused)  " in str(gemmdb.inductor.report())


def test_strict_mode_fails_on_a_broken_table(kit):
    with using(raising(TableError("damaged")), "error"), pytest.raises(Exception, match="damaged") as caught:
        kit.compiled(torch.matmul, X, W)
    assert root(caught.value, TableError)


def test_strict_mode_is_content_with_hits(kit):
    with using(ForcedSession(kit.ATEN).find, "error"):
        assert kit.checked(torch.matmul, X, W)["rungs"] == {"forced": 1}


def root(error, kind):
    """Whether `error` or what it wraps is of `kind`."""
    while error is not None:
        if isinstance(error, kind) or isinstance(getattr(error, "inner_exception", None), kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def test_a_corrupted_table_is_left_out(kit, tmp_path):
    pytest.importorskip("gemmdb.table.catalog")
    path = tmp_path / "broken.db"
    path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 20)
    gemmdb.inductor.enable(tables=[path])
    assert kit.checked(torch.matmul, X, W)["rungs"] == {"aten": 1}
    gemmdb.inductor.enable(on_miss="error", tables=[path])
    with pytest.raises(Exception, match=r"broken\.db"):
        kit.compiled(torch.matmul, X, W)


def test_disable_by_environment(kit, monkeypatch):
    monkeypatch.setenv("GEMMDB_DISABLE", "1")
    stats = kit.forced(raising(AssertionError("asked although disabled")), torch.matmul, X, W)
    assert (stats["products"], stats["errors"]) == ([], [])
    for text in (str(gemmdb.inductor.summary()), str(gemmdb.inductor.report())):
        assert "nothing was compiled with gemmdb: GEMMDB_DISABLE is set; unset it" in text


def test_a_disabled_backend_looks_at_no_table_file(kit, monkeypatch):
    monkeypatch.setenv("GEMMDB_DISABLE", "1")
    monkeypatch.setattr("gemmdb.lookup.environment.current", lambda: pytest.fail("it looked for tables"))
    kit.close(kit.compiled(torch.matmul, X, W, backend="gemmdb"), X @ W)


def test_sums_of_two_gemms_are_counted(kit):
    def two(a, b):
        return a @ b + b @ a

    stats = kit.forced(None, two, torch.randn(64, 64), torch.randn(64, 64), max_autotune=True)
    assert stats["uncovered"] == {"mm_plus_mm": 1}


def test_the_lowering_asks_again_when_the_ir_has_other_operands(kit, monkeypatch):
    from gemmdb.inductor.lower.adapter import ir_view

    asked = []

    def chooser(problem):
        asked.append(problem.a.layout.align)
        return kit.CPP

    def unaligned(problem, args):
        return replace(problem, a=replace(problem.a, layout=replace(problem.a.layout, align=1)))

    monkeypatch.setattr(ir_view, "confirm", unaligned)
    kit.forced(chooser, nn.Linear(64, 32).eval(), X, freezing=True)
    assert asked == [4, 1]
    assert " a=fp32:row:1 " in kit.problems()[0]
    assert kit.lowered() == [kit.CPP]


def test_a_template_that_refuses_leaves_aten_and_a_note(kit, monkeypatch):
    from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate

    def refuse(*args, **kwargs):
        raise NotImplementedError("no micro kernel")

    monkeypatch.setattr(CppGemmTemplate, "add_choices", refuse)
    stats = kit.forced(kit.CPP, nn.Linear(64, 32).eval(), X, freezing=True)
    assert kit.lowered(stats) == [kit.ATEN]
    assert "refused" in stats["products"][0]["note"]


def test_a_decision_is_not_copied_and_not_pickled_with_its_graph(kit):
    problem = Problem.gemm("mm", m=8, n=32, k=64, dtype="fp32")
    decision = decide(ForcedSession(lambda problem: kit.ATEN, None), Query(problem, detect.cpu()))
    assert copy.deepcopy(decision) is decision
    assert pickle.loads(pickle.dumps(decision)) is None


def test_events_survive_a_failed_compile(kit):
    def broken(graph):
        raise RuntimeError("a pass of the user's")

    with force(kit.left_alone):
        with inductor_config.patch(post_grad_custom_pre_pass=broken), pytest.raises(RuntimeError):
            kit.compiled(torch.matmul, X, W)
        kit.compiled(torch.matmul, X, W)
    assert len(kit.problems()) == 1


@pytest.mark.slow
def test_live_searches_the_missed_gemm_only_and_keeps_the_timings(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("gemmdb.inductor.benchmark.rules.missing_library", lambda: "jinja2")
    pytest.importorskip("gemmdb.table.writer")
    from gemmdb.table.reader import Table

    path = tmp_path / "user.db"
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 40)).eval()
    chosen = ForcedSession(lambda problem: kit.ATEN if problem.n == 48 else None, None)
    enable.install()
    live = FakeSession(chosen.find, Policy(on_miss="live"), None, path)
    with active.use(live):
        stats = kit.checked(model, X, freezing=True, autotune_local_cache=False)
    assert (stats["rungs"], stats["benchmarked"], stats["errors"]) == ({"forced": 1, "live": 1}, 1, [])
    rows = list(Table.open(path).measurements())
    assert {row.config.name for row in rows} == {"aten:default", "cpp:packed_gemm"}
    assert {row.problem.n for row in rows} == {40}


def test_concurrent_writers_of_a_workload_lose_nothing(tmp_path):
    path = tmp_path / "workload.jsonl"

    def write(number):
        for i in range(50):
            append_lines(path, [json.dumps({"problem": f"{number} {i}" * 50})])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len({json.loads(line)["problem"] for line in path.read_text().splitlines()}) == 200
