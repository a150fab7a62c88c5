"""`on_miss="live"`: a missed product is measured by the generator or by Inductor's search, and answers from then on."""

import subprocess
import sys
import textwrap

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.sessions import FakeSession
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb.devices import detect, registry
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import client, rules
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.benchmark.limits import BUDGET, PROCESS_S
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry import install
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.model import LIVE_CANDIDATES
from gemmdb.rejected import Rejected
from gemmdb.settings import Policy, Settings
from gemmdb.table.measurement import Protocol
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """A process that has not tried yet."""
    monkeypatch.setattr(tuning, "_late", None)
    yield
    JOURNAL.drop()


@pytest.fixture
def compile_live(kit):
    """A function that compiles a linear layer as a new process would, and returns gemmdb's stats."""
    model, x = nn.Linear(64, 40).eval(), torch.randn(8, 64)

    def run(on_miss="live"):
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(on_miss=on_miss)
        with torch.no_grad(), inductor_config.patch(freezing=True, autotune_local_cache=False):
            kit.close(kit.compiled(model, x), model(x))
        return gemmdb.inductor.stats()

    yield run
    client.close()


@pytest.fixture
def without_generator(monkeypatch):
    """As installed without the libraries of `gemmdb[build]`."""
    monkeypatch.setattr(rules, "missing_library", lambda: "jinja2")


def stored():
    with Table.open(Settings.read().user_table) as table:
        return list(table.measurements()), table.generation


@pytest.mark.slow
def test_a_product_is_measured_once_and_nothing_else_is_benchmarked(compile_live):
    state = torch.get_rng_state()
    first = compile_live()
    assert torch.equal(torch.get_rng_state(), state)
    assert (first["rungs"], first["benchmarked"], first["errors"]) == ({"live": 1}, 0, [])
    (product,) = first["products"]
    assert product["config"] == product["evidence"]["ties"][0]
    rows, generation = stored()
    assert 2 <= len({row.config for row in rows}) <= 1 + LIVE_CANDIDATES
    assert all(row.protocol.l2 == "cold" and row.times.samples >= 5 for row in rows if row.times)
    assert generation == 0  # Compiled graphs stay valid.
    second = compile_live("aten")
    assert (second["rungs"], second["benchmarked"]) == ({"exact": 1}, 0)
    assert second["products"][0]["evidence"]["pick"] == product["config"]


def test_by_default_a_cpu_is_not_kept_waiting(compile_live):
    stats = compile_live(None)
    (product,) = stats["products"]
    assert (stats["rungs"], stats["benchmarked"], stats["errors"]) == ({"aten": 1}, 0, [])
    assert product["config"] == ATEN.text
    assert product["note"].startswith("not tuned: on a CPU that takes 60 s at first")
    assert not Settings.read().user_table.exists()


def test_where_tuning_came_to_nothing_the_table_answers_as_without_it(compile_live, monkeypatch):
    monkeypatch.setattr(tuning, "_late", Rejected("20 s were not enough for live tuning before"))
    stats = compile_live()
    (product,) = stats["products"]
    assert (stats["rungs"], product["config"]) == ({"aten": 1}, ATEN.text)
    assert product["note"] == "not tuned: 20 s were not enough for live tuning before"


def test_waiting_for_others_does_not_switch_live_tuning_off(tmp_path, monkeypatch):
    device, problem = detect.cpu(), Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, device), None, Event(problem.text, "live", note="no row"))]
    late = client.Tuned(late=True, waited=True)
    JOURNAL.drop()
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: late)
    tuning.tune(group)
    assert tuning.device_rejection(device) is None
    assert JOURNAL.provisional


def test_the_log_says_what_a_compile_waits_for(tmp_path, monkeypatch, caplog):
    device, problem = detect.cpu(), Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, device), None, Event(problem.text, "live", note="no row"))]
    done = client.Tuned({}, waited=True, late=True, spent={"start": 1.25, "measure": 0.5})
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: done)
    caplog.set_level("INFO", "gemmdb")
    tuning.tune(group)
    said, ended = (record.message for record in caplog.records)
    assert said.startswith("live tuning: the compile waits 3 s at most, while 1 problem is measured.")
    assert said.endswith("the process that measures, which starts now.")
    assert ended.startswith("live tuning ended after 0.0 s: 1.2 s waiting for the process, 0.5 s measuring")


def test_a_process_that_is_still_starting_may_be_ready_for_the_next_graph(tmp_path, monkeypatch):
    device, problem = detect.cpu(), Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, device), None, Event(problem.text, "live", note="no row"))]
    JOURNAL.drop()
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: client.Tuned(late=True, starting=True))
    (decided,) = tuning.tune(group)
    assert decided.event.note == "not tuned: 3 s were not enough"
    assert tuning.device_rejection(device) is None
    assert not JOURNAL.provisional


def test_what_is_not_worth_measuring_says_why(tmp_path, monkeypatch):
    device, problem = detect.cpu(), Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, device), None, Event(problem.text, "live", note="no row"))]
    declined = client.Tuned(declined={problem: "it is too large"})
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: declined)
    (decided,) = tuning.tune(group)
    assert decided.config == ATEN
    assert decided.event.note == "not tuned: it is too large"


def test_the_gpu_that_is_looked_at_is_the_one_that_the_product_is_for(monkeypatch, tmp_path):
    """With stand-ins for two GPUs of different kinds."""
    first, second = registry.find("sm80"), registry.find("sm90")
    free = {0: 64 << 30, 1: 5 << 30}
    monkeypatch.setattr(tuning, "_late", None)
    monkeypatch.setattr(tuning.detect, "cuda", lambda number: (first, second)[number])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free[number], 80 << 30))
    assert [tuning._gpu(device) for device in (first, second)] == [0, 1]
    assert tuning.device_rejection(second) is None
    small, large = (Problem.gemm("mm", m=16, n=n, k=8192) for n in (1024, 57344))
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(p, second), None, Event(p.text, "live", note="")) for p in (small, large)]
    room, rest = tuning._with_room(second, group)
    assert room == group[:1]
    assert rest[0].event.note.startswith("not tuned: only 5120 MiB are free on the GPU, measuring it takes ")
    free[1] = 3 << 30
    assert str(tuning.device_rejection(second)) == "only 3072 MiB are free on the GPU"
    assert tuning.device_rejection(first) is None


def test_a_large_weight_needs_more_memory_free_than_a_small_one():
    small, large = (Problem.gemm("mm", m=16, n=n, k=8192) for n in (1024, 57344))
    assert tuning.bytes_needed(small) < tuning.FREE_BYTES
    assert tuning.bytes_needed(large) > 16 * 57344 * 8192
    experts = Problem.gemm("grouped_mm", m=8, n=4096, k=7168, groups=256)
    assert tuning.bytes_needed(experts) > 6 * 256 * 4096 * 7168


@pytest.mark.parametrize("done", [0, 1])
def test_what_was_not_done_in_time_is_served_as_without_tuning(done, tmp_path, monkeypatch):
    """With a stand-in for the generator, which cannot be made to be late at a given moment."""
    device, seen = detect.cpu(), Protocol("host", "cold", 1, 10)
    problems = [Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32") for m in (3, 5)]
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=2.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(p, device), None, Event(p.text, "live", note="no row")) for p in problems]
    found = {p: Verdict(p, device, seen, installed("cpu"), (ATEN,), 1.0, 0.01, 10.0, 1) for p in problems[:done]}
    late = client.Tuned(found, None, late=True)
    JOURNAL.drop()
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: late)
    decided = tuning.tune(group)
    assert JOURNAL.provisional is bool(done)
    assert bool(tuning.device_rejection(device)) is not bool(done)
    assert [decision.config for decision in decided] == [ATEN, ATEN]
    assert [decision.event.rung for decision in decided] == ["live"] * done + ["aten"] * (2 - done)
    assert decided[1].event.note == "not tuned: 2 s were not enough"


@pytest.mark.slow
def test_of_two_processes_that_share_a_table_one_measures(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from gemmdb import Problem
        from gemmdb.devices import detect
        from gemmdb.inductor.benchmark import client as live
        device = detect.native()
        live.start(device)
        problems = [Problem.gemm("mm", m=m, n=16, k=32, dtype="fp32") for m in (4, 5)]
        tuned = live.tune([live.Request(problem, device, Path(sys.argv[1])) for problem in problems])
        # What measures loads torch; what only has it measured would keep it waiting for that long.
        loaded = live._TUNER.process().call(60, eval, "'torch' in __import__('sys').modules").value
        print(*(tuned.verdicts[problem].pick.text for problem in problems), tuned.late, loaded)
    """)
    table = tmp_path / "shared.db"
    command = [sys.executable, "-c", program, str(table)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=300)[0].split() for process in both]
    assert answers == [[ATEN.text, ATEN.text, "False", "False"]] * 2
    with Table.open(table) as opened:
        runs = {}
        for row in opened.measurements():
            runs.setdefault(row.problem, set()).add(row.run)
    assert [len(found) for found in runs.values()] == [1, 1]


@pytest.mark.slow
def test_inductor_searches_where_the_generator_is_not_installed(compile_live, without_generator):
    first, second = compile_live(), compile_live()
    assert (first["rungs"], first["benchmarked"]) == ({"live": 1}, 1)
    assert (second["rungs"], second["benchmarked"]) == ({"exact": 1}, 0)
    (product,) = second["products"]
    assert "l2=hot" in product["evidence"]["protocol"]
    assert product["evidence"]["instead_of"] == "cold"


def test_other_policies_do_not_take_hot_timings_for_cold_ones(compile_live, without_generator):
    compile_live()
    assert compile_live("aten")["rungs"] == {"aten": 1}


def test_a_single_number_is_stored_with_an_interval(compile_live, without_generator):
    compile_live()
    rows, _ = stored()
    assert {row.config.name for row in rows} == {"aten:default", "cpp:packed_gemm"}
    assert all(row.times.spread == pytest.approx(0.05) for row in rows)


def test_hits_are_looked_up_once_for_both_passes_and_all_layers():
    asked = []
    looking = FakeSession(
        lambda query: asked.append(query) or Hit("exact", ATEN, 1.0, 1.0, ""), Policy(on_miss="live"), "key"
    )
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    traced = make_fx(lambda x, w: torch.mm(torch.mm(torch.mm(x, w), w), w))(x, w)
    for one in install.slots(looking).values():
        one(traced.graph)
    assert len(asked) == 1
    assert len(JOURNAL.pending()) == 3


def test_a_process_that_has_spent_its_time_tunes_nothing_more(tmp_path, monkeypatch):
    device, problem = detect.cpu(), Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
    asked = FakeSession(lambda query: None, Policy(on_miss="live", live_s=5.0), None, tmp_path / "user.db")
    group = [Decision(asked, Query(problem, device), None, Event(problem.text, "live", note="no row"))]
    took = []
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: took.append(limit_s) or client.Tuned(late=True))
    BUDGET.spend(PROCESS_S)
    (decided,) = tuning.tune(group)
    assert (decided.config, decided.event.note) == (ATEN, "not tuned: 8 s compile budget exhausted")
    assert took == []
    assert not JOURNAL.provisional
